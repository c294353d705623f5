"""The seams of a global round: what a cell is asked to do, what it gives back, and who carries it out.

`CellJob -> CellResult` is the only parallel seam. Uplinks differ in `draw`, `aggregate` and their
clock alone, engines in execution alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, overload

import numpy as np
import torch
from torch import nn

from histfl.arrays import Floats, Ints
from histfl.data import CropFlip, Split, TensorData
from histfl.devices import moved
from histfl.errors import UsageError, shown
from histfl.network import Cell, Network
from histfl.partition import State, Submodel, extract
from histfl.seeds import Seeds
from histfl.training import answers
from histfl.training.codecs import Codec, Plain, decoded
from histfl.training.corrections import Correction
from histfl.training.local import LocalTraining
from histfl.training.memory import CellMemory, Memory
from histfl.training.objective import Loss, Objective
from histfl.training.participation import CellSchedule
from histfl.training.privacy import Privacy

CellLink = Any  # what an uplink drew for one cell and global round; only that uplink reads it


@dataclass(frozen=True)
class RoundCost:
    """Time and energy of one global round (HIST Sec. IV-A).

    A cell takes `cell_seconds` [cell]; the round waits for `slowest_cell`, whose seconds are split
    into the computing and the uplink of its slowest clients. Cells are counted among those of the round.
    """

    cell_seconds: Floats
    compute_seconds: float
    uplink_seconds: float
    energy_joules: float

    @property
    def slowest_cell(self) -> int:
        return int(self.cell_seconds.argmax())

    @property
    def seconds(self) -> float:
        return float(self.cell_seconds.max())


class Uplink(Protocol):
    """How clients reach their edge server."""

    def draw(
        self, network: Network, schedules: Sequence[CellSchedule], round: int, seeds: Seeds
    ) -> Sequence[CellLink]:
        """The radio channels of one global round, a link a cell."""
        ...

    def aggregate(
        self, start: State, finals: Iterable[State], link: CellLink, edge_round: int, learning_rate: float
    ) -> tuple[State, torch.Tensor]:
        """The edge's new model, and the mean squared error an entry, [], of its estimate of the mean update.

        `finals` yields the arrived clients' models in chunks of any number, each tensor [client, ...], in order and
        once; `learning_rate` is that of the steps that led to them.
        """
        ...


def drawn(
    uplink: Uplink, network: Network, schedules: Sequence[CellSchedule], round: int, seeds: Seeds
) -> Sequence[CellLink]:
    """The round's links, or a UsageError where an uplink of the user's own gives no such."""
    found: Any = uplink.draw(network, schedules, round, seeds)
    whose = f"draw of the uplink {type(uplink).__name__}"
    links = list(found) if isinstance(found, np.ndarray) and found.ndim else found
    if not isinstance(links, list | tuple):
        raise UsageError(
            f"{whose} returns {shown(found)}; it must return a list with a link for each cell of the round"
        )
    if len(links) != len(schedules):
        raise UsageError(f"{whose} returns {len(links)} links for {len(schedules)} cells; give one for each")
    return links


class Clock(Protocol):
    """What a global round takes."""

    def cost(
        self,
        network: Network,
        schedules: Sequence[CellSchedule],
        links: Sequence[CellLink],
        parameters: Ints,
        *,
        coded: Floats | float = 1.0,
    ) -> RoundCost:
        """What a round costs when cell j's clients train and send parameters[j] numbers, in `coded` [cell] times the
        bits of as many average ones."""
        ...


@dataclass(frozen=True)
class Task:
    """What all cells of a run share. The data lie on the device on which the cells train; `augment` draws
    a variant of a sample whenever a client trains on it. Means of clients and of cells are `weighted` by samples, or
    count all alike."""

    model: nn.Module
    data: TensorData
    split: Split
    local: LocalTraining
    objective: Objective
    uplink: Uplink
    seeds: Seeds
    codec: Codec = field(default_factory=Plain)
    augment: CropFlip | None = None
    weighted: bool = False
    privacy: Privacy | None = None

    @property
    def loss(self) -> Loss:
        return self.objective.loss

    def weight(self, cell: Cell, schedule: CellSchedule) -> float:
        """The cell's in the cloud's merge: the samples behind the updates that arrive in its edge rounds, all added."""
        if not self.weighted:
            return 1.0
        return float(sum(self.split.sizes_of(each + cell.first_client).sum() for each in schedule.arrived))


@dataclass(frozen=True)
class CellJob:
    """One cell's global round: picklable and self-contained.

    `start` is the submodel that is trained and sent, `constants` what it needs besides (frozen parameters, cut
    alike, and the scales of layers that read cut units), `memory` what the cell and its clients kept of earlier
    rounds; `units` are the numbers of those that the submodel has, by group of the plan.
    """

    task: Task
    cell: Cell
    round: int
    start: State
    constants: State
    schedule: CellSchedule
    link: CellLink
    memory: Memory = field(default_factory=Memory)
    units: tuple[torch.Tensor, ...] = ()

    def clients(self, edge_round: int) -> Ints:
        """The clients whose updates arrive in an edge round, by their numbers in the network."""
        return self.schedule.arrived[edge_round] + self.cell.first_client

    def with_arrived(self, edge_round: int, clients: Ints) -> CellJob:
        """The job where in that edge round the updates of just these `clients` arrive."""
        arrived = list(self.schedule.arrived)
        arrived[edge_round] = clients - self.cell.first_client
        return replace(self, schedule=replace(self.schedule, arrived=tuple(arrived)))


@dataclass(frozen=True)
class Measured:
    """What a cell's global round really took: seconds from the cloud's asking to the edge's answer, of these those on
    the links between edge and clients and those of the clients' steps, each of the slowest client an edge round;
    bytes that the edge got from the cloud and sent it, got from its clients and sent them; and the numbers of
    the clients that were not heard, one for each edge round in which they were missed, `bad` ones among them: they sent
    no numbers that can be averaged. `lost`: the edge did not answer."""

    seconds: float
    training_seconds: float = 0.0
    link_seconds: float = 0.0
    bytes_from_cloud: int = 0
    bytes_to_cloud: int = 0
    bytes_from_clients: int = 0
    bytes_to_clients: int = 0
    missed: tuple[int, ...] = ()
    bad: int = 0
    lost: bool = False


@dataclass(frozen=True)
class CellResult:
    """The cell's submodel after its edge rounds, the mean training loss of its client steps (NaN-free
    unless training diverged; None if no client took part), the mean error of its edge estimates, and the `memory`
    for the rounds to come.

    `client_steps` were carried out here: an update that will be lost changes nothing, so its steps are
    not. Its client computes and sends all the same, and a round's seconds and joules count it. `measured` is what
    was real of it, where cells and clients are machines of their own.
    """

    state: State
    loss: float | None
    client_steps: int
    edge_error: float
    memory: Memory = field(default_factory=Memory)
    measured: Measured | None = None


class RoundJobs(Sequence[CellJob]):
    """A round's jobs, a job a schedule, each made anew whenever it is asked for: so many submodels need not lie in
    memory together."""

    def __init__(self, task: Task, schedules: Sequence[CellSchedule], make: Callable[[int], CellJob]) -> None:
        self.task, self.schedules, self._make = task, schedules, make

    @classmethod
    def of(cls, jobs: Sequence[CellJob]) -> RoundJobs:
        """Those that are there, one at least."""
        if isinstance(jobs, cls):
            return jobs
        return cls(jobs[0].task, [job.schedule for job in jobs], jobs.__getitem__)

    def __len__(self) -> int:
        return len(self.schedules)

    @overload
    def __getitem__(self, place: int) -> CellJob: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[CellJob]: ...
    def __getitem__(self, place: int | slice) -> CellJob | Sequence[CellJob]:
        places = range(len(self))[place]
        return self._make(places) if isinstance(places, int) else [self._make(each) for each in places]


def correction_of(job: CellJob, memory: CellMemory) -> Correction | None:
    """The correction of the gradients of the cell's clients, if there is any, by what the cell keeps in `memory`."""
    local = job.task.local.at(job.round)
    if local.correction is None:
        return None
    return local.correction(job.start, memory, local.path)


