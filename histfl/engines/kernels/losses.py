"""The clients' losses side by side, and their gradient with respect to the outputs.

The cross-entropy of a few outputs is compiled by numba into one pass: between the large products of a step, each of
the dozen torch operations that it replaces takes several microseconds to begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from histfl.devices import numba_installed, triton_installed
from histfl.engines.kernels.compiled import compiled
from histfl.training.objective import Loss

FEW_OUTPUTS = 2**13  # of a block: torch's exponentials are faster, but its operations take longer to begin
StackedLoss = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def stacked_loss(loss: Loss) -> StackedLoss:
    """A function of outputs [client, batch, ...] and targets [client, batch] that gives every client's
    `loss`, [client], and its gradient with respect to the outputs."""

    each = torch.func.vmap(loss)

    def by_autograd(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            values = each(leaf, targets)
        (grad,) = torch.autograd.grad(values, leaf, torch.ones_like(values))
        return values.detach(), grad

    def of_classes(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (cross_entropies if outputs.dim() == 3 else by_autograd)(outputs, targets)

    return of_classes if loss is F.cross_entropy else by_autograd


@torch.no_grad()
def cross_entropies(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of outputs [client, batch, class]: the mean of -log p(target) over the batch, p being the softmax of the
    outputs, and its gradient (p - 1[target]) / batch, both from one softmax."""
    if outputs.is_cuda and outputs.dtype is torch.float32 and triton_installed():
        from histfl.engines.kernels import gpu_losses

        if outputs.shape[2] <= gpu_losses.MOST_CLASSES:
            return gpu_losses.cross_entropies(outputs, targets)
    if _few(outputs) and targets.dtype is torch.int64:
        losses, grad = outputs.new_empty(len(outputs)), torch.empty_like(outputs)
        kernel = _cross_entropy_kernel(str(outputs.dtype).removeprefix("torch."))
        kernel(losses.numpy(), grad.numpy(), outputs.numpy(), targets.numpy())
        return losses, grad
    # Classes on the axis before the last: torch's softmax over few entries is several times faster so.
    log_p = torch.log_softmax(outputs.transpose(1, 2), dim=1)
    right = targets.unsqueeze(1)
    log_p_right = log_p.gather(1, right)
    grad = log_p.exp_().scatter_(1, right, torch.expm1(log_p_right)).div_(targets.shape[1])
    return log_p_right.mean(dim=(1, 2)).neg_(), grad.transpose(1, 2)


def _few(outputs: torch.Tensor) -> bool:
    """Whether the compiled kernel is there for them, and faster than torch."""
    known = outputs.device.type == "cpu" and outputs.dtype in (torch.float32, torch.float64)
    return known and outputs.numel() <= FEW_OUTPUTS and numba_installed()


@cache
def _cross_entropy_kernel(kind: str) -> Callable[..., None]:
    """`_cross_entropies` for outputs of that kind (float32 or float64), compiled once and kept on disk for the
    next process."""
    from numba import types

    number = getattr(types, kind)
    outputs = types.Array(number, 3, "A")
    signature = types.void(types.Array(number, 1, "C"), outputs, outputs, types.Array(types.int64, 2, "A"))
    return compiled(_cross_entropies, signature)


def _cross_entropies(losses: Any, grad: Any, outputs: Any, targets: Any) -> None:
    """losses [client] <- mean over the batch of -log p(target), p being the softmax of outputs
    [client, batch, class], and grad [client, batch, class] <- its gradient."""
    clients, batch, classes = outputs.shape
    for i in range(clients):
        total = 0.0
        for j in range(batch):
            target = targets[i, j]
            if not 0 <= target < classes:
                raise IndexError("a target is no class of the model's outputs")
            values, p = outputs[i, j], grad[i, j]
            most = values[0]
            for k in range(1, classes):
                most = max(most, values[k])
            whole = outputs.dtype.type(0)
            for k in range(classes):
                p[k] = math.exp(values[k] - most)
                whole += p[k]
            scale = 1 / (whole * batch)
            for k in range(classes):
                p[k] *= scale
            log_p = values[target] - most - math.log(whole)
            p[target] = math.expm1(log_p) / batch  # p - 1, exact where p is near 1
            total -= log_p
        losses[i] = total / batch
