"""Dealing out the units of a plan: how many each cell gets, int [cell, group], and which ones: at random and anew in
every global round (HIST Algorithm 1), or windows, runs of neighbouring units, which go on at a layer's first unit where
they pass its last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from histfl.arrays import Floats, Ints
from histfl.errors import PartitionError
from histfl.partition.plan import Plan
from histfl.partition.submodel import Submodel

_ROUNDING = 1e-9  # 0.1 of 30 units are 3, though the product is a little more


def shared_units(plan: Plan, shared: float) -> Ints:
    """The units of each group that every cell holds, int [group]: the nearest whole number."""
    if not 0.0 <= shared <= 1.0:
        raise PartitionError(f"shared = {shared:g}; the fraction of units that all cells hold is from 0 to 1")
    return np.asarray(np.rint(shared * plan.units), dtype=np.int64)


def even_counts(plan: Plan, num_cells: int, shared: float = 0.0) -> Ints:
    """Equal counts for all cells, int [cell, group], of the units that are not shared."""
    return deal_evenly(_dealt(plan, num_cells, shared), num_cells)


def share_counts(plan: Plan, shares: Floats, shared: float = 0.0) -> Ints:
    """Counts in proportion to `shares`, float [cell], of the units that are not shared."""
    least = np.where(shared_units(plan, shared) > 0, 0, 1)
    return deal_by_shares(_dealt(plan, len(shares), shared), shares, least=least)


def deal_evenly(units: Ints, num_cells: int) -> Ints:
    """Equal counts [cell, group] of `units` [group].

    Where the units do not divide, the cells that get one more take turns from group to group, so that
    no cell's submodel is larger by more than about one unit.
    """
    whole, rest = np.divmod(units, num_cells)
    first = np.cumsum(rest) - rest
    turn = (np.arange(num_cells)[:, None] - first) % num_cells
    return np.asarray(whole + (turn < rest), dtype=np.int64)


def deal_by_shares(units: Ints, shares: Floats, *, least: Ints | int = 1) -> Ints:
    """Counts [cell, group] of `units` [group] in proportion to `shares` [cell], by largest remainder.

    A cell gets at least `least` units, one number or [group], for which the units must suffice.
    """
    bad = np.flatnonzero(~(np.isfinite(shares) & (shares > 0)))
    if bad.size:
        raise PartitionError(
            f"the share of cell {bad[0]} is {shares[bad[0]]:g}; it must be positive and finite"
        )
    lows = np.broadcast_to(least, units.shape)
    columns = [_apportion(int(total), shares, int(low)) for total, low in zip(units, lows, strict=True)]
    return np.stack(columns, axis=1) if columns else np.zeros((len(shares), 0), dtype=np.int64)


def check_enough_units(units: Ints, num_cells: int, names: Sequence[str]) -> None:
    """Every cell needs a unit of its own of every group; `units` and `names` are [group]."""
    if num_cells < 1:
        raise PartitionError(f"cells = {num_cells}; there must be at least one")
    if (short := np.flatnonzero(units < num_cells)).size:
        group = int(short[units[short].argmin()])
        others = f", or exclude {names[group]!r} from the cut" if len(names) > 1 else ""
        raise PartitionError(
            f"layer {names[group]!r} has {units[group]} units for {num_cells} cells; use at most "
            f"{units[group]} cells a round{others}"
        )


def _apportion(total: int, shares: Floats, least: int) -> Ints:
    counts = np.full(len(shares), least, dtype=np.int64)
    free = np.ones(len(shares), dtype=bool)
    while True:
        left = total - least * int((~free).sum())
        quota = np.where(free, left * shares / shares[free].sum(), np.inf)
        # A cell below the least is lifted to it, and the others share what is left.
        if not (quota < least).any():
            break
        free &= quota >= least
    counts[free] = np.floor(quota[free]).astype(np.int64)
    missing = total - int(counts.sum())
    remainder = np.where(free, quota - counts, -1.0)
    counts[np.argsort(-remainder, kind="stable")[:missing]] += 1
    return counts


def _dealt(plan: Plan, num_cells: int, shared: float) -> Ints:
    """Units to be dealt out, int [group]; every cell must end with at least one of each group."""
    common = shared_units(plan, shared)
    dealt = plan.units - common
    own = np.flatnonzero(common == 0)
    check_enough_units(dealt[own], num_cells, [plan.groups[group].name for group in own])
    return dealt


def draw(
    plan: Plan, counts: Ints, generator: np.random.Generator, *, shared: float = 0.0
) -> tuple[Submodel, ...]:
    """A random submodel for each cell (HIST Algorithm 1): counts[cell, group] units of its own, and the shared ones.

    The units of each group are put in random order and cut into consecutive runs, so that every unit
    belongs to exactly one cell. `shared` is the fraction of units that every cell holds besides (the
    partial overlap of a footnote in HIST Sec. VI-B); only the rest is dealt out.
    """
    common = shared_units(plan, shared)
    _check(plan, counts, common)
    hands = [
        _deal(int(plan.units[group]), counts[:, group], int(common[group]), generator)
        for group in range(len(plan.groups))
    ]
    return tuple(Submodel(plan, tuple(hand[cell] for hand in hands)) for cell in range(len(counts)))


def _deal(
    num_units: int, counts: Ints, num_shared: int, generator: np.random.Generator
) -> tuple[torch.Tensor, ...]:
    """Sorted units for each cell; owner 0 stands for everybody."""
    owner = np.empty(num_units, dtype=np.int64)
    owner[generator.permutation(num_units)] = np.repeat(
        np.arange(len(counts) + 1), np.concatenate(([num_shared], counts))
    )
    # A stable sort by owner leaves the units of one owner in ascending order.
    by_owner = torch.from_numpy(np.argsort(owner, kind="stable"))
    common, *own = torch.split(by_owner, [num_shared, *counts.tolist()])
    if num_shared == 0:
        return tuple(own)
    return tuple(torch.cat((common, units)).sort().values for units in own)


def _check(plan: Plan, counts: Ints, common: Ints) -> None:
    if counts.ndim != 2 or counts.shape[1] != len(plan.groups) or len(counts) == 0:
        raise PartitionError(
            f"counts has shape {counts.shape}; it needs one row a cell and one column for each of the "
            f"{len(plan.groups)} cut layers"
        )
    for group, own, num_shared in zip(plan.groups, counts.T, common, strict=True):
        if own.min() < 0 or own.min() + num_shared < 1:
            raise PartitionError(
                f"cell {own.argmin()} gets {own.min()} units of layer {group.name!r}; every cell needs at "
                f"least one"
            )
        if own.sum() + num_shared != group.num_units:
            raise PartitionError(
                f"layer {group.name!r} has {group.num_units} units, of which {num_shared} are shared, but "
                f"the counts deal out {own.sum()}; they must add up to {group.num_units - num_shared}"
            )


def width_counts(plan: Plan, shares: Floats) -> Ints:
    """The units [cell, group] of windows that hold `shares` [cell] of every layer, rounded up."""
    bad = np.flatnonzero(~((shares > 0) & (shares <= 1)))
    if bad.size:
        raise PartitionError(
            f"the share of cell {bad[0]} is {shares[bad[0]]:g}; the part of every layer that a cell holds is above 0 "
            "and at most 1"
        )
    return np.maximum(np.ceil(shares[:, None] * plan.units - _ROUNDING), 1).astype(np.int64)


def windows(plan: Plan, counts: Ints, starts: Ints) -> tuple[Submodel, ...]:
    """For each cell the counts[cell, group] units from starts[cell, group] on."""
    _check_windows(plan, counts)
    return tuple(
        Submodel(plan, tuple(_window(*numbers) for numbers in zip(plan.units, own, first, strict=True)))
        for own, first in zip(counts, starts, strict=True)
    )


def _window(units: int, count: int, start: int) -> torch.Tensor:
    """The units, sorted."""
    return torch.from_numpy(np.sort((start + np.arange(count)) % units))


def _check_windows(plan: Plan, counts: Ints) -> None:
    for group, own in zip(plan.groups, counts.T, strict=True):
        wrong = np.flatnonzero((own < 1) | (own > group.num_units))
        if wrong.size:
            raise PartitionError(
                f"cell {wrong[0]} gets {own[wrong[0]]} units of layer {group.name!r}; a window holds at least one and at "
                f"most all {group.num_units}"
            )
