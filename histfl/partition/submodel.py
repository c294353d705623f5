"""What one cell holds, and the way to it and back: `merge` undoes `extract` (HIST Eq. (4), Eq. (7)).

The cloud's merge is one rule for every method:

    x = sum_j p_j * x_j / sum_j p_j   where some cell holds the entry, its old value elsewhere

(with weights w_j, p_j w_j in place of p_j). This is the paper's sum for entries that one cell holds, the mean for
entries that several hold, hierarchical FedAvg when all cells hold everything, and leaves entries that nobody trained.

The masks p_j of HIST Eq. (2) and (3) are the oracle that compact submodels are compared with: nothing
trains with them, they serve tests and the check that a layer may be cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from math import prod

import torch

from histfl.devices import moved
from histfl.partition.plan import Plan, State

Positions = dict[str, dict[int, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class Submodel:
    """What one cell holds: `kept` has a sorted int64 tensor of units for each group of the plan."""

    plan: Plan
    kept: tuple[torch.Tensor, ...]

    @cached_property
    def positions(self) -> Positions:
        """The kept positions, sorted int64, of every cut parameter and cut axis of it."""
        found: Positions = {}
        for (parameter, axis), cuts in self.plan.cuts.items():
            group, cut = cuts[0]
            if len(cuts) == 1 and cut.one_to_one:
                found.setdefault(parameter, {})[axis] = self.kept[group]
                continue
            mask = torch.ones(len(cut.unit), dtype=torch.bool)
            for group, cut in cuts:
                # One entry more than units, always kept: index -1 (no unit of this group) finds it.
                keep = torch.zeros(self.plan.groups[group].num_units + 1, dtype=torch.bool)
                keep[self.kept[group]] = True
                keep[-1] = True
                mask &= keep[cut.unit]
            found.setdefault(parameter, {})[axis] = mask.nonzero().squeeze(1)
        return found

    def positions_on(self, device: torch.device) -> Positions:
        """The same on a device, to which all of them go in one copy, once."""
        if device.type == "cpu" or not self.positions:
            return self.positions
        if device not in self._moved:
            different = {id(kept): kept for axes in self.positions.values() for kept in axes.values()}
            together = moved(torch.cat(list(different.values())), device)
            there = dict(
                zip(different, together.split([len(kept) for kept in different.values()]), strict=True)
            )
            self._moved[device] = {
                name: {axis: there[id(kept)] for axis, kept in axes.items()}
                for name, axes in self.positions.items()
            }
        return self._moved[device]

    @cached_property
    def _moved(self) -> dict[torch.device, Positions]:
        return {}


def extract(state: State, submodel: Submodel) -> State:
    """The kept entries of every tensor in `state`, as new compact tensors (HIST Eq. (4)).

    `state` may hold any of the model's parameters: the trainable ones, the frozen ones or all.
    """
    compact: State = {}
    for name, value in state.items():
        axes = submodel.positions_on(value.device).get(name)
        if axes is None:
            compact[name] = value.clone()
            continue
        for axis, positions in axes.items():
            value = value.index_select(axis, positions)
        compact[name] = value
    return compact


def put_back(state: State, submodel: Submodel, part: State) -> State:
    """`state` with the kept entries of the tensors in `part`, as new tensors: the other way of `extract`."""
    new: State = {}
    for name, value in part.items():
        new[name] = state[name].clone()
        _scatter(new[name], submodel.positions_on(value.device).get(name, {}), value)
    return state | new


def tensor_sizes(submodel: Submodel) -> list[int]:
    """The trainable numbers of each tensor of the submodel: what a client trains and sends."""
    return [prod(tensor_shape(submodel, name)) for name in submodel.plan.trainable]


def num_parameters(submodel: Submodel) -> int:
    """The trainable parameters of the submodel."""
    return sum(tensor_sizes(submodel))


def tensor_shape(submodel: Submodel, name: str) -> tuple[int, ...]:
    """Of the submodel's part of a parameter."""
    lengths = list(submodel.plan.shapes[name])
    for axis, positions in submodel.positions.get(name, {}).items():
        lengths[axis] = len(positions)
    return tuple(lengths)


