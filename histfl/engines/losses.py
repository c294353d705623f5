"""The clients' losses side by side."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from histfl.training.jobs import Loss

StackedLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def stacked_loss(loss: Loss) -> StackedLoss:
    """`loss` of outputs [client, batch, ...] and targets [client, batch], for every client: [client]."""
    each: StackedLoss = torch.func.vmap(loss)
    return _cross_entropies if loss is F.cross_entropy else each


def _cross_entropies(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if outputs.dim() == 3:
        # Classes on the axis before the last: torch's softmax over few entries is several times faster so.
        return F.cross_entropy(outputs.transpose(1, 2).contiguous(), targets, reduction="none").mean(dim=1)
    return torch.func.vmap(F.cross_entropy)(outputs, targets)
