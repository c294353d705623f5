"""A client's local steps on its submodel (HIST Eq. (5)): its gradient, what is added to it, and the optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from histfl.data.inputs import Inputs, called
from histfl.devices import Precision, layers
from histfl.errors import UsageError
from histfl.partition import with_tensors
from histfl.training.answers import in_a_local_step
from histfl.training.corrections import MakeCorrection, name_of
from histfl.training.optimisers import SGD, InPlaceSGD, Optimiser, Slots, Tensors, checked_slots, clipped
from histfl.training.schedules import Constant, Schedule, check_rate, schedule_factor


@dataclass(frozen=True)
class LocalTraining:
    """How clients train: a step is the optimiser's, by the gradient g of a batch's loss, bounded to `clip_norm` (None:
    as it is), plus `proximal` (x - x_0), where x_0 is the edge's model with which the edge round began: FedProx
    (arXiv 1812.06127); and plus what the `correction` makes, whose numbers the engine brings.

    The optimiser's rate is that of the whole run; `at` a round it follows the `schedule`, after a rise over
    `warmup_rounds`.
    """

    local_steps: int = 20
    batch_size: int = 50
    optimiser: Optimiser = field(default_factory=SGD)
    clip_norm: float | None = None
    precision: Precision = "float32"
    proximal: float = 0.0
    correction: MakeCorrection | None = None
    schedule: Schedule = field(default_factory=Constant)
    warmup_rounds: int = 0

    def __post_init__(self) -> None:
        for name in ("local_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)}; it must be at least 1")
        for name in ("proximal", "warmup_rounds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"{name} = {getattr(self, name)}; it must be at least 0 and finite")
        plain = isinstance(self.optimiser, SGD) and not self.optimiser.momentum
        if self.correction is not None and not plain:
            raise UsageError(
                f"training.correction = {name_of(self.correction)!r} takes a client's move for a multiple of its gradients, as "
                "plain SGD's is; use optimiser = 'sgd' and momentum = 0, or leave the correction out"
            )
        if self.changes_rate:
            check_rate(self.optimiser, self.schedule, self.warmup_rounds)

    @property
    def changes_rate(self) -> bool:
        """Whether rounds have learning rates of their own."""
        return self.warmup_rounds > 0 or not isinstance(self.schedule, Constant)

    def at(self, round: int) -> LocalTraining:
        """With the rate of that global round, for good."""
        if not self.changes_rate:
            return self
        rate = self.learning_rate * schedule_factor(self.schedule, round, self.warmup_rounds)
        optimiser = replace(self.optimiser, learning_rate=rate)  # type: ignore[type-var]
        return replace(self, optimiser=optimiser, schedule=Constant(), warmup_rounds=0)

    @property
    def learning_rate(self) -> float:
        """What an update is a multiple of; 1 where the optimiser has no such rate."""
        return float(getattr(self.optimiser, "learning_rate", 1.0))

    @property
    def path(self) -> float:
        """How far a client's plain steps of an edge round go by a gradient of 1."""
        return self.local_steps * self.learning_rate

    def slots(self, start: Tensors, correction: Tensors | None = None) -> Slots:
        """The slots before the first step: the first model and the correction (None: zeros), if the steps read them,
        then the optimiser's."""
        own: list[list[torch.Tensor]] = []
        if self.proximal:
            own.append([tensor.clone() for tensor in start])
        if self.correction is not None:
            own.append([torch.zeros_like(x) for x in start] if correction is None else list(correction))
        return (*own, *checked_slots(self.optimiser, start))

    @torch.no_grad()
    def step(self, tensors: Tensors, gradients: Tensors, slots: Slots, *, stacked: bool = False) -> None:
        """One step of one client's tensors or, `stacked`, of those [client, ...] of many; it changes tensors and
        slots."""
        if self.clip_norm is not None:
            gradients = clipped(gradients, self.clip_norm, stacked=stacked)
        if self.proximal:
            first, slots = slots[0], slots[1:]
            moves = torch._foreach_sub(list(tensors), first)
            gradients = torch._foreach_add(list(gradients), moves, alpha=self.proximal)
        if self.correction is not None:
            correction, slots = slots[0], slots[1:]
            gradients = torch._foreach_add(list(gradients), correction)
        self.optimiser.step(tensors, gradients, slots)

    def fused(self) -> InPlaceSGD | None:
        """The step as one that needs the gradient of a single tensor at a time, where it is one."""
        plain = self.clip_norm is None and not self.proximal and self.correction is None
        return self.optimiser.fused() if plain else None


def client_steps(
    model: nn.Module,
    start: dict[str, torch.Tensor],
    constants: dict[str, torch.Tensor],
    batches: Iterable[tuple[Inputs, torch.Tensor]],
    *,
    loss: Callable[[Any, torch.Tensor], torch.Tensor],
    training: LocalTraining,
    correction: dict[str, torch.Tensor] | None = None,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """One client's model after a step on each batch (HIST Eq. (5)), and the sum of the batch losses.

    The compact tensors are run through the original module, so no submodel is ever rebuilt. `constants` are read
    anew at every batch: the keys of random layers change. `correction` is added to every gradient, where `training`
    has one.
    """
    state = {name: tensor.detach().clone().requires_grad_() for name, tensor in start.items()}
    tensors = tuple(state.values())
    given = None if correction is None else [correction[name] for name in state]
    slots = training.slots([tensor.detach() for tensor in tensors], given)
    total = torch.zeros((), device=next(iter(start.values())).device)
    for inputs, targets in batches:
        backward = partial(_loss_and_gradients, tensors, inputs, targets, loss, training)
        value, gradients = with_tensors(model, {**state, **constants}, backward)
        training.step(tensors, gradients, slots)
        total = total + value.detach()
    return {name: tensor.detach() for name, tensor in state.items()}, total


def _loss_and_gradients(
    trained: tuple[torch.Tensor, ...],
    inputs: Inputs,
    targets: torch.Tensor,
    loss: Callable[[Any, torch.Tensor], torch.Tensor],
    training: LocalTraining,
    model: nn.Module,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    with in_a_local_step():
        with layers(training.precision, targets.device):
            value = loss(called(model, inputs), targets)
        return value, torch.autograd.grad(value, trained, materialize_grads=True)
