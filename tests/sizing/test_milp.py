"""Our algorithm and HiGHS agree, on the optimum and on what is infeasible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from histfl.errors import UsageError
from histfl.sizing import CutLayers, SizingProblem
from histfl.sizing.milp import solve_milp
from histfl.sizing.solve import optimal_counts
from histfl.wireless.costs import AffineCost, AirCompCost


def test_equals_highs_on_one_layer() -> None:
    generator = np.random.default_rng(3)
    infeasible = 0
    for trial in range(240):
        cells = int(generator.integers(2, 8))
        layers = CutLayers(
            generator.integers(cells, 200, 1), generator.integers(1, 40, 1), int(generator.integers(0, 300))
        )
        fixed, slope = generator.uniform(0, 2, cells), generator.uniform(1e-3, 1e-1, cells)
        cost = AirCompCost(fixed, slope, 0.3, 50) if trial % 2 else AffineCost(fixed, slope)
        ratio = float(generator.uniform(0.95, 2.0))
        problem = SizingProblem(layers, cost, ratio)
        try:
            counts = optimal_counts(problem)
        except UsageError:
            infeasible += 1
            assert highs_says_infeasible(int(layers.units[0]), cells, ratio)
            continue
        found = solve_milp(problem, time_limit_s=20)
        assert found.proven
        assert cost.seconds(layers.parameters(counts)).max() == pytest.approx(found.seconds, rel=1e-5)
    assert infeasible >= 5


def highs_says_infeasible(units: int, cells: int, ratio: float) -> bool:
    """sum_j k_j = K, 0 <= k_j <= rho K / N in whole numbers, put to HiGHS without our own checks.

    With K >= N a solution that leaves a cell empty can always be evened out, so 0 stands for 1 here.
    """
    result = milp(
        np.zeros(cells),
        constraints=LinearConstraint(np.ones((1, cells)), units, units),
        integrality=np.ones(cells),
        bounds=Bounds(np.zeros(cells), np.full(cells, ratio * units / cells)),
    )
    return bool(result.status == 2)


def test_a_limit_is_no_failure() -> None:
    generator = np.random.default_rng(5)
    layers = CutLayers(generator.integers(100, 500, 8), generator.integers(1000, 9000, 8))
    problem = SizingProblem(layers, AffineCost(np.zeros(30), generator.uniform(1, 4, 30)))
    found = solve_milp(problem, time_limit_s=0.3)
    assert not found.proven
    assert found.bound <= found.seconds
    if found.counts is not None:
        assert (found.counts.sum(axis=0) == layers.units).all()


def test_a_cost_without_linear_form_is_refused() -> None:
    @dataclass(frozen=True)
    class Square:
        num_cells: int = 2

        def seconds(self, sizes: np.ndarray) -> np.ndarray:
            return np.asarray(sizes, dtype=float) ** 2

        def largest_size(self, threshold: float) -> np.ndarray:
            return np.full(2, int(np.sqrt(threshold)))

    problem = SizingProblem(CutLayers.plain(10), Square())
    assert optimal_counts(problem)[:, 0].tolist() == [5, 5]
    with pytest.raises(UsageError, match="Square has no linear form"):
        solve_milp(problem)
