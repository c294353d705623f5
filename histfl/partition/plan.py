"""Units, the axes they live on, and `Plan`: how a model is cut, made once and used in every global round
(HIST Sec. II-B).

A *unit* is a hidden neuron, an output channel of a convolution or a rank index of a LoRA pair. Taking
a unit away takes away the same slice of several parameters at once: the weight row and bias entry
that compute it, its normalisation entries, and the columns that read it in the next layer. Such a set
of coupled axes is a `UnitGroup`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import nn

from histfl.arrays import Floats, Ints

State = dict[str, torch.Tensor]
"""Tensors by the names of `nn.Module.named_parameters`."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class CutAxis:
    """One axis of one parameter; `unit` is int64 [axis length], -1 where the group has no part in it.

    Several positions may belong to one unit (a channel that is flattened to 25 features), and some to
    none (the other branches of a concatenation).
    """

    parameter: str
    axis: int
    unit: torch.Tensor

    @cached_property
    def one_to_one(self) -> bool:
        """Position k is unit k: the kept units are the kept positions."""
        return torch.equal(self.unit, torch.arange(len(self.unit)))

    @cached_property
    def num_positions(self) -> int:
        """How many positions belong to units."""
        return int((self.unit >= 0).sum())

    def positions_per_unit(self, num_units: int) -> Ints:
        """How many positions each of the group's units has, int [unit]; the last ones may have none."""
        units = self.unit.numpy()
        return np.bincount(units[units >= 0], minlength=num_units).astype(np.int64)


@dataclass(frozen=True, eq=False)
class UnitGroup:
    """Axes that can only be cut together.

    `layers` are the layers that compute the units, `name` is the first of them. `obstacle` says why
    the group can never be cut, where tracing the model already showed it.
    """

    name: str
    num_units: int
    axes: tuple[CutAxis, ...]
    layers: tuple[str, ...] = ()
    obstacle: str = ""

    @cached_property
    def cut_twice(self) -> str | None:
        """A parameter that this group cuts along two axes, if there is one."""
        seen: set[str] = set()
        for cut in self.axes:
            if cut.parameter in seen:
                return cut.parameter
            seen.add(cut.parameter)
        return None

    def unit_parameters(self, shapes: Shapes, names: Collection[str]) -> Ints:
        """The entries of the parameters in `names` that each unit holds, int [unit]."""
        totals = np.zeros(self.num_units, dtype=np.int64)
        for cut in self.axes:
            if cut.parameter in names:
                shape = shapes[cut.parameter]
                totals += cut.positions_per_unit(self.num_units) * (prod(shape) // shape[cut.axis])
        return totals


Cuts = Mapping[tuple[str, int], tuple[tuple[int, CutAxis], ...]]


@dataclass(frozen=True, eq=False)
class Plan:
    """The unit groups that are dealt out to the cells, and the parameters they cut.

    `shapes` and `dtypes` hold all parameters, `trainable` the names that are trained, sent and merged.
    `uncut` says of every other unit group that was found why it stays whole in every cell.
    """

    groups: tuple[UnitGroup, ...]
    shapes: Shapes
    dtypes: Mapping[str, torch.dtype]
    trainable: frozenset[str]
    uncut: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: nn.Module, groups: tuple[UnitGroup, ...] = (), uncut: Mapping[str, str] | None = None
    ) -> Plan:
        """The plan that cuts `groups` of `model`; no group at all gives every cell the full model."""
        parameters = dict(model.named_parameters())
        return cls(
            groups=groups,
            shapes={name: tuple(value.shape) for name, value in parameters.items()},
            dtypes={name: value.dtype for name, value in parameters.items()},
            trainable=frozenset(name for name, value in parameters.items() if value.requires_grad),
            uncut=dict(uncut or {}),
        )

    @cached_property
    def units(self) -> Ints:
        """The number of units of each group, int [group]."""
        return np.array([group.num_units for group in self.groups], dtype=np.int64)

    @cached_property
    def num_parameters(self) -> int:
        """Trainable parameters of the full model."""
        return sum(prod(self.shapes[name]) for name in self.trainable)

    @cached_property
    def tensor_sizes(self) -> tuple[int, ...]:
        """The entries of each trainable parameter of the full model."""
        return tuple(prod(shape) for name, shape in self.shapes.items() if name in self.trainable)

    @cached_property
    def cuts(self) -> Cuts:
        """(parameter, axis) -> the (group index, axis) pairs that cut it."""
        found: dict[tuple[str, int], list[tuple[int, CutAxis]]] = {}
        for index, group in enumerate(self.groups):
            for cut in group.axes:
                found.setdefault((cut.parameter, cut.axis), []).append((index, cut))
        return {key: tuple(cuts) for key, cuts in found.items()}

    @cached_property
    def replicated_parameters(self) -> int:
        """Trainable parameters that no group cuts, held by every cell (parts of a concatenation too)."""
        return int(self.sizes(np.zeros((1, len(self.groups)), dtype=np.int64))[0])

    @cached_property
    def unit_parameters(self) -> Ints:
        """Trainable parameters that one unit of each group holds, int [group].

        The mean where the units of a group differ. A cell's size is `replicated_parameters` plus the
        counts times these when no parameter is cut along two axes; `sizes` is right in every case.
        """
        each = [group.unit_parameters(self.shapes, self.trainable) for group in self.groups]
        return np.array([round(float(values.mean())) for values in each], dtype=np.int64)

    def sizes(self, counts: Ints) -> Ints:
        """Trainable parameters of cells that keep counts[cell, group] units, int [cell].

        Exact when the units of a group are of one size, as they are in all the usual layers.
        """
        total = np.zeros(len(counts))
        for size in self._tensor_sizes(counts):
            total += size
        return np.rint(total).astype(np.int64)

    def tensor_sizes_at(self, counts: Ints) -> Ints:
        """The entries of each trainable parameter in cells that keep counts[cell, group] units, int [cell, tensor];
        as exact as `sizes`."""
        return np.rint(list(self._tensor_sizes(counts))).astype(np.int64).T

    def _tensor_sizes(self, counts: Ints) -> Iterator[Floats]:
        """[cell], of one trainable parameter after another."""
        axes_of: dict[str, list[int]] = {}
        for parameter, axis in self.cuts:
            axes_of.setdefault(parameter, []).append(axis)
        for name in self.trainable:
            shape = self.shapes[name]
            size = np.full(len(counts), float(prod(shape)))
            for axis in axes_of.get(name, ()):
                dropped = sum(
                    (self.units[group] - counts[:, group]) * (cut.num_positions / self.units[group])
                    for group, cut in self.cuts[name, axis]
                )
                size *= 1.0 - dropped / shape[axis]
            yield size
