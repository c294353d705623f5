"""Several cut layers: close to the bound, or to HiGHS where whole units leave a gap."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from histfl.errors import UsageError
from histfl.sizing import CutLayers, SizingProblem, size, uniform
from histfl.sizing.milp import solve_milp
from histfl.sizing.problem import imbalance
from histfl.sizing.solve import optimal_counts
from histfl.wireless.costs import AffineCost, AirCompCost

# units, parameters a unit, replicated parameters
TABLES = {
    "mlp 784-512-256-128-10": CutLayers(np.array([512, 128]), np.array([784 + 1 + 256, 256 + 1 + 10]), 266),
    "lenet5, first fc": CutLayers(np.array([120]), np.array([400 + 1 + 84]), 2572 + 84 + 850),
    "lenet5, channels and second fc": CutLayers(
        np.array([16, 84]), np.array([25 * 120 + 25 * 6 + 1, 120 + 1 + 10]), 156 + 120 + 10
    ),
    "resnet18": CutLayers(
        np.array([64, 64, 128, 128, 256, 256, 512, 512]),
        9 * np.array([128, 128, 192, 256, 384, 512, 768, 1024]) + 2,
        190_000,
    ),
    "lora rank 16": CutLayers(np.full(24, 16), np.full(24, 768 + 2304)),
}


def problem_for(layers: CutLayers, cells: int, seed: int, *, aircomp: bool = False) -> SizingProblem:
    generator = np.random.default_rng(seed)
    slope = generator.uniform(1e-6, 4e-6, cells)
    fixed = np.zeros(cells)
    cost = AirCompCost(fixed, slope, 4e-4, 666) if aircomp else AffineCost(fixed, slope)
    return SizingProblem(layers, cost)


def check_feasible(problem: SizingProblem, counts: np.ndarray) -> None:
    assert counts.dtype == np.int64
    assert (counts.sum(axis=0) == problem.layers.units).all()
    assert counts.min() >= 1
    assert imbalance(counts, problem.layers) <= problem.cap_ratio * (1 + 1e-12)


@pytest.mark.parametrize("aircomp", [False, True])
@pytest.mark.parametrize("cells", [2, 4, 6])
@pytest.mark.parametrize("name", TABLES)
def test_within_two_tenths_of_a_per_cent(name: str, cells: int, aircomp: bool) -> None:
    problem = problem_for(TABLES[name], cells, seed=cells, aircomp=aircomp)
    sizes = size(problem)
    check_feasible(problem, sizes.counts)
    assert sizes.gap >= 0
    assert sizes.gap == pytest.approx(sizes.seconds.max() / sizes.bound - 1)
    assert (sizes.parameters == problem.layers.parameters(sizes.counts)).all()
    if sizes.gap > 0.002:  # whole units: the bound itself is out of reach
        incumbent = solve_milp(problem, time_limit_s=2.0)
        assert sizes.seconds.max() <= 1.002 * incumbent.seconds
        assert sizes.bound <= incumbent.seconds * (1 + 1e-9)


def test_few_heavy_units_beside_light_ones_match_highs() -> None:
    """The hardest of the tables: whole channels are a tenth of a cell's size, so rounding decides."""
    for seed in range(100, 112):
        problem = problem_for(TABLES["lenet5, channels and second fc"], 4, seed, aircomp=bool(seed % 2))
        assert size(problem).seconds.max() <= 1.002 * solve_milp(problem, time_limit_s=5.0).seconds


def linear_programme(problem: SizingProblem) -> float:
    """min tau over real 0 <= k_jl <= rho K_l / N, by HiGHS."""
    layers, cost, cells = problem.layers, problem.cost, problem.num_cells
    assert isinstance(cost, AffineCost)
    scale = cost.seconds(np.full(cells, layers.parameters(layers.units))).max()
    rows = np.kron(np.diag(cost.slope / scale), layers.parameters_per_unit)
    found = linprog(
        np.append(np.zeros(rows.shape[1]), 1.0),
        A_ub=np.column_stack([rows, -np.ones(cells)]),
        b_ub=-(cost.fixed + cost.slope * layers.replicated) / scale,
        A_eq=np.column_stack([np.tile(np.eye(layers.num_layers), cells), np.zeros(layers.num_layers)]),
        b_eq=layers.units,
        bounds=[(0, problem.cap_ratio * units / cells) for _ in range(cells) for units in layers.units]
        + [(0, None)],
    )
    return float(found.fun) * scale


