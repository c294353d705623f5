"""What machines ask of each other: a run, a cell's global round, a client's edge round; and the answers.

cloud -> edge     the run's settings; of every global round the cell's submodel and who takes part
edge  -> client   the same settings; of every edge round the edge's model
client -> edge    the trained submodel as the codec writes it, the sum of its losses, its seconds of training
edge  -> cloud    the cell's submodel, its mean loss, and what was measured
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from histfl.arrays import Ints
from histfl.deploy.kits import Kit, client_name
from histfl.deploy.messages import BadMessage, Message, check_like, named
from histfl.errors import UsageError, in_one_line
from histfl.network import Cell, Network
from histfl.partition import State
from histfl.runs.config import Config
from histfl.runs.store import digest
from histfl.settings import checked
from histfl.training import CellJob, CellResult, CellSchedule, Task
from histfl.training.codecs import read, written
from histfl.training.evaluation import Evaluation
from histfl.training.jobs import Measured, codec_key
from histfl.training.memory import Memory
from histfl.training.metrics import bounds_of
from histfl.training.objective import Objective
from histfl.wireless.clock import CYCLES_PER_STEP

LARGEST = 1e30  # of a number that a member tells: sums of such ones are finite
MOST_SAMPLES = 10**12  # of a client: their sum is a number of 64 bits
MOST_EDGE_ROUNDS = 10**6
LOSSES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # which can be added up


@dataclass(frozen=True)
class Terms:
    """How patient parents are, and with how few children a round goes on."""

    timeout_s: float = 60.0
    min_cells: int = 1
    min_clients: int = 1
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not 0.5 <= self.deadline_s <= 1e9:
            raise UsageError(f"--deadline {self.deadline_s:g}: give seconds, from 0.5 to 1e9")
        if not 0.5 <= self.timeout_s <= 86400:
            raise UsageError(f"--timeout {self.timeout_s:g}: give seconds, from 0.5 to 86400")
        for option, value in (("--min-cells", self.min_cells), ("--min-clients", self.min_clients)):
            if value < 1:
                raise UsageError(f"{option} {value}: give a whole number from 1")


@dataclass(frozen=True)
class RunInfo:
    """What the cloud tells all machines of the run. `structure` has the parameters' shapes and formats, `fixed` a
    checksum of what no training changes; targets are classes of these names, and a sample has so many `outputs`."""

    tables: Mapping[str, Any]
    terms: Terms
    outputs: int
    class_names: tuple[str, ...]
    structure: Mapping[str, Any]
    fixed: str

    def message(self) -> Message:
        return Message({**dataclasses.asdict(self), "timeout_s": self.terms.timeout_s})

    @classmethod
    def of(cls, message: Message) -> RunInfo:
        about = message.about
        try:
            return cls(
                tables=about["tables"],
                terms=Terms(**about["terms"]),
                outputs=int(about["outputs"]),
                class_names=tuple(map(str, about["class_names"])),
                structure=dict(about["structure"]),
                fixed=str(about["fixed"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(
                f"the cloud's word is not understood ({error!r:.80}); is histfl of one version everywhere?"
            ) from None

    def config(self, place: str, trusted: tuple[str, ...] = ()) -> Config:
        """The run's settings, which name code to call only where it is `trusted` on this machine."""
        return checked(Config, dict(self.tables), place).read_from(place, trusted=trusted)


def tables_of(config: Config) -> dict[str, Any]:
    """The settings as they are told: of the network what every machine has to know. What a step takes is counted in the
    cloud alone."""
    tables = config.model_dump(mode="json", exclude_none=True)
    kept = ("cells", "clients", "participants", "active_cells", "dropout")
    network = {key: tables["network"][key] for key in kept} | {"cycles_per_step": CYCLES_PER_STEP}
    return tables | {"network": network}


def structure_of(model: nn.Module) -> tuple[dict[str, Any], str]:
    """The parameters' shapes and formats, and a checksum of what no training changes: frozen ones and buffers."""
    structure = {name: [list(x.shape), str(x.dtype)] for name, x in model.named_parameters()}
    fixed: dict[str, torch.Tensor] = {name: x for name, x in model.named_parameters() if not x.requires_grad}
    return structure, digest(
        {name: x.detach().cpu() for name, x in (fixed | dict(model.named_buffers())).items()}
    )


def network_of(cells: tuple[int, ...]) -> Network:
    """A network of so many clients in each cell, for a machine that need not know their resources."""
    clients = sum(cells)
    return Network(np.array(cells), *(np.ones(clients) for _ in range(3)))


# What children say of themselves: a client how many samples it holds, an edge how many each of its clients does.


def check_samples(kit: Kit, name: str, about: Mapping[str, Any]) -> None:
    """A BadMessage where that is none of it; what a machine reads, every child of it may have said."""
    told = about.get("samples")
    if kit.about.role == "edge":
        told = {name: told}
        own = [name]
    else:
        own = [client_name(client) for client in kit.about.clients_of(int(name.removeprefix("edge")))]
    if not isinstance(told, dict):
        raise BadMessage(f"its clients' samples are {told!r:.40}")
    for client, samples in told.items():
        if client not in own:
            raise BadMessage(f"it has samples of {client!r:.40}, which is no client of its cell")
        if type(samples) is not int or not 0 < samples <= MOST_SAMPLES:
            raise BadMessage(f"{client} has {samples!r:.40} samples")


