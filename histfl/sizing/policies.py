"""How the units are shared out over the cells, by name. A policy maps a problem to counts [cell, layer]."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from histfl import arguments
from histfl.arrays import Floats, Ints
from histfl.errors import HistflError, UsageError, did_you_mean, in_one_line
from histfl.partition import check_enough_units, deal_evenly
from histfl.settings import check_given
from histfl.sizing.problem import Sizes, SizingProblem, imbalance
from histfl.sizing.solve import optimal_counts, optimal_sizes, relaxed_sizes
from histfl.wireless.costs import AffineCost

Policy = Callable[[SizingProblem], Ints]


def uniform(problem: SizingProblem) -> Ints:
    """Equal counts; the cells that get one unit more take turns. Looks at neither costs nor cap."""
    check_enough_units(problem.layers.units, problem.num_cells, problem.layers.names)
    return deal_evenly(problem.layers.units, problem.num_cells)


def proportional(problem: SizingProblem) -> Ints:
    """Counts in proportion to each cell's speed on an equal share, within the cap, layer by layer.

    What the cap cuts off goes to the other cells. A rule of thumb that a person would use: it ignores
    the replicated parameters and the rounding of other layers.
    """
    caps = problem.caps()
    layers = problem.layers
    equal = np.full(problem.num_cells, int(layers.parameters_per_unit @ layers.units) // problem.num_cells)
    slope = problem.cost.seconds(equal)
    cost = AffineCost(np.zeros(problem.num_cells), slope / slope.mean())
    columns = [
        optimal_sizes(cost, int(units), low=1, cap=int(cap))
        for units, cap in zip(layers.units, caps, strict=True)
    ]
    return np.stack(columns, axis=1)


def optimised(problem: SizingProblem) -> Ints:
    """The fastest counts within the cap (`optimal_counts`); never slower than `uniform`."""
    counts = optimal_counts(problem)
    if problem.layers.num_layers == 1:
        return counts
    equal = uniform(problem)  # within the caps wherever the problem is feasible
    return min(counts, equal, key=lambda each: float(_seconds(problem, each).max()))


UNIFORM = "uniform"  # the one that looks at neither costs nor cap
POLICIES: dict[str, Policy] = {UNIFORM: uniform, "optimised": optimised, "proportional": proportional}


def policy_named(sizes: str) -> Policy:
    """The policy of that name."""
    check_given("method.sizes", "sizes", sizes, POLICIES)
    if sizes not in POLICIES:
        hint = did_you_mean(sizes, POLICIES, f"use one of {', '.join(POLICIES)}")
        raise UsageError(f"sizes = {sizes!r} is not known; {hint}")
    return POLICIES[sizes]


def check_policy(policy: Any, place: str) -> Policy:
    """`policy`, or a UsageError where it is none."""
    arguments.takes(place, policy, ("problem",))
    return policy  # type: ignore[no-any-return]


def counted(policy: Policy, problem: SizingProblem) -> Ints:
    """The policy's units [cell, layer], or a UsageError where one of the user's own gives no such."""
    whose = f"sizes by {getattr(policy, '__name__', type(policy).__name__)}"
    try:
        found: Any = policy(problem)
    except HistflError:
        raise
    except Exception as error:  # a user's function may fail in any way
        raise UsageError(f"{whose} fail: {in_one_line(error)}") from error
    counts, shape = arguments.numbers(whose, found), (problem.num_cells, problem.layers.num_layers)
    if counts.dtype.kind not in "iu" or counts.shape != shape:
        raise UsageError(
            f"{whose} are {counts.dtype} of shape {counts.shape}; they must be whole numbers of units [cell, layer], here "
            f"of shape {shape}"
        )
    if (counts < 0).any() or (counts > problem.layers.units).any():
        cell, layer = np.argwhere((counts < 0) | (counts > problem.layers.units))[0].tolist()
        raise UsageError(
            f"{whose} give cell {cell} {counts[cell, layer]} of the {problem.layers.units[layer]} units of layer "
            f"{problem.layers.names[layer]!r}; deal out those that there are"
        )
    return counts.astype(np.int64)


def size(problem: SizingProblem, policy: Policy = optimised) -> Sizes:
    """The policy's counts with parameters, seconds and a certificate.

    The bound holds for all counts within the problem's cap, or within the least cap that admits these
    counts where they go beyond it (`uniform` does not look at the cap), so the gap is never
    below zero.
    """
    counts = policy(problem)
    needed = imbalance(counts, problem.layers)
    admitting = dataclasses.replace(problem, cap_ratio=max(problem.cap_ratio, needed))
    _, bound = relaxed_sizes(admitting, admitting.caps())
    seconds = _seconds(problem, counts)
    return Sizes(
        counts=counts,
        parameters=problem.layers.parameters(counts),
        seconds=seconds,
        bound=bound,
        gap=float(seconds.max()) / bound - 1,
    )


def _seconds(problem: SizingProblem, counts: Ints) -> Floats:
    return problem.cost.seconds(problem.layers.parameters(counts))
