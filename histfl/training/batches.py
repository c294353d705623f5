"""Which samples a client sees at which step, and which variants of them."""

from __future__ import annotations

import torch

from histfl.seeds import random_bits


def client_batches(
    key: int, client: int, num_samples: int, *, first_step: int, steps: int, batch_size: int
) -> torch.Tensor:
    """Positions in the client's own data, [step, batch], for steps first_step to first_step + steps - 1.

    The client's samples form an endless stream of epochs, each reshuffled, cut into batches of exactly
    `batch_size`; a batch may run over the end of an epoch into the next. The stream is a function of
    (key, client) alone, so no client keeps a position between rounds and every engine sees the same.
    """
    first = first_step * batch_size
    stream = torch.arange(first, first + steps * batch_size)
    first_epoch = first // num_samples
    epochs = torch.arange(first_epoch, (first + steps * batch_size - 1) // num_samples + 1)
    samples = torch.arange(num_samples)
    order = random_bits(key, torch.tensor(client), epochs[:, None], samples).argsort(dim=1)
    return order[stream // num_samples - first_epoch, stream % num_samples].view(steps, batch_size)


def batches_of_clients(
    key: int, clients: torch.Tensor, num_samples: int, *, first_step: int, steps: int, batch_size: int
) -> torch.Tensor:
    """`client_batches` of several `clients` [client] that hold `num_samples` each: [client, step, batch].

    Computed at once, on the device of `clients`.
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
