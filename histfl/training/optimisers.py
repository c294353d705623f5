"""Optimisers: what a client's local step makes of its gradient.

A new one is a frozen dataclass, whose fields are its settings, and a line in `OPTIMISERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Protocol

import torch

from histfl import arguments
from histfl.errors import UsageError, shown
from histfl.settings import SMALLEST, check_given, made

Tensors = Sequence[torch.Tensor]
# What an optimiser keeps: for each slot, a tensor to every one that it steps.
Slots = tuple[list[torch.Tensor], ...]


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
        arguments.positive("learning_rate", self.learning_rate)
        arguments.below_one("momentum", self.momentum)
        arguments.not_negative("weight_decay", self.weight_decay)

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


@dataclass(frozen=True)
class Adam:
    """Adam as torch.optim.Adam computes it (arXiv 1412.6980); its means start from zero in every edge round."""

    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    decoupled: ClassVar[bool] = False  # whether weights decay by themselves, and not by way of the gradient

    def __post_init__(self) -> None:
        arguments.positive("learning_rate", self.learning_rate)
        arguments.positive("optimiser.eps", self.eps, least=SMALLEST)  # which float32 can tell from 0
        arguments.below_one("optimiser.beta1", self.beta1)
        arguments.below_one("optimiser.beta2", self.beta2)
        arguments.not_negative("weight_decay", self.weight_decay)

    def slots(self, start: Tensors) -> Slots:
        """The means of gradients and of their squares, and the number of steps, as a tensor that a replay counts on."""
        counts = [tensor.new_zeros(_one_a_row(tensor), dtype=torch.float32) for tensor in start]
        return [torch.zeros_like(x) for x in start], [torch.zeros_like(x) for x in start], counts

    def step(self, tensors: Tensors, gradients: Tensors, slots: Slots) -> None:
        means, squares, counts = slots
        torch._foreach_add_(counts, 1.0)
        if all(x.is_contiguous() for each in (tensors, gradients, means, squares) for x in each):
            self._in_one_pass(tensors, gradients, slots)
        else:
            self._in_passes(tensors, gradients, slots)

    def _in_one_pass(self, tensors: Tensors, gradients: Tensors, slots: Slots) -> None:
        """By torch's kernel, which walks over memory and not over axes. All counts of a tensor are one."""
        means, squares, counts = slots
        step = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        step(
            list(tensors),
            list(gradients),
            means,
            squares,
            [],
            [count.view(-1)[:1] for count in counts],
            lr=self.learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def _in_passes(self, tensors: Tensors, gradients: Tensors, slots: Slots) -> None:
        for tensor, gradient, mean, square, count in zip(tensors, gradients, *slots, strict=True):
            if self.weight_decay and self.decoupled:
                tensor.mul_(1 - self.learning_rate * self.weight_decay)
            elif self.weight_decay:
                gradient = gradient + self.weight_decay * tensor
            mean.lerp_(gradient, 1 - self.beta1)
            square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
            # The means are those of so few steps that they still lean to the zeros with which they began.
            steps = count.double()
            unbiased = mean / (1 - self.beta1**steps).to(mean.dtype)
            size = (square / (1 - self.beta2**steps).to(square.dtype)).sqrt()
            tensor.addcdiv_(unbiased, size + self.eps, value=-self.learning_rate)

    def fused(self) -> InPlaceSGD | None:
        return None


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay bypasses its means, as torch.optim.AdamW (arXiv 1711.05101)."""

    decoupled: ClassVar[bool] = True


def _one_a_row(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape of a number for each of a tensor's rows, which may be the clients."""
    return (len(tensor), *[1] * (tensor.dim() - 1)) if tensor.dim() else ()


OPTIMISERS: dict[str, Callable[..., Optimiser]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
SHARED = ("learning_rate", "momentum", "weight_decay")  # settings that several have: keys of [training]


def make_optimiser(name: str, options: Mapping[str, Any], shared: Mapping[str, Any]) -> Optimiser:
    """The named optimiser from its `options` and those of the `shared` settings that it has."""
    check_given("training.optimiser", "optimiser", name, OPTIMISERS)
    if own := sorted(options.keys() & {"name", *SHARED}):
        home = "optimiser" if own[0] == "name" else own[0]
        raise UsageError(f"unknown key optimiser.{own[0]}; write it as training.{home}")
    takes = signature(OPTIMISERS[name]).parameters
    given = {key: shared[key] for key in SHARED if key in takes}
    return made("optimiser", OPTIMISERS, name, {**given, **options}, key="training.optimiser")


def check_optimiser(optimiser: Any, place: str) -> Optimiser:
    """`optimiser`, or a UsageError where it is none."""
    for method in ("slots", "step", "fused"):
        if not callable(getattr(optimiser, method, None)):
            raise UsageError(f"{place} has no method {method}; see histfl.training.optimisers.Optimiser")
    return optimiser  # type: ignore[no-any-return]


def checked_slots(optimiser: Optimiser, start: Tensors) -> Slots:
    """The slots before the first step, or a UsageError where an optimiser of the user's own gives none."""
    found: Any = optimiser.slots(start)
    if not isinstance(found, tuple) or not all(
        isinstance(slot, list | tuple)
        and len(slot) == len(start)
        and all(isinstance(x, torch.Tensor) for x in slot)
        for slot in found
    ):
        raise UsageError(
            f"slots of the optimiser {type(optimiser).__name__} returns {shown(found)}; it must return a tuple of lists, "
            "each with a tensor for every one of `start`"
        )
    return found


def clipped(gradients: Tensors, clip_norm: float, *, stacked: bool) -> list[torch.Tensor]:
    """A client's gradients, scaled to a norm of at most `clip_norm` over all of them; `stacked`, those [client, ...]
    of many clients, each by its own norm."""
    axes = int(stacked)
    norm = torch.linalg.vector_norm
    norms = torch.stack([norm(g.reshape(*g.shape[:axes], -1), dim=-1) for g in gradients])
    scale = (clip_norm / (norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    return [g * scale.view(scale.shape + (1,) * (g.dim() - axes)) for g in gradients]
