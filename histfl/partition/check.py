"""The self-check: a compact submodel must be the masked full model, or its layer is not cut.

Tracing follows axes, not meaning. A norm over the cut axis, a reshape with a number written into it or
an average over units all trace well and break when cut. So every choice is tried: half of the units
at random, compact tensors through the copy that clients train, against the full tensors with all other
entries set to zero. Outputs and the gradients of all kept entries must agree in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from histfl.errors import PartitionError
from histfl.partition.batchnorm import training_copy
from histfl.partition.draw import Submodel
from histfl.partition.extract import extract
from histfl.partition.forward import Inputs, few_examples, map_tensors, outputs_of, quietly, summary
from histfl.partition.masks import masks
from histfl.partition.plan import Plan
from histfl.partition.units import State, UnitGroup

# Relative to the largest entry. A model that casts to float32 by itself agrees to float32 rounding.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}


@dataclass(frozen=True)
class Bench:
    """A copy of the model, its parameters (random, so that no zero hides an error) and a few inputs."""

    model: nn.Module
    inputs: Inputs
    state: State
    dtype: torch.dtype

    @classmethod
    def of(cls, model: nn.Module, example_inputs: Inputs) -> Bench:
        """The bench in float64, or in float32 for a model that does not run in float64."""
        failure = ""
        for dtype in _TOLERANCE:
            # Without running statistics BatchNorm uses the batch's in eval mode too, and dropout is off.
            copy = training_copy(model).to(dtype).eval()
            inputs = map_tensors(
                lambda value, to=dtype: value.to(to) if value.is_floating_point() else value,  # type: ignore[misc]
                few_examples(example_inputs),
            )
            bench = cls(copy, inputs, _perturbed(copy), dtype)
            try:
                with quietly():
                    outputs_of(copy, inputs, bench.state)
            except Exception as error:
                failure = summary(error)
            else:
                return bench
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
        generator = torch.Generator().manual_seed(0)
        plan = Plan.of(self.model, tuple(groups))
        halves = [
            torch.randperm(group.num_units, generator=generator)[: (group.num_units + 1) // 2].sort().values
            for group in groups
        ]
        submodel = Submodel(plan, tuple(halves))
        held = {name: mask.to(self.state[name]) for name, mask in masks(submodel).items()}
        masked = {name: value * held[name] for name, value in self.state.items()}
        try:
            outputs, gradients = self._run(extract(self.state, submodel))
        except Exception as error:
            return f"the cut layer does not run ({summary(error)})"
        full_outputs, full_gradients = self._run(masked)
        if [value.shape for value in outputs] != [value.shape for value in full_outputs]:
            return "the cut changes the shape of the output"
        for value, full in zip(outputs, full_outputs, strict=True):
            if self._differ(value, full):
                return "the cut layer computes something else than the masked one"
        kept = extract(full_gradients, submodel)
        scale = max((float(value.abs().max()) for value in kept.values() if value.numel()), default=0.0)
        for name, value in gradients.items():
            if self._differ(value, kept[name], scale):
                return f"the gradient of {name} differs from the masked one"
        return ""

    def _run(self, state: State) -> tuple[list[torch.Tensor], State]:
        """Outputs, and the gradients of a random weighting of them (zero where there is none)."""
        leaves = {name: value.detach().requires_grad_() for name, value in state.items()}
        with quietly():
            outputs = outputs_of(self.model, self.inputs, leaves)
            generator = torch.Generator().manual_seed(1)
            weights = [
                torch.randn(value.shape, generator=generator, dtype=torch.float64) for value in outputs
            ]
            loss = sum(
                (value * weight.to(value)).sum() for value, weight in zip(outputs, weights, strict=True)
            )
            found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # type: ignore[arg-type]
        return [value.detach() for value in outputs], dict(zip(leaves, found, strict=True))

    def _differ(self, value: torch.Tensor, full: torch.Tensor, scale: float = 0.0) -> bool:
        if not full.numel():
            return False
        bound = _TOLERANCE[self.dtype] * max(scale, float(full.abs().max()))
        return not float((value - full).abs().max()) <= bound  # also true for NaN


def _perturbed(model: nn.Module) -> State:
    """The model's parameters, each with noise of a tenth of its size, and zeros no longer zero."""
    generator = torch.Generator().manual_seed(2)
    state: State = {}
    for name, value in model.named_parameters():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
        size = value.detach().square().mean().sqrt() if value.numel() else value.detach().sum()
        state[name] = value.detach() + 0.1 * torch.where(size > 0, size, torch.ones_like(size)) * noise
    return state
