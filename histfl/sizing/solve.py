"""The sizes whose slowest cell ends soonest (HIST Eq. (22) and (39)), without a solver.

One kind of unit: bisection on a number of seconds, exact. Several cut layers at once: water-fill, apportion
layer by layer, then moves and swaps of units between the slowest cell and another one, while that makes it faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from histfl.arrays import Floats, Ints
from histfl.errors import UsageError
from histfl.sizing.problem import SizingProblem
from histfl.wireless.costs import Cost, UnitCost


def optimal_sizes(cost: Cost, total: int, *, low: Ints | int, cap: Ints | int) -> Ints:
    """Whole sizes [cell] that minimise max_j cost_j(s_j) with sum_j s_j = total and low <= s_j <= cap (HIST Eq. (22)).

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


GOOD_ENOUGH = 1e-4  # a relative gap below this is not worth another sweep
MAX_PASSES = 8
WORTH_A_SEARCH = 1e-3  # a relative gap above this is searched further
MAX_TRIES = 120  # about 0.3 ms each with two layers, up to a hundred cells; fewer beyond


def relaxed_sizes(problem: SizingProblem, caps: Ints) -> tuple[Ints, float]:
    """Sizes [cell] in parameters, without the replicated ones, and a lower bound in seconds.

    Keep of a solution k only s_j = sum_l w_l k_jl. Whatever k is, s_j is a multiple of g = gcd(w_l),
    sum_l w_l <= s_j <= sum_l w_l cap_l and sum_j s_j = sum_l w_l K_l; so the best s under these
    conditions alone, exact by bisection, is no slower than any k. With one layer s and k are the same
    thing and the bound is reached. With several it is at least the bound of the linear programme over
    real 0 <= k_jl <= rho K_l / N. That one is feasible at tau when, for every set of layers of W parameters,
    W <= sum_j min(p_j(tau), rho W / N), p_j(tau) what cell j can hold (max-flow min-cut); divided by W the
    right side falls as W grows, so the set of all layers decides: our conditions, but for whole numbers.
    """
    layers = problem.layers
    step = math.gcd(*layers.parameters_per_unit.tolist())
    weights = layers.parameters_per_unit // step
    cost = UnitCost(problem.cost, step, layers.replicated)
    sizes = optimal_sizes(cost, int(weights @ layers.units), low=int(weights.sum()), cap=int(weights @ caps))
    return step * sizes, float(cost.seconds(sizes).max())