def after_merge(job: CellJob, result: CellResult, merged: State, submodel: Submodel) -> Memory:
    """What the cell and its clients keep of a round that ended with the whole model `merged`."""
    memory = CellMemory(result.memory)
    correction = correction_of(job, memory)
    if correction is None or result.client_steps == 0:
        return result.memory
    own = extract({name: merged[name] for name in result.state}, submodel)
    correction.merged(result.state, own, len(job.schedule.arrived))
    return memory.kept()


def sent(
    job: CellJob, memory: CellMemory, edge_round: int, state: State, finals: State, clients: Ints
) -> State:
    """What the edge, whose model is `state`, decodes of the `clients`' models [client, ...], as they send them.
    `memory` is what they keep."""
    codec, finals = job.task.codec, protected(job, edge_round, state, finals, clients)
    kept = memory.of_clients("codec", clients, state) if codec.keeps else {}
    models, kept = decoded(codec, state, finals, clients, codec_key(job, edge_round), kept)
    if codec.keeps:
        memory.keep_of_clients("codec", clients, kept)
    return models


def protected(job: CellJob, edge_round: int, state: State, finals: State, clients: Ints) -> State:
    """The `clients`' models [client, ...] as they are to be sent: noisy, where clients protect themselves."""
    privacy = job.task.privacy
    if privacy is None or privacy.where != "client":
        return finals
    key, senders = job.task.seeds.key("privacy", job.round, edge_round), len(job.schedule.sampled[edge_round])
    return privacy.sent(state, finals, clients, key, senders)


