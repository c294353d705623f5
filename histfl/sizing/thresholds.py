"""The exact integer algorithm for one kind of unit: HIST Eq. (22) and (39) without a solver."""

from __future__ import annotations

import numpy as np

from histfl.errors import UsageError
from histfl.network.network import Ints
from histfl.sizing.costs import Cost


def optimal_sizes(cost: Cost, total: int, *, low: Ints | int, cap: Ints | int) -> Ints:
    """Whole sizes [cell] that minimise max_j cost_j(s_j) with sum_j s_j = total and low <= s_j <= cap.

    For a threshold tau let S(tau) = sum_j clip(largest s with cost_j(s) <= tau, low_j, cap_j), which never
    falls as tau grows. Bisection finds the smallest float tau with S(tau) >= total; the surplus is then
    taken back from the cells that grew in the last step. Optimal: the result costs at most
    max(tau, max_j cost_j(low_j)); no solution is below the second, and one below tau would need
    sum s <= S(below tau) < total. Any non-decreasing cost will do. O(num_cells) per step, about 60 steps.

    Infeasible totals raise `UsageError` with the numbers that would do.
    """
    low, cap = (np.broadcast_to(np.asarray(bound, dtype=np.int64), cost.num_cells) for bound in (low, cap))
    _check_feasible(total, low, cap)
    lower = float(cost.seconds(low).min())
    upper = float(cost.seconds(cap).max())
    below, above = low, cap
    while above.sum() > total:
        threshold = lower + (upper - lower) / 2
        if not lower < threshold < upper:  # neighbours among the floats
            break
        sizes = np.clip(cost.largest_size(threshold), low, cap)
        if sizes.sum() >= total:
            above, upper = sizes, threshold
        else:
            below, lower = sizes, threshold
    return _take_back(cost, above, below, int(above.sum()) - total)


def _take_back(cost: Cost, above: Ints, below: Ints, surplus: int) -> Ints:
    """`above` less `surplus` units, from the cells whose cost falls furthest, never under `below`.

    The order depends on costs alone, so renumbering the cells renumbers the sizes.
    """
    sizes = above.copy()
    if surplus == 0:
        return sizes
    spare = above - below
    movable = np.flatnonzero(spare)
    movable = movable[np.argsort(cost.seconds(below)[movable], kind="stable")]
    before = np.cumsum(spare[movable]) - spare[movable]
    sizes[movable] -= np.clip(surplus - before, 0, spare[movable])
    return sizes


def _check_feasible(total: int, low: Ints, cap: Ints) -> None:
    if (bad := np.flatnonzero(low > cap)).size:
        raise UsageError(
            f"cell {bad[0]} needs at least {low[bad[0]]} units but is capped at {cap[bad[0]]}; raise its cap"
        )
    if total < (least := int(low.sum())):
        raise UsageError(
            f"{total} units cannot give {len(low)} cells their least sizes; it takes {least} units, "
            "or fewer cells"
        )
    if total > (most := int(cap.sum())):
        raise UsageError(
            f"the cells may hold at most {most} of {total} units; raise the caps by a factor of at least "
            f"{total / max(most, 1):.4g}"
        )