def optimal_counts(problem: SizingProblem) -> Ints:
    """Unit counts [cell, layer] whose slowest cell is as fast as can be: HIST Eq. (22) and (39) in units.

    One layer: exact. Several: the relaxed sizes give every cell a real share of every layer; then, from
    the heaviest layer to the lightest, a layer's counts are solved exactly with the others held, so that
    light layers make up for the rounding of heavy ones. Further sweeps and exchanges never make it slower.
    """
    caps = problem.caps()
    sizes, bound = relaxed_sizes(problem, caps)
    weights = problem.layers.parameters_per_unit
    if problem.layers.num_layers == 1:
        return (sizes // weights)[:, None]
    shares = _shares(problem, sizes)
    order = np.argsort(-weights, kind="stable")
    counts, slowest = _sweep(problem, shares, order, caps)
    for _ in range(MAX_PASSES):
        before = slowest
        if slowest > bound * (1 + GOOD_ENOUGH):
            counts = relieve_bottleneck(problem, counts, caps, good_enough=bound * (1 + GOOD_ENOUGH))
            counts, slowest = _sweep(problem, counts, order, caps)
        if slowest >= before:
            break
    if slowest > bound * (1 + WORTH_A_SEARCH):
        counts = _search(problem, counts, order, caps, good_enough=bound * (1 + WORTH_A_SEARCH))
    return counts


def _search(problem: SizingProblem, counts: Ints, order: Ints, caps: Ints, *, good_enough: float) -> Ints:
    """Move one unit of a heavy layer between any two cells and solve the other layers anew; keep what helps.

    For few heavy units (16 channels of 3151 parameters beside 84 neurons of 131) the right rounding of the
    heavy layer shows only once the light ones have been fitted to it. The slowest cell's pairs come first.
    """
    slowest = float(problem.cost.seconds(problem.layers.parameters(counts)).max())
    moves = _moves(problem, counts, order)
    for _ in range(min(MAX_TRIES, 100 * MAX_TRIES // problem.num_cells)):
        move = next(moves, None)
        if move is None or slowest <= good_enough:
            break
        layer, giver, taker = move
        if counts[giver, layer] == 1 or counts[taker, layer] == caps[layer]:
            continue
        trial = counts.copy()
        trial[giver, layer] -= 1
        trial[taker, layer] += 1
        trial, seconds = _sweep(problem, trial, order[order != layer], caps)
        if seconds < slowest:
            counts, slowest = trial, seconds
            moves = _moves(problem, counts, order)
    return counts


def _moves(problem: SizingProblem, counts: Ints, order: Ints) -> Iterator[tuple[int, int, int]]:
    """(layer, giver, taker), heaviest layer and slowest cells first; the lightest layer is left out."""
    cells = np.argsort(-problem.cost.seconds(problem.layers.parameters(counts)), kind="stable").tolist()
    for layer in order[:-1].tolist():
        for giver, taker in itertools.combinations(cells, 2):
            yield layer, giver, taker
            yield layer, taker, giver


def _shares(problem: SizingProblem, sizes: Ints) -> Floats:
    """Real counts [cell, layer]: one unit of each layer, and the same share of the rest of every layer."""
    layers, num_cells = problem.layers, problem.num_cells
    rest = layers.units - num_cells
    extra = sizes - layers.parameters_per_unit.sum()
    return 1 + np.outer(extra / max(extra.sum(), 1), rest)


def _sweep(problem: SizingProblem, counts: Floats | Ints, order: Ints, caps: Ints) -> tuple[Ints, float]:
    """Every layer in turn solved exactly, the others held: whole counts, and the slowest cell's seconds."""
    layers = problem.layers
    weights = layers.parameters_per_unit
    counts = np.array(counts, dtype=np.float64)
    for layer in order:
        counts[:, layer] = 0
        offset = np.rint(layers.replicated + counts @ weights).astype(np.int64)
        cost = UnitCost(problem.cost, int(weights[layer]), offset)
        counts[:, layer] = optimal_sizes(cost, int(layers.units[layer]), low=1, cap=int(caps[layer]))
    whole = counts.astype(np.int64)
    return whole, float(problem.cost.seconds(layers.parameters(whole)).max())


MAX_STEPS = 400
MAX_EXCHANGES = 2000  # kinds of exchange tried a step; bounds the work where there are many layers


def relieve_bottleneck(problem: SizingProblem, counts: Ints, caps: Ints, *, good_enough: float) -> Ints:
    """Counts [cell, layer] at least as fast as those given.

    A step takes the slowest cell, lets it give m units of one layer to some cell and take m' units of
    another layer back (m' = 0: a move), and keeps the exchange after which the slower of the two is
    fastest, if both beat the old slowest. Each step leaves fewer cells at the old maximum, so it ends.
    """
    layers = problem.layers
    weights = layers.parameters_per_unit
    gives, takes, saved = _exchanges(weights)
    counts = counts.copy()
    sizes = layers.parameters(counts)
    for _ in range(MAX_STEPS):
        seconds = problem.cost.seconds(sizes)
        slow = int(seconds.argmax())
        if seconds[slow] <= good_enough:
            break
        change = gives - takes  # [exchange, layer], off the slow cell and onto the other
        allowed = ((counts[slow] - change >= 1) & (counts[slow] - change <= caps)).all(axis=1)
        if not allowed.any():
            break
        change, delta = change[allowed], saved[allowed]
        trial = sizes + delta[:, None]  # [exchange, cell]
        trial[:, slow] = sizes[slow] - delta
        after = problem.cost.seconds(trial)
        pair = np.maximum(after, after[:, [slow]])
        pair[:, slow] = np.inf
        pair[~_fits(counts, change, caps)] = np.inf
        best, other = np.unravel_index(int(pair.argmin()), pair.shape)
        if not pair[best, other] < seconds[slow]:
            break
        counts[slow] -= change[best]
        counts[other] += change[best]
        sizes[slow] -= delta[best]
        sizes[other] += delta[best]
    return counts


def _exchanges(weights: Ints) -> tuple[Ints, Ints, Ints]:
    """Units given and taken [exchange, layer], and the parameters saved by it [exchange], all positive."""
    num_layers = len(weights)
    most = max(1, int(np.sqrt(MAX_EXCHANGES) / num_layers))
    give_layer, take_layer, give_units, take_units = (
        axis.ravel()
        for axis in np.meshgrid(
            np.arange(num_layers),
            np.arange(num_layers),
            np.arange(1, most + 1),
            np.arange(most + 1),
            indexing="ij",
        )
    )
    saved = give_units * weights[give_layer] - take_units * weights[take_layer]
    plain_move = (take_units == 0) & (take_layer == give_layer)  # kept once, not once for every take_layer
    keep = (saved > 0) & (plain_move | ((take_units > 0) & (take_layer != give_layer)))
    one_hot = np.eye(num_layers, dtype=np.int64)
    gives = give_units[keep, None] * one_hot[give_layer[keep]]
    takes = take_units[keep, None] * one_hot[take_layer[keep]]
    return gives, takes, saved[keep]


def _fits(counts: Ints, change: Ints, caps: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[exchange, cell]: whether the cell stays within one unit and the cap of every layer.

    Layer by layer, so that no [exchange, cell, layer] array is made.
    """
    fits = np.ones((len(change), len(counts)), dtype=np.bool_)
    for layer, cap in enumerate(caps):
        after = change[:, layer, None] + counts[None, :, layer]
        fits &= (after >= 1) & (after <= cap)
    return fits
