"""Blocks: the clients that train together, their start models and their samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from histfl.arrays import Ints
from histfl.devices import moved
from histfl.engines.cpu.pages import put_in_large_pages
from histfl.partition import State
from histfl.training import CellJob, Task
from histfl.training.batches import batches_of_clients, variants_of_clients
from histfl.training.dropout import key_names, step_keys


@dataclass(frozen=True)
class Part:
    """Clients [client] of one cell, by their number in the network, that train from the edge's model
    `state` in one edge round. `place` is the cell's place among those that train in step."""

    place: int
    job: CellJob
    state: State
    edge_round: int
    clients: Ints


Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]  # inputs [client, batch, ...], targets [client, batch]
FEWEST = 4  # clients a block on a CPU, where there are so many: with fewer Python is seen
Block = Sequence[Part]  # parts of equal tensor shapes, of one task, round and edge round


class Trainer(Protocol):
    """A way to carry out the local steps of a block."""

    def clients_at_once(self, start: State) -> int | None:
        """How many clients of this model make a good block (None: as many as there are)."""
        ...

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        """The clients' models after their local steps, tensors [client, ...] in the block's order, and
        the sums of their batch losses, [client]."""
        ...


class Way(Protocol):
    """A way to step the models of many clients, given as tensors [client, ...]. A recording of it holds up
    to `steps_a_launch` steps."""

    steps_a_launch: int

    def placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, or a copy of it laid out in memory as the steps want it."""
        ...

    def steps(
        self, start: State, constants: State, batches: Batches, velocity: State | None = None
    ) -> tuple[State, torch.Tensor]:
        """A step on each batch, which changes `start` (and `velocity`, zeros at first); the final models
        and the sums of their losses, [client]."""
        ...


def cut_into_blocks(parts: Sequence[Part], most: int | None) -> Iterator[Block]:
    """`parts` in order, in blocks of at most `most` clients; a cell's clients spread evenly over its own."""
    block: list[Part] = []
    for part in parts:
        pieces = -(-len(part.clients) // (most or len(part.clients)))
        for clients in np.array_split(part.clients, pieces):
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
        room = most - num_clients(first)
        if room > 0:
            first.append(replace(part, clients=part.clients[:room]))
        if len(part.clients) > room:
            second.append(replace(part, clients=part.clients[max(room, 0) :]))
    return first, second


def stacked_start(block: Block) -> State:
    """Every client's start model, new tensors [client, ...]."""
    return _stack([(part.state, len(part.clients)) for part in block])


def stacked_constants(block: Block) -> State:
    """Every client's frozen tensors that are cut with the model, [client, ...]."""
    return _stack([(part.job.constants, len(part.clients)) for part in block])


def _stack(states: Sequence[tuple[State, int]]) -> State:
    return {
        name: torch.cat([state[name].expand(count, *state[name].shape) for state, count in states])
        for name in states[0][0]
    }


class Drawn(NamedTuple):
    """What chance gives the clients of a block: the samples of their batches, [step, client, batch], and the keys of
    the model's random layers, [step, client], where it has any.

    With augmentation, variant v of sample i is number v * len(data) + i.
    """

    indices: torch.Tensor
    keys: torch.Tensor | None

    def at(self, steps: slice | torch.Tensor) -> Drawn:
        """Of some steps alone."""

        def rows(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[steps] if isinstance(steps, slice) else tensor.index_select(0, steps)

        return Drawn(rows(self.indices), None if self.keys is None else rows(self.keys))


class Samples:
    """The task's data and who holds what, on the data's device; safe to read from several threads."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.key_names = key_names(task.model)
        device = task.data.inputs.device
        self._order = torch.from_numpy(task.split.order).to(device)
        # Rows of one axis: torch copies them faster than rows of many.
        self._rows = task.data.inputs.reshape(len(task.data), -1)
        put_in_large_pages(self._rows)

    def draw(self, block: Block, edge_rounds: int = 1) -> Drawn:
        """For the steps of the block's edge round and those after it."""
        return Drawn(self._indices(block, edge_rounds), self._keys(block, edge_rounds))

    def room_for_keys(self, clients: int) -> tuple[torch.Tensor, State]:
        """A tensor [client] for the keys of the step at hand, and the constants that read it."""
        key = torch.zeros(clients, dtype=torch.int64, device=self._order.device)
        return key, dict.fromkeys(self.key_names, key)

    def _keys(self, block: Block, edge_rounds: int) -> torch.Tensor | None:
        if not self.key_names:
            return None
        part, steps = block[0], self.task.local.local_steps
        return step_keys(
            self.task.seeds.key("layers", part.job.round),
            moved(torch.from_numpy(np.concatenate([part.clients for part in block])), self._order.device),
            first_step=part.edge_round * steps,
            steps=edge_rounds * steps,
        )

    def _indices(self, block: Block, edge_rounds: int) -> torch.Tensor:
        task, part = self.task, block[0]
        local, device = task.local, self._order.device
        clients = np.concatenate([part.clients for part in block])
        offsets, sizes = task.split.offsets[clients], task.split.offsets[clients + 1]
        sizes, steps = sizes - offsets, edge_rounds * local.local_steps
        positions = torch.empty(len(clients), steps, local.batch_size, dtype=torch.int64, device=device)
        for size in np.unique(sizes):
            equal = np.flatnonzero(sizes == size)
            positions[moved(torch.from_numpy(equal), device)] = batches_of_clients(
                task.seeds.key("batches", part.job.round),
                moved(torch.from_numpy(clients[equal]), device),
                int(size),
                first_step=part.edge_round * local.local_steps,
                steps=steps,
                batch_size=local.batch_size,
            )
        first = moved(torch.from_numpy(offsets), device)
        samples = self._order[first[:, None, None] + positions]
        if task.augment is not None:
            samples = samples + len(task.data) * variants_of_clients(
                task.seeds.key("augment", part.job.round),
                moved(torch.from_numpy(clients), device),
                task.augment.num_variants,
                first_step=part.edge_round * local.local_steps,
                steps=steps,
                batch_size=local.batch_size,
            )
        return samples.transpose(0, 1).contiguous()

    def batches(self, drawn: Drawn, key: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs [client, batch, ...] and targets [client, batch] of one step after another, while `key` [client] has
        that step's keys.

        All steps share one buffer, so that the samples stay in cache: use a batch before the next.
        """
        indices, keys = drawn
        inputs, targets, augment = self.task.data.inputs, self.task.data.targets, self.task.augment
        shape = indices.shape[1:]
        buffer = self._rows.new_empty(shape.numel(), self._rows.shape[1])
        view = buffer.view(*shape, *inputs.shape[1:])
        for number, step in enumerate(indices.flatten(start_dim=1)):
            if keys is not None:
                key.copy_(keys[number])
            if augment is None:
                torch.index_select(self._rows, 0, step, out=buffer)
                yield view, targets.index_select(0, step).view(shape)
            else:
                variant, sample = step // len(inputs), step % len(inputs)
                torch.index_select(self._rows, 0, sample, out=buffer)
                images = augment.apply(view.flatten(end_dim=1), variant).view(view.shape)
                yield images, targets.index_select(0, sample).view(shape)
