"""The clients' losses side by side, and where they pull the outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from histfl.devices import numba_installed, triton_installed
from histfl.engines.cpu.loss_kernels import cross_entropy_kernel
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
        (pull,) = torch.autograd.grad(values, leaf, torch.ones_like(values))
        return values.detach(), pull

    def of_classes(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (cross_entropies if outputs.dim() == 3 else by_autograd)(outputs, targets)

    return of_classes if loss is F.cross_entropy else by_autograd


@torch.no_grad()
def cross_entropies(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of outputs [client, batch, class]: the mean of -log p(target) over the batch, p being the softmax of the
    outputs, and its gradient (p - 1[target]) / batch, both from one softmax."""
    if outputs.is_cuda and outputs.dtype is torch.float32 and triton_installed():
        from histfl.engines.gpu import losses as gpu_losses

        if outputs.shape[2] <= gpu_losses.MOST_CLASSES:
            return gpu_losses.cross_entropies(outputs, targets)
    if _few(outputs) and targets.dtype is torch.int64:
        losses, pull = outputs.new_empty(len(outputs)), torch.empty_like(outputs)
        kernel = cross_entropy_kernel(str(outputs.dtype).removeprefix("torch."))
        kernel(losses.numpy(), pull.numpy(), outputs.numpy(), targets.numpy())
        return losses, pull
    # Classes on the axis before the last: torch's softmax over few entries is several times faster so.
    log_p = torch.log_softmax(outputs.transpose(1, 2), dim=1)
    right = targets.unsqueeze(1)
    log_p_right = log_p.gather(1, right)
    pull = log_p.exp_().scatter_(1, right, torch.expm1(log_p_right)).div_(targets.shape[1])
    return log_p_right.mean(dim=(1, 2)).neg_(), pull.transpose(1, 2)


def _few(outputs: torch.Tensor) -> bool:
    """Whether the compiled kernel is there for them, and faster than torch."""
    known = outputs.device.type == "cpu" and outputs.dtype in (torch.float32, torch.float64)
    return known and outputs.numel() <= FEW_OUTPUTS and numba_installed()
