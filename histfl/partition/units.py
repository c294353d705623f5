"""Units and the axes they live on (HIST Sec. II-B).

A *unit* is a hidden neuron, an output channel of a convolution or a rank index of a LoRA pair. Taking
a unit away takes away the same slice of several parameters at once: the weight row and bias entry
that compute it, its normalisation entries, and the columns that read it in the next layer. Such a set
of coupled axes is a `UnitGroup`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch

from histfl.network.network import Ints

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
    def positions_per_unit(self) -> Ints:
        """How many positions each unit has, int [unit]."""
        units = self.unit.numpy()
        return np.bincount(units[units >= 0]).astype(np.int64)


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
                totals += cut.positions_per_unit * (prod(shape) // shape[cut.axis])
        return totals
