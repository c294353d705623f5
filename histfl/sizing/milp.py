"""The same problem as a mixed-integer linear programme for HiGHS: the independent check, HIST Eq. (22)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from histfl.arrays import Ints
from histfl.errors import UsageError
from histfl.sizing.problem import SizingProblem
from histfl.wireless.costs import AffineCost, AirCompCost

OPTIMAL, INFEASIBLE = 0, 2  # scipy's status codes


@dataclass(frozen=True)
class MilpResult:
    """counts [cell, layer] of the best solution found, its seconds, the solver's lower bound, and whether
    it proved the two equal; counts is None where the limit came before any solution."""

    counts: Ints | None
    seconds: float
    bound: float
    proven: bool


def solve_milp(
    problem: SizingProblem, *, time_limit_s: float = 60.0, relative_gap: float = 0.0
) -> MilpResult:
    """min tau over whole k_jl (and whole slots n_j for AirComp) within the caps, HIST Eq. (22).

    Variables [k_00..k_jl.., n_0..n_j, tau]. cost_j <= tau; sum_j k_jl = K_l; with AirComp size_j <= q n_j.
    Seconds are divided by the cost of equal cells, because HiGHS's tolerances are absolute.
    """
    from scipy import sparse  # takes a while, and runs need none of it
    from scipy.optimize import Bounds, LinearConstraint, milp

    cost, layers = problem.cost, problem.layers
    if not isinstance(cost, AffineCost | AirCompCost):
        raise UsageError(f"{type(cost).__name__} has no linear form; give an AffineCost or an AirCompCost")
    caps = problem.caps()
    cells, kinds = problem.num_cells, layers.num_layers
    equal = np.full(cells, layers.replicated + int(layers.parameters_per_unit @ layers.units) // cells)
    unit_s = float(cost.seconds(equal).max())
    slot_s, per_slot = (cost.slot_s, cost.parameters_per_slot) if isinstance(cost, AirCompCost) else (0.0, 1)
    slots = cells if slot_s else 0

    weights = layers.parameters_per_unit.astype(np.float64)
    sizes = sparse.kron(sparse.eye_array(cells), weights[None, :])  # [cell, cell * layer]
    totals = sparse.kron(np.ones((1, cells)), sparse.eye_array(kinds))  # [layer, cell * layer]
    slope = cost.slope / unit_s
    slot_terms = sparse.eye_array(cells) if slots else sparse.csr_array((cells, 0))
    tau = -np.ones((cells, 1))
    rows = [
        LinearConstraint(
            sparse.hstack([sparse.diags_array(slope) @ sizes, slot_terms * (slot_s / unit_s), tau]),
            ub=-(cost.fixed / unit_s + slope * layers.replicated),
        ),
        LinearConstraint(
            sparse.hstack([totals, sparse.csr_array((kinds, slots + 1))]), lb=layers.units, ub=layers.units
        ),
    ]
    if slots:
        rows.append(
            LinearConstraint(
                sparse.hstack([sizes, slot_terms * -float(per_slot), sparse.csr_array((cells, 1))]),
                ub=-float(layers.replicated),
            )
        )
    result = milp(
        np.concatenate([np.zeros(cells * kinds + slots), [1.0]]),
        constraints=rows,
        integrality=np.concatenate([np.ones(cells * kinds + slots), [0.0]]),
        bounds=Bounds(
            np.concatenate([np.ones(cells * kinds), np.zeros(slots), [-np.inf]]),
            np.concatenate([np.tile(caps, cells), np.full(slots, np.inf), [np.inf]]),
        ),
        options={"time_limit": time_limit_s, "mip_rel_gap": relative_gap},
    )
    if result.status == INFEASIBLE:
        raise UsageError("HiGHS finds no sizes within the cap; raise the cap ratio")
    bound = -np.inf if result.mip_dual_bound is None else float(result.mip_dual_bound) * unit_s
    if result.x is None:
        return MilpResult(None, np.inf, bound, proven=False)
    counts = np.rint(result.x[: cells * kinds]).astype(np.int64).reshape(cells, kinds)
    seconds = float(cost.seconds(layers.parameters(counts)).max())
    return MilpResult(counts, seconds, bound, proven=result.status == OPTIMAL)
