"""A client's local steps on its submodel (HIST Eq. (5))."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from histfl.errors import UsageError
from histfl.partition import with_tensors
from histfl.training.precision import Precision, layers


@dataclass(frozen=True)
class LocalTraining:
    """SGD at the clients, as torch.optim.SGD computes it; momentum starts from zero at every edge round,
    since a client keeps nothing between rounds. `clip_norm` bounds the gradient's norm (None: no bound)."""

    local_steps: int = 20
    batch_size: int = 50
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        for name in ("local_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)}; it must be at least 1")
        if not 0 < self.learning_rate < float("inf"):
            raise UsageError(f"learning_rate = {self.learning_rate}; it must be positive and finite")


def client_steps(
    model: nn.Module,
    start: dict[str, torch.Tensor],
    constants: dict[str, torch.Tensor],
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    training: LocalTraining,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """One client's model after a step on each batch, and the sum of the batch losses.

    The compact tensors are run through the original module, so no submodel is ever rebuilt. `constants` are read
    anew at every batch: the keys of random layers change.
    """
    state = {name: tensor.detach().clone().requires_grad_() for name, tensor in start.items()}
    velocity: list[torch.Tensor] = []
    total = torch.zeros((), device=next(iter(start.values())).device)
    for inputs, targets in batches:
        backward = partial(_loss_and_gradients, tuple(state.values()), inputs, targets, loss, training)
        value, gradients = with_tensors(model, {**state, **constants}, backward)
        with torch.no_grad():
            step = _step(tuple(state.values()), gradients, velocity, training)
            for tensor, change in zip(state.values(), step, strict=True):
                tensor.sub_(change, alpha=training.learning_rate)
            total = total + value.detach()
    return {name: tensor.detach() for name, tensor in state.items()}, total


def _loss_and_gradients(
    trained: tuple[torch.Tensor, ...],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    training: LocalTraining,
    model: nn.Module,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    with layers(training.precision, inputs.device):
        value = loss(model(inputs), targets)
    return value, torch.autograd.grad(value, trained, materialize_grads=True)


def _step(
    tensors: tuple[torch.Tensor, ...],
    gradients: tuple[torch.Tensor, ...],
    velocity: list[torch.Tensor],
    training: LocalTraining,
) -> list[torch.Tensor]:
    """The direction of one SGD step; `velocity` is carried from step to step."""
    step = list(gradients)
    if training.clip_norm is not None:
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in step]))
        scale = (training.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        step = [gradient * scale for gradient in step]
    if training.weight_decay:
        step = [g + training.weight_decay * x for g, x in zip(step, tensors, strict=True)]
    if training.momentum:
        step = [training.momentum * v + g for v, g in zip(velocity, step, strict=True)] if velocity else step
        velocity[:] = step
    return step
