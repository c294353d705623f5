"""The self-check: a compact submodel must be the masked full model, or its layer is not cut.

Tracing follows axes, not meaning. A norm over the cut axis, a reshape with a number written into it or
an average over units all trace well and break when cut. So every choice is tried: random parts of
the units, compact tensors through the copy that clients train, against the full tensors with all other
entries set to zero. Outputs and the gradients of all kept entries must agree in float64, in training, where a
model may have further parts. One that draws random numbers there is compared in evaluation, and need but run in training.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from histfl.devices import generator_state
from histfl.errors import PartitionError, in_one_line
from histfl.partition.module import (
    Inputs,
    few_examples,
    map_tensors,
    outputs_of,
    quietly,
    training_copy,
    with_tensors,
)
from histfl.partition.plan import Plan, State, UnitGroup
from histfl.partition.submodel import Submodel, extract, mask

# Relative to the largest entry.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}

_ALL_IN = {torch.float64: nn.Module.double, torch.float32: nn.Module.float}  # but for complex numbers
_COARSER = {torch.float32, torch.float16, torch.bfloat16, torch.complex64}
_ATTEMPTS = 5  # to find parameters with which every cut layer has a say in the output


class _Formats(TorchDispatchMode):
    """Sees the number formats of all that is computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[torch.dtype] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, seconds of modules, to keep it away from what it does not compile."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        self.seen |= {leaf.dtype for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)}
        return found