@pytest.mark.parametrize("cells", [2, 5, 10])
@pytest.mark.parametrize("name", TABLES)
def test_the_certificate_is_no_weaker_than_the_linear_programme(name: str, cells: int) -> None:
    problem = problem_for(TABLES[name], cells, seed=10 + cells)
    sizes = size(problem)
    assert linear_programme(problem) <= sizes.bound * (1 + 1e-6)
    assert sizes.bound <= sizes.seconds.max()


def test_near_brute_force_on_two_small_layers() -> None:
    generator = np.random.default_rng(4)
    off = []
    for _ in range(150):
        cells = int(generator.integers(2, 4))
        layers = CutLayers(
            generator.integers(cells, 7, 2), generator.integers(1, 9, 2), int(generator.integers(0, 5))
        )
        problem = SizingProblem(
            layers, AffineCost(generator.uniform(0, 3, cells), generator.uniform(1, 4, cells)), cap_ratio=2.0
        )
        caps = problem.caps()
        columns = [
            [k for k in itertools.product(range(1, cap + 1), repeat=cells) if sum(k) == units]
            for units, cap in zip(layers.units, caps, strict=True)
        ]
        every = np.array(list(itertools.product(*columns))).transpose(0, 2, 1)  # [choice, cell, layer]
        best = problem.cost.seconds(layers.parameters(every)).max(axis=1).min()
        sizes = size(problem)
        check_feasible(problem, sizes.counts)
        assert sizes.bound <= best * (1 + 1e-12)
        off.append(sizes.seconds.max() / best - 1)
    assert min(off) >= -1e-12
    assert np.mean(np.array(off) < 1e-9) > 0.9
    assert max(off) < 0.2  # handfuls of units of up to eight parameters


def test_one_layer_is_proven_optimal() -> None:
    for seed in range(20):
        assert size(problem_for(TABLES["lenet5, first fc"], 7, seed)).gap == 0


def test_equal_layers_reach_the_bound() -> None:
    for seed in range(20):
        assert size(problem_for(TABLES["lora rank 16"], 5, seed)).gap == pytest.approx(0, abs=1e-12)


def test_plain_parameters_are_one_layer() -> None:
    problem = SizingProblem(CutLayers.plain(600), AffineCost(np.zeros(4), np.array([2.0, 2.0, 1.0, 1.0])))
    assert optimal_counts(problem)[:, 0].tolist() == [100, 100, 200, 200]


def test_infeasible_problems_say_what_would_do() -> None:
    cost = AffineCost(np.zeros(15), np.ones(15))
    lora = TABLES["lora rank 16"]
    with pytest.raises(UsageError, match=r"16 units do not fit 15 cells of at most 1 each.*at least 1\.875"):
        optimal_counts(SizingProblem(lora, cost))
    assert optimal_counts(SizingProblem(lora, cost, cap_ratio=1.875)).sum() == 24 * 16
    with pytest.raises(UsageError, match=r"= 0\.9.*at least 1"):
        optimal_counts(SizingProblem(lora, cost, cap_ratio=0.9))
    many = AffineCost(np.zeros(17), np.ones(17))
    with pytest.raises(UsageError, match=r"layer 0' has 16 units for 17 cells.*at most 16 cells"):
        optimal_counts(SizingProblem(lora, many))


def test_as_many_cells_as_units_leaves_one_choice() -> None:
    cost = AffineCost(np.zeros(16), np.linspace(1, 2, 16))
    assert (optimal_counts(SizingProblem(TABLES["lora rank 16"], cost)) == 1).all()


def test_no_cap_is_allowed() -> None:
    problem = SizingProblem(CutLayers.plain(100), AffineCost(np.zeros(2), np.array([99.0, 1.0])), np.inf)
    assert optimal_counts(problem)[:, 0].tolist() == [1, 99]


def test_layer_tables_are_checked() -> None:
    with pytest.raises(UsageError, match="units of layer 1 is 0"):
        CutLayers(np.array([3, 0]), np.array([1, 1]))
    with pytest.raises(UsageError, match="one of each a layer"):
        CutLayers(np.array([3]), np.array([1, 1]))
    with pytest.raises(UsageError, match="replicated = -1"):
        CutLayers(np.array([3]), np.array([1]), -1)
    assert (uniform(problem_for(TABLES["resnet18"], 5, 0)).sum(axis=0) == TABLES["resnet18"].units).all()
