"""Costs as a table: its answers, the search for the largest size, and sizes chosen with it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from histfl.arrays import Floats
from histfl.errors import UsageError
from histfl.sizing import CutLayers, SizingProblem, size
from histfl.sizing.solve import optimal_sizes
from histfl.wireless.costs import MAX_SIZE, TOLERANCE, TabulatedCost, mean_cost, tabulated


def random_table(generator: np.random.Generator, cells: int) -> TabulatedCost:
    sizes = np.append(0, np.cumsum(generator.integers(1, 6, 4)))
    table = np.cumsum(generator.integers(0, 5, (5, cells)), axis=0).astype(float)
    table[-1] += 1  # beyond the last size it rises
    slots = {"slot_s": 2.0, "parameters_per_slot": 3} if generator.random() < 0.5 else {}
    return TabulatedCost(sizes, table, **slots)


def test_the_largest_size_is_the_largest_of_all_sizes() -> None:
    generator = np.random.default_rng(1)
    for _ in range(200):
        cost = random_table(generator, 3)
        every = np.broadcast_to(np.arange(200)[:, None], (200, 3))
        seconds = cost.seconds(every)
        threshold = float(generator.uniform(-1, seconds[60].min()))
        expected = (seconds <= threshold).sum(axis=0) - 1
        assert cost.largest_size(threshold).tolist() == expected.tolist()
    assert (cost.largest_size(1e300) == MAX_SIZE).all()


def test_sizes_equal_brute_force() -> None:
    generator = np.random.default_rng(2)
    for _ in range(200):
        cost = random_table(generator, 3)
        total = int(generator.integers(3, 25))
        sizes = np.array(
            [each for each in itertools.product(range(1, total), repeat=3) if sum(each) == total]
        )
        best = float(cost.seconds(sizes).max(axis=1).min())
        found = optimal_sizes(cost, total, low=1, cap=total)
        assert found.sum() == total
        assert float(cost.seconds(found).max()) == pytest.approx(best, rel=1e-12)


def test_a_table_of_slowest_clients_is_as_close_as_it_says() -> None:
    generator = np.random.default_rng(3)
    nodes = np.array([0, 1000, 3000, 9000, 30_000])
    work = np.array([0.0, 5.0, 8.0, 9.0, 40.0])
    computing, sending = generator.uniform(0.5, 3, (2, 4, 6))  # [cell, client]

    def seconds(parameters: int) -> Floats:
        slowest: Floats = computing * np.interp(parameters, nodes, work) + sending * parameters / 2000
        return slowest.max(axis=1)

    cost = tabulated(seconds, nodes.tolist())
    for parameters in generator.integers(1000, 30_000, 300):
        exact, told = seconds(int(parameters)), cost.seconds(np.full(4, parameters))
        assert (told >= exact * (1 - 1e-12)).all()
        assert (told <= exact * (1 + 4 * TOLERANCE)).all()
    assert (cost.seconds(np.full(4, 9000)) == seconds(9000)).all()
    answer = size(SizingProblem(CutLayers.plain(30_000), cost))
    assert answer.gap == pytest.approx(0, abs=1e-9)


def test_the_mean_of_tables_is_that_of_their_seconds() -> None:
    first = TabulatedCost(np.array([0, 4, 10]), np.array([[0.0], [1.0], [4.0]]), 1.0, 3)
    second = TabulatedCost(np.array([0, 6, 10]), np.array([[0.0], [3.0], [9.0]]), 1.0, 3)
    sizes = np.arange(20)[:, None]
    expected = (first.seconds(sizes) + second.seconds(sizes)) / 2
    assert mean_cost([first, second]).seconds(sizes) == pytest.approx(expected)


def test_a_table_that_falls_is_refused() -> None:
    with pytest.raises(UsageError, match="never fall"):
        TabulatedCost(np.array([0, 1]), np.array([[1.0], [0.5]]))
    with pytest.raises(UsageError, match="ascend from 0"):
        TabulatedCost(np.array([1, 2]), np.array([[1.0], [2.0]]))
