"""The cloud's merge of all cells' submodels, one rule for every method (HIST Eq. (7)).

    x = sum_j p_j * x_j / sum_j p_j   where some cell holds the entry, its old value elsewhere

This is the paper's sum for entries that one cell holds, the mean for entries that several hold,
hierarchical FedAvg when all cells hold everything, and leaves entries that nobody trained.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from histfl.devices import moved
from histfl.partition.draw import Submodel
from histfl.partition.units import State

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def merge(state: State, parts: Iterable[tuple[Submodel, State]]) -> State:
    """The new full model from `state` and the cells' trained parts, in one pass over the parts.

    Names that no part holds come back as they are in `state`. Means are running means, m + (x - m)/n,
    so that equal values give exactly that value: extracts that nobody touched merge to `state` itself,
    and an entry of one cell alone is taken over bit by bit.
    """
    merged = dict(state)
    holders: State = {}
    for submodel, part in parts:
        for name, value in part.items():
            if name not in holders:
                old = state[name]
                merged[name] = old.to(_WIDER.get(old.dtype, old.dtype), copy=True)
                holders[name] = torch.zeros(_holders_shape(submodel, name, old.dim()))
            _fold(merged[name], holders[name], submodel, name, value)
    return {name: value.to(state[name].dtype) for name, value in merged.items()}


def _holders_shape(submodel: Submodel, name: str, dimensions: int) -> list[int]:
    """The number of holders varies along cut axes only: length 1 along the others."""
    shape = submodel.plan.shapes[name]
    axes = {axis for parameter, axis in submodel.plan.cuts if parameter == name}
    return [shape[axis] if axis in axes else 1 for axis in range(dimensions)]


def _fold(
    mean: torch.Tensor, holders: torch.Tensor, submodel: Submodel, name: str, value: torch.Tensor
) -> None:
    """Take one cell's `value` into the running mean; `holders` stays on the CPU."""
    value = value.detach().to(mean.dtype)
    here = submodel.positions.get(name, {})
    before = _gather(holders, here).clone()  # of an uncut parameter it is `holders` itself
    _scatter(holders, here, before + 1)
    there = submodel.positions_on(mean.device).get(name, {})
    if before.any():
        current = _gather(mean, there)
        before = moved(before, mean.device)
        # Where this cell is the first, its value itself: current + (value - current) may round.
        value = torch.where(before == 0, value, current + (value - current) / (before + 1).to(mean.dtype))
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
