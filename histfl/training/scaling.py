"""Scaled submodels: what reads cut units gets their outputs times (1 / share held)^power, in training alone.

A layer that adds up the outputs of a quarter of its units gets about a quarter of the sum, and so does the gradient that
goes back through it. With power 1 the sum is as large as the whole model's: as dropout has it, the scaler of HeteroFL
(arXiv 2010.01264) and LoRA, whose pairs are at the scale alpha / rank of their own rank. The whole model holds every
unit, so that nothing is scaled when it is evaluated. HIST's masks say nothing of a scale: the paper's power is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from histfl.devices import moved
from histfl.errors import UsageError
from histfl.partition import Plan, State, Submodel

BUFFER = "scale_of_cut_inputs"
_CONVOLUTIONS = nn.modules.conv._ConvNd


@dataclass(frozen=True)
class Reader:
    """A layer that multiplies inputs by a weight, and the weight's axis along which they lie."""

    layer: str
    weight: str
    axis: int


@dataclass(frozen=True)
class Scaling:
    """The `power`, and the layers of a run's model that read cut units."""

    power: float = 0.0
    readers: tuple[Reader, ...] = ()

    def constants(self, submodel: Submodel, device: torch.device) -> State:
        """What each reader multiplies its inputs by, as its buffer: [1], or [kept input] where these differ."""
        return {
            f"{reader.layer}.{BUFFER}": moved(self._factors(submodel, reader), device)
            for reader in self.readers
        }

    def _factors(self, submodel: Submodel, reader: Reader) -> torch.Tensor:
        plan, dtype = submodel.plan, submodel.plan.dtypes[reader.weight]
        cuts = plan.cuts[reader.weight, reader.axis]
        by_group = {
            group: (plan.groups[group].num_units / len(submodel.kept[group])) ** self.power
            for group, _ in cuts
        }
        if len(cuts) == 1 and bool((cuts[0][1].unit >= 0).all()):
            return torch.tensor([by_group[cuts[0][0]]], dtype=dtype)
        factors = torch.ones(len(cuts[0][1].unit), dtype=dtype)
        for group, cut in cuts:
            factors[cut.unit >= 0] = by_group[group]
        return factors[submodel.positions[reader.weight][reader.axis]]


def scale_inputs(model: nn.Module, plan: Plan, power: float) -> Scaling:
    """Let the layers of a training copy that read the plan's units multiply their inputs by a buffer, 1 at first."""
    if power == 0:
        return Scaling()
    readers = _readers(model, plan)
    read = {group for reader in readers for group, _ in plan.cuts[reader.weight, reader.axis]}
    for number, group in enumerate(plan.groups):
        if number not in read:
            raise UsageError(
                f"method.scale = {power:g}: no linear or convolution layer is known to read the units of {group.name!r}; "
                "set it to 0, or exclude that layer from the cut (method.exclude)"
            )
    for reader in readers:
        layer = model.get_submodule(reader.layer)
        weight = layer.get_parameter("weight")
        layer.register_buffer(BUFFER, weight.new_ones(1), persistent=False)
        layer.register_forward_pre_hook(_scale_first)
    return Scaling(power, readers)


def is_scaled(layer: nn.Module) -> bool:
    return BUFFER in layer._buffers


def scale_ones(model: nn.Module) -> State:
    """The buffers of the layers that scale their inputs, by their names."""
    return {
        f"{name}.{BUFFER}": getattr(layer, BUFFER)
        for name, layer in model.named_modules()
        if is_scaled(layer)
    }


def scaled(inputs: torch.Tensor, scale: torch.Tensor, further: int) -> torch.Tensor:
    """Inputs [..., unit, (place, ...)] with so many `further` axes, times a client's scale [unit or 1]; or those of
    many clients, [client, ...], times theirs, [client, unit or 1]."""
    *clients, units = scale.shape
    between = inputs.dim() - len(clients) - 1 - further
    return (inputs * scale.reshape(*clients, *[1] * between, units, *[1] * further)).to(inputs.dtype)


def further_axes(layer: nn.Module) -> int:
    """How many axes of the layer's inputs come after that of its units: those of an image."""
    return layer.weight.dim() - 2 if isinstance(layer, _CONVOLUTIONS) else 0


def _scale_first(layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    inputs, *more = given
    return scaled(inputs, getattr(layer, BUFFER), further_axes(layer)), *more


def _readers(model: nn.Module, plan: Plan) -> tuple[Reader, ...]:
    """The layers with a weight that the plan cuts along the axis of its inputs."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = []
    for layer_name, layer in model.named_modules():
        weight = names.get(id(getattr(layer, "weight", None)))
        if weight is None or not isinstance(layer, nn.Linear | _CONVOLUTIONS):
            continue
        axis = 0 if getattr(layer, "transposed", False) else 1
        if (weight, axis) in plan.cuts:
            found.append(Reader(layer_name, weight, axis))
    return tuple(found)
