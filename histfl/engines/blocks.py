"""Blocks: the clients that train together, and who steps them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from histfl.arrays import Ints
from histfl.data.inputs import Inputs
from histfl.partition import State
from histfl.training import CellJob, CellSchedule, LocalTraining
from histfl.training.corrections import Correction, added
from histfl.training.optimisers import Slots


@dataclass(frozen=True)
class Part:
    """Clients [client] of one cell, by their number in the network, that train from the edge's model
    `state` in one edge round, with a `correction` of their gradients or None. `place` is the cell's place among those
    that train in step."""

    place: int
    job: CellJob
    state: State
    edge_round: int
    clients: Ints
    correction: Correction | None = None


Batches = Iterable[tuple[Inputs, torch.Tensor]]  # inputs and targets [client, batch, ...]
FEWEST = 4  # clients a block on a CPU, where there are so many: with fewer Python is seen
Block = Sequence[Part]  # parts of equal tensor shapes, of one task, round and edge round


class Trainer(Protocol):
    """Carries out the local steps of a block."""

    def clients_at_once(self, start: State) -> int | None:
        """How many clients of this model make a good block (None: as many as there are)."""
        ...

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        """The clients' models after their local steps, tensors [client, ...] in the block's order, and
        the sums of their batch losses, [client]."""
        ...


class Stepper(Protocol):
    """Takes the local steps of many clients at once, their models given as tensors [client, ...]. A recording of it
    holds up to `steps_a_launch` steps."""

    steps_a_launch: int

    def clients_at_once(self, start: State) -> int | None:
        """How many clients of this model make a good block on this device (None: as many as there are)."""
        ...

    def laid_out(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, or a copy of it laid out in memory as the steps want it."""
        ...

    def steps(
        self, state: State, constants: State, batches: Batches, slots: Slots, local: LocalTraining
    ) -> torch.Tensor:
        """A step of `local` on each batch, which changes `state` (leaves, laid out) and its `slots`; the sums of the
        clients' losses, [client]. `local` is the task's, at the learning rate of a round."""
        ...


def clients_per_block(schedules: Iterable[CellSchedule], cores: int) -> int:
    """How many clients make blocks of which each of so many cores gets two.

    Whoever shares a round's jobs out computes it from all of their schedules and a stated number of cores, and not from
    the threads or the machine at hand: sums in blocks of other sizes differ by rounding.
    """
    clients = sum(map(clients_of, schedules))
    return max(-(-clients // (2 * cores)), FEWEST)


def clients_of(schedule: CellSchedule) -> int:
    """How many clients of a cell train at once, at most."""
    return max(map(len, schedule.arrived), default=0)


def bundled(jobs: Iterable[CellJob], trainer: Trainer) -> Iterator[list[int]]:
    """The places of cells that go in step: submodels of one shape, and clients for about one block. Each bundle is
    given as soon as it is full, the others at the end; parts of `jobs` that are made of whole bundles give the same
    ones."""
    bundles: dict[object, list[int]] = {}
    left: dict[object, float] = {}
    for place, job in enumerate(jobs):
        shapes = tuple((name, tensor.shape) for name, tensor in job.start.items())
        kind, clients = (shapes, len(job.schedule.arrived)), clients_of(job.schedule)
        if kind in bundles and clients > left[kind]:
            yield bundles.pop(kind)
        if kind not in bundles:
            bundles[kind], left[kind] = [], trainer.clients_at_once(job.start) or math.inf
        bundles[kind].append(place)
        left[kind] -= clients
    yield from bundles.values()


def cut_into_blocks(parts: Sequence[Part], most: int | None) -> Iterator[Block]:
    """`parts` in order, in blocks of at most `most` clients; a cell's clients spread evenly over its own."""
    block: list[Part] = []
    for part in parts:
        shares = -(-len(part.clients) // (most or len(part.clients)))
        for clients in np.array_split(part.clients, shares):
            if most is not None and block and num_clients(block) + len(clients) > most:
                yield block
                block = []
            block.append(replace(part, clients=clients))
    if block:
        yield block


def num_clients(block: Block) -> int:
    return sum(len(part.clients) for part in block)


def halves(block: Block) -> tuple[Block, Block]:
    """The block as two, where it holds at least two clients."""
    most = -(-num_clients(block) // 2)
    first: list[Part] = []
    second: list[Part] = []
    for part in block:
        left = most - num_clients(first)
        if left > 0:
            first.append(replace(part, clients=part.clients[:left]))
        if len(part.clients) > left:
            second.append(replace(part, clients=part.clients[max(left, 0) :]))
    return first, second


def stacked_start(block: Block) -> State:
    """Every client's start model, new tensors [client, ...]."""
    return _stack([(part.state, len(part.clients)) for part in block])


def stacked_constants(block: Block) -> State:
    """Every client's frozen tensors that are cut with the model, [client, ...]."""
    if num_clients(block) == 1:  # they are only read, and may be large
        return {name: tensor.unsqueeze(0) for name, tensor in block[0].job.constants.items()}
    return _stack([(part.job.constants, len(part.clients)) for part in block])


def stacked_corrections(block: Block) -> State | None:
    """What is added to every client's gradients, [client, ...]; None where nothing is."""
    found = (added(part.correction, part.clients, part.state) for part in block)
    each = [own for own in found if own is not None]
    return {name: torch.cat([own[name] for own in each]) for name in each[0]} if each else None


def _stack(states: Sequence[tuple[State, int]]) -> State:
    return {
        name: torch.cat([state[name].expand(count, *state[name].shape) for state, count in states])
        for name in states[0][0]
    }
