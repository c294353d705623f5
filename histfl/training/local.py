"""A client's local steps on its submodel (HIST Eq. (5))."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from histfl.devices import Precision, layers
from histfl.errors import UsageError
from histfl.partition import with_tensors
from histfl.training.optimisers import SGD, InPlaceSGD, Optimiser, Slots, Tensors, clipped


@dataclass(frozen=True)
class LocalTraining:
    """How clients train. `clip_norm` bounds the norm of a client's gradient (None: no bound) before the optimiser
    sees it."""

    local_steps: int = 20
    batch_size: int = 50
    optimiser: Optimiser = field(default_factory=SGD)
    clip_norm: float | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        for name in ("local_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)}; it must be at least 1")

    @property
    def learning_rate(self) -> float:
        """What an update is a multiple of; 1 where the optimiser has no such rate."""
        return float(getattr(self.optimiser, "learning_rate", 1.0))

    @torch.no_grad()
    def step(self, tensors: Tensors, gradients: Tensors, slots: Slots, *, stacked: bool = False) -> None:
        """One step of one client's tensors or, `stacked`, of those [client, ...] of many; it changes tensors and
        slots."""
        if self.clip_norm is not None:
            gradients = clipped(gradients, self.clip_norm, stacked=stacked)
        self.optimiser.step(tensors, gradients, slots)

    def fused(self) -> InPlaceSGD | None:
        """The step as one that needs the gradient of a single tensor at a time, where it is one."""
        return None if self.clip_norm is not None else self.optimiser.fused()


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
    tensors = tuple(state.values())
    slots = training.optimiser.slots([tensor.detach() for tensor in tensors])
    total = torch.zeros((), device=next(iter(start.values())).device)
    for inputs, targets in batches:
        backward = partial(_loss_and_gradients, tensors, inputs, targets, loss, training)
        value, gradients = with_tensors(model, {**state, **constants}, backward)
        training.step(tensors, gradients, slots)
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