_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def merge(
    state: State, parts: Iterable[tuple[Submodel, State]], weights: Iterable[float] | None = None
) -> State:
    """The new full model from `state` and the cells' trained parts (HIST Eq. (7)), in one pass over the parts.

    `weights` [cell] are of entries that several cells hold (None: all alike); a cell of weight 0 is heard where no
    other one is. Names that no part holds come back as they are in `state`. Means are running means, m + (x - m)/n,
    so that equal values give exactly that value: extracts that nobody touched merge to `state` itself,
    and an entry of one cell alone is taken over bit by bit.
    """
    merged = dict(state)
    held: State = {}
    for (submodel, part), weight in zip(parts, repeat(1.0) if weights is None else weights, strict=False):
        for name, value in part.items():
            if name not in held:
                old = state[name]
                merged[name] = old.to(_WIDER.get(old.dtype, old.dtype), copy=True)
                shape = _holders_shape(submodel, name, old.dim())
                held[name] = torch.zeros(shape, dtype=merged[name].dtype)
            _fold(merged[name], held[name], submodel, name, value, weight)
    return {name: value.to(state[name].dtype) for name, value in merged.items()}


def _holders_shape(submodel: Submodel, name: str, dimensions: int) -> list[int]:
    """Who holds an entry varies along cut axes only: length 1 along the others."""
    shape = submodel.plan.shapes[name]
    axes = {axis for parameter, axis in submodel.plan.cuts if parameter == name}
    return [shape[axis] if axis in axes else 1 for axis in range(dimensions)]


def _fold(
    mean: torch.Tensor,
    held: torch.Tensor,
    submodel: Submodel,
    name: str,
    value: torch.Tensor,
    weight: float,
) -> None:
    """Take one cell's `value` into the running mean of the weight that is `held` so far, which stays on the CPU."""
    value = value.detach().to(mean.dtype)
    here = submodel.positions.get(name, {})
    before = _gather(held, here).clone()  # of an uncut parameter it is `held` itself
    _scatter(held, here, before + weight)
    there = submodel.positions_on(mean.device).get(name, {})
    if before.any():
        current = _gather(mean, there)
        before = moved(before, mean.device)
        # Where this cell is the first, its value itself: current + (value - current) may round.
        value = torch.where(before == 0, value, current + (value - current) / ((before + weight) / weight))
    _scatter(mean, there, value)


def _gather(full: torch.Tensor, axes: dict[int, torch.Tensor]) -> torch.Tensor:
    for axis, positions in axes.items():
        full = full.index_select(axis, positions)
    return full


def _scatter(full: torch.Tensor, axes: dict[int, torch.Tensor], value: torch.Tensor) -> None:
    if not axes:
        full.copy_(value)
    elif len(axes) == 1:
        ((axis, positions),) = axes.items()
        full.index_copy_(axis, positions, value)
    else:
        # Write the innermost axis into a copy of the kept lines, and these back along the first axis.
        (axis, positions), *rest = axes.items()
        lines = full.index_select(axis, positions)
        _scatter(lines, dict(rest), value)
        full.index_copy_(axis, positions, lines)


def masks(submodel: Submodel) -> State:
    """For every parameter of the model a 0/1 tensor of its shape and dtype: 1 where the cell holds it."""
    return {name: mask(submodel, name) for name in submodel.plan.shapes}


def mask(submodel: Submodel, name: str) -> torch.Tensor:
    """The mask of one parameter (HIST Eq. (2) and (3))."""
    shape = submodel.plan.shapes[name]
    ones = torch.ones(shape, dtype=submodel.plan.dtypes[name])
    for axis, positions in submodel.positions.get(name, {}).items():
        line = torch.zeros(shape[axis], dtype=ones.dtype)
        line[positions] = 1
        ones *= line.reshape([-1 if other == axis else 1 for other in range(len(shape))])
    return ones
