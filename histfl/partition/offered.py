"""Unit groups that a model names itself, where tracing it would be slow or impossible.

A model offers them with a method `unit_axes()`: from a name (a layer's) to the (parameter, axis) pairs
that are cut together, position k of every one of them being unit k. They are checked as traced ones are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from histfl.errors import PartitionError
from histfl.partition.units import CutAxis, UnitGroup


def offered(model: nn.Module) -> tuple[UnitGroup, ...] | None:
    """The groups that `model` names, or None where it names none and has to be traced."""
    unit_axes = getattr(model, "unit_axes", None)
    if not callable(unit_axes):
        return None
    named: Mapping[str, Sequence[tuple[str, int]]] = unit_axes()
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    return tuple(_group(name, axes, shapes) for name, axes in named.items())


def _group(name: str, axes: Sequence[tuple[str, int]], shapes: Mapping[str, tuple[int, ...]]) -> UnitGroup:
    lengths: set[int] = set()
    for parameter, axis in axes:
        shape = shapes.get(parameter)
        if shape is None or not 0 <= axis < len(shape):
            raise PartitionError(
                f"unit_axes()[{name!r}] names axis {axis} of {parameter!r}, which the model does not have"
            )
        lengths.add(shape[axis])
    if len(lengths) != 1:
        raise PartitionError(
            f"unit_axes()[{name!r}] names axes of {sorted(lengths) or 'no'} entries; all must have as many "
            "as there are units"
        )
    units = torch.arange(lengths.pop())
    return UnitGroup(name, len(units), tuple(CutAxis(p, axis, units) for p, axis in axes), (name,))
