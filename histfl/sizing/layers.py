"""Several cut layers at once: water-fill, apportion layer by layer, then exchange at the bottleneck."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from histfl.network.network import Floats, Ints
from histfl.sizing.costs import UnitCost
from histfl.sizing.exchange import relieve_bottleneck
from histfl.sizing.problem import SizingProblem
from histfl.sizing.thresholds import optimal_sizes

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