def codec_key(job: CellJob, edge_round: int) -> int:
    """The chance of a codec in an edge round, of which clients have their own by their numbers."""
    return job.task.seeds.key("codec", job.round, edge_round)


def taken(job: CellJob, edge_round: int, state: State, decoded: State, clients: Ints) -> State:
    """What the edge, whose model is `state`, averages of what it has of the `clients`, tensors [client, ...]: each by
    its weight; clipped, where the edge protects clients."""
    privacy = job.task.privacy
    if privacy is not None and privacy.where == "edge":
        decoded = privacy.clipped(state, decoded)
    return _weighted(job, edge_round, state, decoded, clients)


def received(
    job: CellJob, memory: CellMemory, edge_round: int, state: State, finals: State, clients: Ints
) -> State:
    """What the edge averages of the `clients`' models [client, ...]: what they send, as it is taken."""
    return taken(job, edge_round, state, sent(job, memory, edge_round, state, finals, clients), clients)


def averaged(
    job: CellJob, edge_round: int, state: State, finals: Iterable[State]
) -> tuple[State, torch.Tensor]:
    """The edge's next model from its own `state` and what it `received`, and the error of its estimate of the mean; a
    UsageError where an uplink of the user's own gives no such."""
    task, heard, whose = job.task, iter(finals), f"the uplink {type(job.task.uplink).__name__}"
    rate = task.local.at(job.round).learning_rate
    found = task.uplink.aggregate(state, heard, job.link, edge_round, rate)
    for _ in heard:  # clients train as they are asked for, also those that an uplink leaves out
        pass
    mean, error = answers.pair(found, whose, "the edge's new model and the error of its mean")
    mean, error = answers.alike(mean, state, whose), answers.number(error, f"the error that {whose} returns")
    if task.privacy is not None and task.privacy.where == "edge":
        key = task.seeds.key("privacy", job.round, edge_round, job.cell.index)
        mean = task.privacy.averaged(mean, key, len(job.schedule.arrived[edge_round]))
    return mean, error


def _weighted(job: CellJob, edge_round: int, state: State, finals: State, clients: Ints) -> State:
    """The clients' updates, each scaled by n w_i / sum w over the n clients that arrive, so that the plain mean of
    any uplink is the mean by samples w_i. Over the air a client scales what it sends, and the error that normalised
    signals meet grows with the RMS of the scaled updates."""
    if not job.task.weighted:
        return finals
    heard = job.clients(edge_round)
    samples, all_samples = job.task.split.sizes_of(clients), job.task.split.sizes_of(heard).sum()
    scales = moved(torch.from_numpy(samples * (len(heard) / all_samples)), next(iter(state.values())).device)
    return {
        name: state[name] + scales.to(final.dtype).view(-1, *(1,) * (final.dim() - 1)) * (final - state[name])
        for name, final in finals.items()
    }


class Engine(Protocol):
    """How cell jobs are executed; every engine gives the same results to rounding."""

    name: str

    def run(self, jobs: Sequence[CellJob]) -> Iterable[CellResult]:
        """The results in the order of the jobs; each may be taken, and is, as soon as it is there."""
        ...

    def close(self) -> None:
        """Give back at a run's end what it holds; a later run may make it again."""
        ...


def mean_of_clients(finals: Iterable[State]) -> State:
    """The mean over all clients of chunks whose tensors are [client, ...]: the edge's model (HIST Eq. (6))."""
    total: State = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for chunk in finals:
        count += len(next(iter(chunk.values())))
        for name, tensor in chunk.items():
            # Half precision is too coarse to add up many clients in.
            partial = tensor.sum(dim=0, dtype=torch.promote_types(tensor.dtype, torch.float32))
            total[name] = total[name] + partial if name in total else partial
            dtypes[name] = tensor.dtype
    torch._foreach_div_(list(total.values()), count)
    return {name: tensor.to(dtypes[name]) for name, tensor in total.items()}