# An evaluation on the clients' own data: the one thing for which the whole model goes to them.


def evaluation_work(model: nn.Module) -> Message:
    return Message({"evaluate": True}, named("model", dict(model.state_dict())))


def is_evaluation(work: Message) -> bool:
    return work.about.get("evaluate") is True


def evaluation_answer(found: Evaluation) -> Message:
    """A loss that is not finite is said by words, and refused: JSON has none."""
    loss = found.loss if math.isfinite(found.loss) else str(found.loss)
    return Message({"loss": loss, "metrics": dict(found.metrics)})


def evaluation_of(about: Mapping[str, Any], objective: Objective) -> Evaluation:
    """What a client came to; a BadMessage where it is no evaluation by the run's metrics, or not finite."""
    try:
        metrics = {str(name): float(value) for name, value in about["metrics"].items()}
        loss = float(about["loss"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMessage(f"its evaluation is not understood: {error!r:.80}") from None
    if not abs(loss) < LARGEST:
        raise BadMessage(f"the loss on its data is {loss}")
    if set(metrics) != set(objective.metrics):
        raise BadMessage(
            f"its metrics are {sorted(metrics)!r:.80}, and not {sorted(objective.metrics)!r:.80}"
        )
    for name, value in metrics.items():
        lowest, highest = bounds_of(objective.metrics[name])
        if not (abs(value) < LARGEST and lowest <= value <= highest):
            raise BadMessage(f"its {name} is {value}")
    return Evaluation(loss, metrics)


# A cell's global round.


def cell_work(job: CellJob) -> Message:
    tensors = named("start", job.start) | named("constants", job.constants) | named("cell", job.memory.cell)
    tensors |= _units(job)
    return Message(
        {
            "round": job.round,
            "sampled": [clients.tolist() for clients in job.schedule.sampled],
            "arrived": [clients.tolist() for clients in job.schedule.arrived],
        },
        tensors,
    )


def cell_job(work: Message, task: Task, cell: Cell) -> CellJob:
    """The job of a cell, as its edge is told it."""
    try:
        sampled, arrived = (
            tuple(_positions(clients, cell) for clients in work.about[key]) for key in ("sampled", "arrived")
        )
        round = int(work.about["round"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadMessage(f"the cloud's work is not understood: {error!r:.80}") from None
    schedule = CellSchedule(cell.index, sampled, arrived)
    start, constants = work.of_kind("start"), work.of_kind("constants")
    memory, units = Memory(work.of_kind("cell")), tuple(work.of_kind("units").values())
    return CellJob(task, cell, round, start, constants, schedule, None, memory, units)


def _units(job: CellJob) -> State:
    """Which units of the whole model a submodel has, for those who keep something of it."""
    if not job.task.codec.keeps:
        return {}
    return named("units", {str(group): units for group, units in enumerate(job.units)})


def _positions(clients: Any, cell: Cell) -> Ints:
    found = np.array(clients, dtype=np.int64).reshape(-1)
    if found.size and not (found.min() >= 0 and found.max() < cell.num_clients):
        raise ValueError(f"clients {clients} of a cell of {cell.num_clients}")
    return found


def cell_answer(result: CellResult) -> Message:
    """A loss that is not finite is said by words, and refused by the cloud: finite ones may add up to it."""
    assert result.measured is not None
    loss = result.loss if result.loss is None or math.isfinite(result.loss) else str(result.loss)
    about = {
        "loss": loss,
        "client_steps": result.client_steps,
        "edge_error": result.edge_error,
        "measured": dataclasses.asdict(result.measured),
    }
    return Message(about, named("state", result.state) | named("cell", result.memory.cell))


def cell_result(answer: Message, job: CellJob) -> CellResult:
    """An edge's answer to `job`; a BadMessage where it is none."""
    state, memory = answer.of_kind("state"), answer.of_kind("cell")
    check_like(state, job.start, "its submodel")
    _check_memory(memory, job)
    try:
        about = answer.about
        loss = None if about["loss"] is None else float(about["loss"])
        measured = _measured(about["measured"], job.cell)
        steps, error = int(about["client_steps"]), float(about["edge_error"])
    except (KeyError, TypeError, ValueError) as problem:
        raise BadMessage(f"its answer is not understood: {problem!r:.80}") from None
    if loss is not None and not abs(loss) < LARGEST:
        raise BadMessage(f"its loss is {loss}")
    asked = sum(map(len, job.schedule.arrived)) * job.task.local.local_steps
    if not 0 <= steps <= asked or not 0 <= error < LARGEST:
        raise BadMessage(f"its local steps are {steps}, and the error of its means {error}")
    return CellResult(state, loss, steps, error, Memory(memory), measured)


def _measured(told: Mapping[str, Any], cell: Cell) -> Measured:
    """What an edge measured; a ValueError where that are no seconds, bytes and clients of its cell."""
    missed = tuple(map(int, told["missed"]))
    own = range(cell.first_client, cell.first_client + cell.num_clients)
    numbers = {key: value for key, value in told.items() if key not in ("missed", "lost")}
    if told["lost"] is not False or not all(client in own for client in missed):
        raise ValueError("lost, or without clients of others")
    if not all(type(value) in (int, float) and 0 <= value < LARGEST for value in numbers.values()):
        raise ValueError("less than nothing, or more than there is")
    return Measured(**numbers, missed=missed)


def _check_memory(memory: State, job: CellJob) -> None:
    """What an edge keeps is named KIND/PARAMETER, and of each kind there is a tensor a parameter."""
    kinds = {name.partition("/")[0] for name in memory}
    like = {f"{kind}/{name}": tensor for kind in kinds for name, tensor in job.start.items()}
    if kinds and job.task.local.correction is None:
        raise BadMessage(f"it keeps {min(kinds)!r:.40}, and nothing of this run does")
    check_like(memory, like, "what it keeps")


# A client's edge round.


def client_work(job: CellJob, state: State, edge_round: int, correction: State | None) -> Message:
    tensors = named("state", state) | named("constants", job.constants) | _units(job)
    if correction is not None:
        tensors |= named("correction", correction)
    senders = len(job.schedule.sampled[edge_round])
    return Message({"round": job.round, "edge_round": edge_round, "senders": senders}, tensors)


@dataclass(frozen=True)
class ClientRound:
    """What a client is asked to do: the job of a cell of which it is the only one, from the edge's model."""

    job: CellJob
    state: State
    edge_round: int
    correction: State | None

    @classmethod
    def of(cls, work: Message, task: Task, cell: Cell) -> ClientRound:
        try:
            round, edge_round, senders = (int(work.about[key]) for key in ("round", "edge_round", "senders"))
            if round < 0 or not 0 <= edge_round < MOST_EDGE_ROUNDS or not 0 < senders <= cell.num_clients:
                raise ValueError(f"round {round}, edge round {edge_round}, {senders} senders")
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(f"the edge's work is not understood: {error!r:.80}") from None
        everybody = (np.arange(senders),) * (edge_round + 1)
        schedule = CellSchedule(cell.index, everybody, everybody)
        state = work.of_kind("state")
        units = tuple(work.of_kind("units").values())
        job = CellJob(task, cell, round, state, work.of_kind("constants"), schedule, None, units=units)
        return cls(job, state, edge_round, work.of_kind("correction") or None)


def check_cut(state: State, whole: State) -> None:
    """A BadMessage where an edge's model is no part of the `whole` one."""
    if odd := sorted(state.keys() ^ whole.keys()):
        raise BadMessage(f"the edge's model {'lacks' if odd[0] in whole else 'has'} {odd[0]!r:.80}")
    for name, tensor in state.items():
        if tensor.ndim != whole[name].ndim or any(
            one > all_ for one, all_ in zip(tensor.shape, whole[name].shape, strict=True)
        ):
            raise BadMessage(
                f"the edge's model has {name} of {list(tensor.shape)}, which is no part of {list(whole[name].shape)}"
            )


def client_answer(update: State, loss: torch.Tensor, seconds: float) -> Message:
    """`update` as the codec writes it, tensors [1, ...] of one that writes models as they are."""
    return Message({"training_seconds": seconds}, named("update", update) | {"loss": loss})


def client_update(answer: Message, job: CellJob, state: State, edge_round: int, client: int) -> Update:
    """A client's answer to its work; a BadMessage where it is none."""
    task, who, key = job.task, np.array([client]), codec_key(job, edge_round)
    found, loss = answer.of_kind("update"), answer.tensors.get("loss")
    nothing = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
    kept = {name: torch.zeros_like(tensor) for name, tensor in nothing.items()} if task.codec.keeps else {}
    like, _ = written(task.codec, state, nothing, who, key, kept)
    check_like(found, like, "its update")
    seconds = answer.about.get("training_seconds")
    if loss is None or loss.shape != () or loss.dtype not in LOSSES or not abs(loss.item()) < LARGEST:
        raise BadMessage(f"its loss is {None if loss is None else loss.tolist()!r:.40}")
    if not isinstance(seconds, float | int) or not 0 <= seconds < 1e9:
        raise BadMessage(f"its seconds of training are {seconds!r:.40}")
    try:
        model = read(task.codec, state, found, who, key)
    except (ValueError, IndexError, RuntimeError) as error:
        raise BadMessage(f"its update cannot be read: {in_one_line(error)}") from None
    check_like(model, nothing, "its update")
    return Update(model, loss, float(seconds))


@dataclass(frozen=True)
class Update:
    """What an edge has of a client: its model, tensors [1, ...], the sum of its losses, its seconds of training."""

    model: State
    loss: torch.Tensor
    seconds: float
