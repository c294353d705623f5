"""The samples of a block's clients, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from histfl.data import CropFlip
from histfl.data.inputs import Inputs, mapped, parts
from histfl.devices import moved
from histfl.engines.blocks import Block
from histfl.engines.memory import put_in_large_pages
from histfl.partition import State
from histfl.training import Task
from histfl.training.batches import BatchKeys, batch_numbers
from histfl.training.dropout import key_names, step_keys


class Drawn(NamedTuple):
    """What chance gives the clients of a block: the `batch_numbers` of their samples, [step, client, batch], and the
    keys of the model's random layers, [step, client], where it has any."""

    numbers: torch.Tensor
    keys: torch.Tensor | None

    def at(self, steps: slice | torch.Tensor) -> Drawn:
        """Of some steps alone."""

        def rows(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[steps] if isinstance(steps, slice) else tensor.index_select(0, steps)

        return Drawn(rows(self.numbers), None if self.keys is None else rows(self.keys))


class Samples:
    """The task's data and who holds what, on the data's device; safe to read from several threads."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.key_names = key_names(task.model)
        device = task.data.device
        self._order = torch.from_numpy(task.split.order).to(device)
        # Rows of one axis: torch copies them faster than rows of many.
        self._rows = mapped(lambda x: x.reshape(len(x), -1), task.data.inputs)
        for rows in parts(self._rows):
            put_in_large_pages(rows)

    def draw(self, block: Block, edge_rounds: int = 1) -> Drawn:
        """For the steps of the block's edge round and those after it."""
        return Drawn(self._numbers(block, edge_rounds), self._keys(block, edge_rounds))

    def empty_keys(self, clients: int) -> tuple[torch.Tensor, State]:
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

    def _numbers(self, block: Block, edge_rounds: int) -> torch.Tensor:
        part, steps = block[0], self.task.local.local_steps
        numbers = batch_numbers(
            self.task,
            np.concatenate([part.clients for part in block]),
            BatchKeys.of_round(self.task, part.job.round),
            first_step=part.edge_round * steps,
            steps=edge_rounds * steps,
            order=self._order,
        )
        return numbers.transpose(0, 1).contiguous()

    def batches(self, drawn: Drawn, key: torch.Tensor) -> Iterator[tuple[Inputs, torch.Tensor]]:
        """Inputs and targets [client, batch, ...] of one step after another, while `key` [client] has that step's keys.

        All steps share one buffer, so that the samples stay in cache: use a batch before the next.
        """
        numbers, keys = drawn
        inputs, targets, augment = self.task.data.inputs, self.task.data.targets, self.task.augment
        shape, samples = numbers.shape[1:], len(self.task.data)
        of_targets = (*shape, *targets.shape[1:])
        buffers = mapped(lambda rows: rows.new_empty(shape.numel(), rows.shape[1]), self._rows)
        views = mapped(lambda buffer, x: buffer.view(*shape, *x.shape[1:]), buffers, inputs)
        copied = tuple(zip(parts(self._rows), parts(buffers), strict=True))
        for place, step in enumerate(numbers.flatten(start_dim=1)):
            if keys is not None:
                key.copy_(keys[place])
            sample = step if augment is None else step % samples
            for rows, buffer in copied:
                torch.index_select(rows, 0, sample, out=buffer)
            yield (
                views if augment is None else _varied(augment, views, step // samples),
                targets.index_select(0, sample).view(of_targets),
            )


def _varied(augment: CropFlip, views: Inputs, variant: torch.Tensor) -> Inputs:
    """Variants [client * batch] of images [client, batch, ...]."""
    return mapped(lambda x: augment.apply(x.flatten(end_dim=1), variant).view(x.shape), views)