@dataclass(frozen=True)
class Bench:
    """A copy of the model to try cuts on, a few inputs, the number format by which equal results agree, and whether
    it draws random numbers in training."""

    model: nn.Module
    inputs: Inputs
    dtype: torch.dtype
    random: bool

    @classmethod
    def of(cls, model: nn.Module, example_inputs: Inputs) -> Bench:
        """The bench in float64, or in float32 for a model that does not run in float64."""
        failure = ""
        for dtype in _TOLERANCE:
            copy = _without_dropout(_ALL_IN[dtype](training_copy(model)))
            inputs = map_tensors(partial(_cast, dtype), few_examples(example_inputs))
            device = next((parameter.device for parameter in copy.parameters()), torch.device("cpu"))
            try:
                with quietly(), _Formats() as formats:
                    before = generator_state(device)
                    outputs_of(copy, inputs)
                    random = not torch.equal(before, generator_state(device))
            except Exception as error:
                failure = in_one_line(error)
            else:
                # A model that casts to float32 by itself, as norms of transformers do, rounds as it does.
                exact = formats.seen.isdisjoint(_COARSER)
                if random:  # without running statistics BatchNorm uses the batch's here too
                    copy.eval()
                return cls(copy, inputs, dtype if exact else torch.float32, random)
        raise PartitionError(
            f"{type(model).__name__} does not run in training on the example inputs ({failure}); give a "
            f"batch of several examples"
        )

    def failures(self, groups: Sequence[UnitGroup]) -> dict[str, str]:
        """Why some of `groups` cannot be cut, by name; empty when all of them can, together.

        All are tried at once, and halves only where that fails.
        """
        reason = self.difference(groups)
        if not reason:
            return {}
        if len(groups) == 1:
            return {groups[0].name: reason}
        middle = len(groups) // 2
        found = self.failures(groups[:middle]) | self.failures(groups[middle:])
        # Two halves that work alone but not together: give up one group, and be asked again.
        return found or {groups[-1].name: f"it cannot be cut together with {groups[0].name}: {reason}"}

    def difference(self, groups: Sequence[UnitGroup]) -> str:
        """How compact and masked model differ when `groups` are cut; empty if they do not."""
        plan = Plan.of(self.model, tuple(groups))
        generator = torch.Generator().manual_seed(0)
        # Two sets of different size: one alone may by chance be symmetric under a wrong order of units.
        for parts in (2, 3):
            kept = [
                torch.randperm(units, generator=generator)[: -(-units // parts)].sort().values
                for units in plan.units.tolist()
            ]
            submodel = Submodel(plan, tuple(kept))
            for attempt in range(_ATTEMPTS):
                reason, telling = self._compare(submodel, attempt)
                if reason:
                    return reason
                if telling:
                    break
        return ""

    def _compare(self, submodel: Submodel, attempt: int) -> tuple[str, bool]:
        """The difference, and whether it is telling: every cut parameter that is trained has a gradient."""
        plan = submodel.plan
        # Frozen parameters that stay whole are the same in both, and the copy has them.
        names = plan.trainable | submodel.positions.keys()
        state = {
            name: _varied(value.detach(), attempt)
            for name, value in self.model.named_parameters()
            if name in names
        }
        try:
            compact = extract(state, submodel)
            if self.random:
                self._run_in_training(compact, plan.trainable)
            outputs, gradients = self._run(compact, plan.trainable)
        except Exception as error:
            return f"the cut layer does not run ({in_one_line(error)})", True
        masked = {name: value * mask(submodel, name).to(value) for name, value in state.items()}
        full_outputs, full_gradients = self._run(masked, plan.trainable)
        if [value.shape for value in outputs] != [value.shape for value in full_outputs]:
            return "the cut changes the shape of the output", True
        for value, full in zip(outputs, full_outputs, strict=True):
            if self._differ(value, full):
                return "the cut layer computes something else than the masked one", True
        kept = extract(full_gradients, submodel)
        scale = max((float(value.abs().max()) for value in kept.values() if value.numel()), default=0.0)
        for name, value in gradients.items():
            if self._differ(value, kept[name], scale):
                return f"the gradient of {name} differs from the masked one", True
        reached = {name for name, value in kept.items() if bool(value.any())}
        return "", reached >= plan.trainable & submodel.positions.keys()

    def _run_in_training(self, state: State, trainable: Collection[str]) -> None:
        try:
            self.model.train()
            self._run(state, trainable)
        finally:
            self.model.eval()

    def _run(self, state: State, trainable: Collection[str]) -> tuple[list[torch.Tensor], State]:
        """Outputs, and the gradients of a random weighting of them (zero where there is none)."""
        leaves = {name: value.detach().requires_grad_(name in trainable) for name, value in state.items()}
        trained = {name: value for name, value in leaves.items() if name in trainable}
        # What a forward pass changes in a buffer is not there in the next one.
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with quietly():
            outputs, found = with_tensors(
                self.model, {**leaves, **buffers}, lambda model: self._gradients(model, trained)
            )
        return [value.detach() for value in outputs], dict(zip(trained, found, strict=True))

    def _gradients(self, model: nn.Module, trained: State) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        outputs = outputs_of(model, self.inputs)
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(value.shape, generator=generator).to(value) for value in outputs]
        # One number: torch would import sympy to compare the shapes of outputs and weights.
        total = sum((value * weight).sum() for value, weight in zip(outputs, weights, strict=True))
        assert isinstance(total, torch.Tensor)
        total = total.real if total.is_complex() else total
        found = torch.autograd.grad(total, list(trained.values()), materialize_grads=True)
        return outputs, [gradient.to_dense() if gradient.is_sparse else gradient for gradient in found]

    def _differ(self, value: torch.Tensor, full: torch.Tensor, scale: float = 0.0) -> bool:
        if not full.numel():
            return False
        bound = _TOLERANCE[self.dtype] * max(scale, float(full.abs().max()))
        return not float((value - full).abs().max()) <= bound  # also true for NaN


def _varied(value: torch.Tensor, attempt: int) -> torch.Tensor:
    """The value itself at first; in later attempts noise of its size, so that zeros and dead ReLUs wake up."""
    if attempt == 0 or not value.numel():
        return value
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(attempt)).to(value)
    return (value.square().mean().sqrt() + 0.1) * noise


def _without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    return model


def _cast(dtype: torch.dtype, value: torch.Tensor) -> torch.Tensor:
    return value.to(dtype) if value.is_floating_point() else value
