"""Optimisers: what a client's local step makes of its gradient.

A new one is a frozen dataclass, whose fields are its settings, and a line in `OPTIMISERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import torch

from histfl.errors import UsageError
from histfl.settings import made

Tensors = Sequence[torch.Tensor]
Slots = tuple[
    list[torch.Tensor], ...
]  # what an optimiser keeps: for each slot, a tensor to every one that it steps


class Optimiser(Protocol):
    """An elementwise step: it takes the tensors [...] of one client and those [client, ...] of many alike.

    A client keeps nothing between edge rounds, so slots begin anew in each.
    """

    def slots(self, start: Tensors) -> Slots:
        """The slots before the first step, as new tensors, from the edge round's first model.

        A slot's tensor has as many axes as the one of `start` that it is for, of the same length or 1 (the first one,
        which may be the clients', of the same). What pulls towards the first model keeps a copy of it here.
        """
        ...

    def step(self, tensors: Tensors, gradients: Tensors, slots: Slots) -> None:
        """One step, which changes `tensors` and `slots` in place. No number in it may wait for a GPU."""
        ...

    def fused(self) -> InPlaceSGD | None:
        """The same step as plain SGD, which kernels take together with the product that is the gradient; None
        where it is another, or has slots."""
        ...


@dataclass(frozen=True)
class InPlaceSGD:
    """Plain SGD, x <- keep * x - learning_rate * gradient, with keep = 1 - learning_rate * weight_decay."""

    learning_rate: float
    keep: float

    def step(self, tensor: torch.Tensor, gradient: torch.Tensor) -> None:
        """One step of `tensor`, in place."""
        if self.keep != 1.0:
            tensor.mul_(self.keep)
        tensor.sub_(gradient, alpha=self.learning_rate)


@dataclass(frozen=True)
class SGD:
    """SGD as torch.optim.SGD computes it; momentum starts from zero in every edge round."""

    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise UsageError(f"learning_rate = {self.learning_rate}; it must be positive and finite")

    def slots(self, start: Tensors) -> Slots:
        return ([torch.zeros_like(tensor) for tensor in start],) if self.momentum else ()

    def step(self, tensors: Tensors, gradients: Tensors, slots: Slots) -> None:
        change: Tensors = gradients
        if self.weight_decay:
            change = torch._foreach_add(list(change), list(tensors), alpha=self.weight_decay)
        if self.momentum:
            (velocity,) = slots
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, list(change))
            change = velocity
        torch._foreach_add_(list(tensors), list(change), alpha=-self.learning_rate)

    def fused(self) -> InPlaceSGD | None:
        if self.momentum:
            return None
        return InPlaceSGD(self.learning_rate, keep=1.0 - self.learning_rate * self.weight_decay)


OPTIMISERS: dict[str, Callable[..., Optimiser]] = {"sgd": SGD}
GIVEN = "given"  # in place of a name: an object of the user's own, from Python
SHARED = ("learning_rate", "momentum", "weight_decay")  # settings that several have: keys of [training]


def make_optimiser(name: str, options: Mapping[str, Any], shared: Mapping[str, Any]) -> Optimiser:
    """The named optimiser from its `options` and those of the `shared` settings that it has."""
    if name == GIVEN:
        raise UsageError(
            f"training.optimiser = {name!r} is for Python, histfl.train(optimiser=...); use {' or '.join(OPTIMISERS)}"
        )
    if own := sorted(options.keys() & set(SHARED)):
        raise UsageError(f"unknown key optimiser.{own[0]}; write it as training.{own[0]}")
    takes = signature(OPTIMISERS[name]).parameters
    given = {key: shared[key] for key in SHARED if key in takes}
    return made("optimiser", OPTIMISERS, name, {**given, **options}, key="training.optimiser")


def check_optimiser(optimiser: Any, place: str) -> Optimiser:
    """`optimiser`, or a UsageError where it is none."""
    for method in ("slots", "step", "fused"):
        if not callable(getattr(optimiser, method, None)):
            raise UsageError(f"{place} has no method {method}; see histfl.training.optimisers.Optimiser")
    return optimiser  # type: ignore[no-any-return]


def clipped(gradients: Tensors, clip_norm: float, *, stacked: bool) -> list[torch.Tensor]:
    """A client's gradients, scaled to a norm of at most `clip_norm` over all of them; `stacked`, those [client, ...]
    of many clients, each by its own norm."""
    axes = int(stacked)
    norm = torch.linalg.vector_norm
    norms = torch.stack([norm(g.reshape(*g.shape[:axes], -1), dim=-1) for g in gradients])
    scale = (clip_norm / (norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    return [g * scale.view(scale.shape + (1,) * (g.dim() - axes)) for g in gradients]
