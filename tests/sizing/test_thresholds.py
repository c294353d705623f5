"""The exact algorithm against enumeration, by hand and by law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.errors import UsageError
from histfl.sizing.solve import optimal_sizes
from histfl.wireless.costs import AffineCost, AirCompCost, Cost


def brute_force(cost: Cost, total: int, low: np.ndarray, cap: np.ndarray) -> float | None:
    """The least max cost over every whole assignment, or None where there is none."""
    ranges = [range(int(a), int(b) + 1) for a, b in zip(low[:-1], cap[:-1], strict=True)]
    choices = list(itertools.product(*ranges))
    first = np.array(choices, dtype=np.int64).reshape(len(choices), len(low) - 1)
    last = total - first.sum(axis=1)
    sizes = np.column_stack([first, last])[(last >= low[-1]) & (last <= cap[-1])]
    return float(cost.seconds(sizes).max(axis=1).min()) if len(sizes) else None


def random_cost(generator: np.random.Generator, cells: int) -> Cost:
    whole = generator.random() < 0.5  # whole numbers make many ties
    draw = generator.integers if whole else generator.uniform
    fixed, slope = draw(0, 6, cells).astype(float), draw(1, 5, cells).astype(float)
    if generator.random() < 0.5:
        return AffineCost(fixed, slope)
    return AirCompCost(fixed, slope, float(draw(0, 20)), int(generator.integers(1, 5)))


def test_equals_brute_force_on_3000_instances() -> None:
    generator = np.random.default_rng(1)
    infeasible = 0
    for _ in range(3000):
        cells = int(generator.integers(1, 5))
        cost = random_cost(generator, cells)
        low = generator.integers(0, 3, cells)
        cap = low + generator.integers(0, 6, cells)
        total = int(generator.integers(0, cap.sum() + 2))
        expected = brute_force(cost, total, low, cap)
        if expected is None:
            infeasible += 1
            with pytest.raises(UsageError):
                optimal_sizes(cost, total, low=low, cap=cap)
            continue
        sizes = optimal_sizes(cost, total, low=low, cap=cap)
        assert sizes.sum() == total
        assert (low <= sizes).all()
        assert (sizes <= cap).all()
        assert cost.seconds(sizes).max() == expected  # bit for bit
    assert infeasible > 100


@pytest.mark.parametrize(
    ("slopes", "total", "expected"),
    [((2, 2, 1, 1), 600, (100, 100, 200, 200)), ((4, 4, 1, 1), 800, (100, 100, 300, 300))],
)
def test_hand_cases(slopes: tuple[int, ...], total: int, expected: tuple[int, ...]) -> None:
    cost = AffineCost(np.zeros(4), np.array(slopes, dtype=float))
    assert optimal_sizes(cost, total, low=0, cap=int(1.5 * total / 4)).tolist() == list(expected)


def test_a_cell_beyond_help_leaves_the_others_balanced() -> None:
    cost = AffineCost(np.array([100.0, 0.0, 0.0]), np.ones(3))
    assert optimal_sizes(cost, 21, low=1, cap=20).tolist() == [1, 10, 10]


def test_largest_size_is_the_last_that_fits() -> None:
    generator = np.random.default_rng(2)
    for _ in range(300):
        cost = random_cost(generator, 4)
        threshold = float(generator.uniform(-1, 60))
        largest = cost.largest_size(threshold)
        assert (cost.seconds(largest + 1) > threshold).all()
        assert (cost.seconds(largest)[largest >= 0] <= threshold).all()
        assert (largest >= -1).all()


@pytest.mark.parametrize(
    ("total", "cap", "words"),
    [(100, 20, r"at most 60 of 100 units.*1\.667"), (2, 20, "2 units cannot give 3 cells.*3 units")],
)
def test_infeasible_totals_are_explained_in_numbers(total: int, cap: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        optimal_sizes(AffineCost(np.zeros(3), np.ones(3)), total, low=1, cap=cap)


def test_bad_costs_are_named() -> None:
    with pytest.raises(UsageError, match="slope of cell 1 is 0"):
        AffineCost(np.zeros(2), np.array([1.0, 0.0]))
    with pytest.raises(UsageError, match="fixed of cell 0 is nan"):
        AffineCost(np.array([np.nan, 0.0]), np.ones(2))
    with pytest.raises(UsageError, match="one length"):
        AffineCost(np.zeros(3), np.ones(2))
    with pytest.raises(UsageError, match="parameters_per_slot = 0"):
        AirCompCost(np.zeros(2), np.ones(2), 1.0, 0)


costs = st.integers(1, 12).flatmap(
    lambda cells: st.tuples(
        st.lists(st.floats(0, 50), min_size=cells, max_size=cells),
        st.lists(st.floats(0.01, 50), min_size=cells, max_size=cells),
        st.integers(cells, 60 * cells),
    )
)


@settings(deadline=None, max_examples=150)
@given(costs, st.randoms(use_true_random=False))
def test_laws(
    drawn: tuple[list[float], list[float], int],
    random: object,
) -> None:
    fixed, slope, total = np.array(drawn[0]), np.array(drawn[1]), drawn[2]
    cost = AffineCost(fixed, slope)
    sizes = optimal_sizes(cost, total, low=1, cap=60)
    best = cost.seconds(sizes)

    assert sizes.sum() == total
    assert sizes.min() >= 1
    assert sizes.max() <= 60

    order = np.arange(len(slope))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = AffineCost(fixed[order], slope[order])
    again = shuffled.seconds(optimal_sizes(shuffled, total, low=1, cap=60))
    assert np.array_equal(np.sort(again), np.sort(best))

    lowered = slope.copy()
    lowered[order[0]] *= 0.7
    faster = AffineCost(fixed, lowered)
    assert faster.seconds(optimal_sizes(faster, total, low=1, cap=60)).max() <= best.max()
