"""How many units of each group a cell gets, int [cell, group]."""

from __future__ import annotations

import numpy as np

from histfl.errors import PartitionError
from histfl.network.network import Floats, Ints
from histfl.partition.plan import Plan


def shared_units(plan: Plan, shared: float) -> Ints:
    """The units of each group that every cell holds, int [group]: the nearest whole number."""
    if not 0.0 <= shared <= 1.0:
        raise PartitionError(f"shared = {shared:g}; the fraction of units that all cells hold is from 0 to 1")
    return np.asarray(np.rint(shared * plan.units), dtype=np.int64)


def even_counts(plan: Plan, num_cells: int, shared: float = 0.0) -> Ints:
    """Equal counts for all cells, int [cell, group], of the units that are not shared.

    Where the units do not divide, the cells that get one more take turns from group to group, so that
    no cell's submodel is larger by more than about one unit.
    """
    dealt = _dealt(plan, num_cells, shared)
    whole, rest = np.divmod(dealt, num_cells)
    first = np.concatenate(([0], np.cumsum(rest)[:-1])).astype(np.int64)[: len(rest)]
    turn = (np.arange(num_cells)[:, None] - first) % num_cells
    return np.asarray(whole + (turn < rest), dtype=np.int64)


def share_counts(plan: Plan, shares: Floats, shared: float = 0.0) -> Ints:
    """Counts in proportion to `shares`, float [cell], by largest remainder; at least one unit each."""
    bad = np.flatnonzero(~(np.isfinite(shares) & (shares > 0)))
    if bad.size:
        raise PartitionError(
            f"the share of cell {bad[0]} is {shares[bad[0]]:g}; it must be positive and finite"
        )
    dealt = _dealt(plan, len(shares), shared)
    least = np.where(shared_units(plan, shared) > 0, 0, 1)
    columns = [_apportion(int(total), shares, int(low)) for total, low in zip(dealt, least, strict=True)]
    return np.stack(columns, axis=1) if columns else np.zeros((len(shares), 0), dtype=np.int64)


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
    if num_cells < 1:
        raise PartitionError(f"cells = {num_cells}; there must be at least one")
    common = shared_units(plan, shared)
    dealt = plan.units - common
    for group, own, num_shared in zip(plan.groups, dealt, common, strict=True):
        if num_shared == 0 and own < num_cells:
            raise PartitionError(
                f"layer {group.name!r} has {group.num_units} units for {num_cells} cells; use at most "
                f"{group.num_units} cells, or exclude {group.name!r} from the cut"
            )
    return np.asarray(dealt, dtype=np.int64)
