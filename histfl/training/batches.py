"""Which samples a client sees at which step, and which variants of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from histfl.arrays import Ints
from histfl.data.inputs import Inputs, chosen, mapped
from histfl.devices import moved
from histfl.seeds import random_bits
from histfl.training.jobs import Task


def batches_of_clients(
    key: int, clients: torch.Tensor, num_samples: int, *, first_step: int, steps: int, batch_size: int
) -> torch.Tensor:
    """Positions in the own data of each of `clients` [client], who hold `num_samples` each: [client, step, batch], for
    steps first_step to first_step + steps - 1, on the device of `clients`.

    A client's samples form an endless stream of epochs, each reshuffled, cut into batches of exactly `batch_size`; a
    batch may run over the end of an epoch into the next. The stream is a function of (key, client) alone, so no client
    keeps a position between rounds and every engine sees the same.
    """
    device = clients.device
    first, length = first_step * batch_size, steps * batch_size
    first_epoch, place = divmod(first, num_samples)
    epochs = torch.arange(first_epoch, (first + length - 1) // num_samples + 1, device=device)
    samples = torch.arange(num_samples, device=device)
    order = random_bits(key, clients[:, None, None], epochs[:, None], samples).argsort(dim=2)
    stream = order.flatten(start_dim=1)[:, place : place + length]
    return stream.view(len(clients), steps, batch_size)


def variants_of_clients(
    key: int, clients: torch.Tensor, num_variants: int, *, first_step: int, steps: int, batch_size: int
) -> torch.Tensor:
    """Which of `num_variants` of its samples each of `clients` [client] sees: [client, step, batch].

    A function of (key, client, step, place in the batch) alone, whichever samples stand there.
    """
    step = torch.arange(first_step, first_step + steps, device=clients.device)
    place = torch.arange(batch_size, device=clients.device)
    return random_bits(key, clients[:, None, None], step[:, None], place) % num_variants


@dataclass(frozen=True)
class BatchKeys:
    """Of the random streams that say which samples stand in a batch, and which variants of them."""

    samples: int
    variants: int

    @classmethod
    def of_round(cls, task: Task, round: int) -> BatchKeys:
        """Those of training in a global round."""
        return cls(task.seeds.key("batches", round), task.seeds.key("augment", round))


def batch_numbers(
    task: Task,
    clients: Ints,
    keys: BatchKeys,
    *,
    first_step: int,
    steps: int,
    order: torch.Tensor | None = None,
) -> torch.Tensor:
    """What each of `clients` [client] sees at some of its steps: numbers [client, step, batch], for `load_batch`.

    Variant v of sample i is number v * len(data) + i. `order` is the split's, where it lies on a device already; the
    numbers are found there.
    """
    first = task.split.offsets[clients]
    held = task.split.offsets[clients + 1] - first
    if order is None:  # of these clients alone, since there may be millions
        order = torch.from_numpy(np.concatenate([task.split.client(client) for client in clients]))
        first = held.cumsum() - held
    device, size = order.device, task.local.batch_size
    positions = torch.empty(len(clients), steps, size, dtype=torch.int64, device=device)
    for count in np.unique(held):
        equal = np.flatnonzero(held == count)
        positions[moved(torch.from_numpy(equal), device)] = batches_of_clients(
            keys.samples,
            moved(torch.from_numpy(clients[equal]), device),
            int(count),
            first_step=first_step,
            steps=steps,
            batch_size=size,
        )
    numbers = order[moved(torch.from_numpy(first), device)[:, None, None] + positions]
    if task.augment is None:
        return numbers
    who, variants = moved(torch.from_numpy(clients), device), task.augment.num_variants
    return numbers + len(task.data) * variants_of_clients(
        keys.variants, who, variants, first_step=first_step, steps=steps, batch_size=size
    )


def load_batch(task: Task, numbers: torch.Tensor) -> tuple[Inputs, torch.Tensor]:
    """Inputs and targets [sample, ...] of the samples, or variants of them, with those numbers [sample]."""
    data, augment = task.data, task.augment
    if augment is None:
        return chosen(data.inputs, numbers), data.targets[numbers]
    samples = numbers % len(data)
    images, variants = chosen(data.inputs, samples), numbers // len(data)
    return mapped(lambda x: augment.apply(x, variants), images), data.targets[samples]
