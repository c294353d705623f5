"""SGD of many clients at once, the same as `histfl.training.local` computes for one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from histfl.training import LocalTraining


class StackedSGD:
    """Updates `tensors` [client, ...] in place; keeps the velocity (in the tensors given for it, zeros at
    first), and clips every client by its own norm."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        training: LocalTraining,
        velocity: list[torch.Tensor] | None = None,
    ) -> None:
        self.tensors = tuple(tensors)
        self.training = training
        self.velocity = velocity

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        if not self.tensors:
            return
        training, step = self.training, list(gradients)
        if training.clip_norm is not None:
            step = _clipped(step, training.clip_norm)
        if training.weight_decay:
            step = list(torch._foreach_add(step, self.tensors, alpha=training.weight_decay))
        if training.momentum:
            if self.velocity is None:
                self.velocity = [change.clone() for change in step]
            else:
                torch._foreach_mul_(self.velocity, training.momentum)
                torch._foreach_add_(self.velocity, step)
            step = self.velocity
        torch._foreach_add_(self.tensors, step, alpha=-training.learning_rate)


def _clipped(gradients: Sequence[torch.Tensor], clip_norm: float) -> list[torch.Tensor]:
    """Gradients [client, ...], each client's scaled to at most `clip_norm` over all tensors."""
    norms = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients])
    scale = (clip_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    return [g * scale.view(-1, *[1] * (g.dim() - 1)) for g in gradients]
