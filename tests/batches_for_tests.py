"""Which samples a client sees, written down plainly: the oracle of `batches_of_clients`."""

from __future__ import annotations

import torch

from histfl.seeds import random_bits


def client_batches(
    key: int, client: int, num_samples: int, *, first_step: int, steps: int, batch_size: int
) -> torch.Tensor:
    """Positions in one client's own data, [step, batch]."""
    first = first_step * batch_size
    stream = torch.arange(first, first + steps * batch_size)
    first_epoch = first // num_samples
    epochs = torch.arange(first_epoch, (first + steps * batch_size - 1) // num_samples + 1)
    samples = torch.arange(num_samples)
    order = random_bits(key, torch.tensor(client), epochs[:, None], samples).argsort(dim=1)
    return order[stream // num_samples - first_epoch, stream % num_samples].view(steps, batch_size)
