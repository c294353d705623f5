"""The seams of a global round: what a cell is asked to do, what it gives back, and who carries it out.

`CellJob -> CellResult` is the only parallel seam. Uplinks differ in `draw`, `aggregate` and their
clock alone, engines in execution alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from histfl.arrays import Floats, Ints
from histfl.data import CropFlip, Split, TensorData
from histfl.network import Cell, Network
from histfl.partition import State
from histfl.seeds import Seeds
from histfl.training.codecs import Codec, Plain
from histfl.training.local import LocalTraining
from histfl.training.objective import Loss, Objective
from histfl.training.participation import CellSchedule

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

        `finals` yields the arrived clients' models in chunks, each tensor [client, ...], in order; `learning_rate`
        is that of the steps that led to them.
        """
        ...


class Clock(Protocol):
    """What a global round takes."""

    def cost(
        self, network: Network, schedules: Sequence[CellSchedule], links: Sequence[CellLink], parameters: Ints
    ) -> RoundCost:
        """What a round costs when cell j's clients train and send parameters[j] numbers."""
        ...


@dataclass(frozen=True)
class Task:
    """What all cells of a run share. The data lie on the device on which the cells train; `augment` draws
    a variant of a sample whenever a client trains on it."""

    model: nn.Module
    data: TensorData
    split: Split
    local: LocalTraining
    objective: Objective
    uplink: Uplink
    seeds: Seeds
    codec: Codec = field(default_factory=Plain)
    augment: CropFlip | None = None

    @property
    def loss(self) -> Loss:
        return self.objective.loss


@dataclass(frozen=True)
class CellJob:
    """One cell's global round: picklable and self-contained.

    `start` is the submodel that is trained and sent, `constants` what it needs besides (frozen
    parameters, cut alike), `carried` what the cell kept of the round before in which it took part.
    """

    task: Task
    cell: Cell
    round: int
    start: State
    constants: State
    schedule: CellSchedule
    link: CellLink
    carried: State = field(default_factory=dict)


@dataclass(frozen=True)
class CellResult:
    """The cell's submodel after its edge rounds, the mean training loss of its client steps (NaN-free
    unless training diverged; None if no client took part), the mean error of its edge estimates, and what is
    `carried` into the cell's next round.

    `client_steps` were carried out here: an update that will be lost changes nothing, so its steps are
    not. Its client computes and sends all the same, and a round's seconds and joules count it.
    """

    state: State
    loss: float | None
    client_steps: int
    edge_error: float
    carried: State = field(default_factory=dict)


def received(job: CellJob, edge_round: int, state: State, finals: State, clients: Ints) -> State:
    """What the edge, whose model is `state`, decodes of the `clients`' models [client, ...]."""
    task = job.task
    return task.codec.decoded(state, finals, clients, task.seeds.key("codec", job.round, edge_round))


class Engine(Protocol):
    """How cell jobs are executed; every engine gives the same results to rounding."""

    name: str

    def run(self, jobs: Sequence[CellJob]) -> Sequence[CellResult]: ...

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
