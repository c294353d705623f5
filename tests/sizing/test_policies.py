"""Uniform, proportional and optimised sizes."""

from __future__ import annotations

import numpy as np
import pytest

from histfl.errors import UsageError
from histfl.sizing import POLICIES, CutLayers, SizingProblem, optimised, policy_named, size, uniform
from histfl.sizing.policies import proportional
from histfl.sizing.problem import cap_ratio, imbalance
from histfl.wireless.costs import AffineCost


def problem(slopes: tuple[float, ...], units: int = 800, ratio: float = 1.5) -> SizingProblem:
    return SizingProblem(
        CutLayers(np.array([units]), np.array([795]), 10),
        AffineCost(np.zeros(len(slopes)), np.array(slopes)),
        ratio,
    )


def test_optimised_is_never_slower_than_uniform() -> None:
    generator = np.random.default_rng(6)
    for _ in range(10_000):
        cells = int(generator.integers(1, 12))
        layers = CutLayers(generator.integers(2 * cells, 400, 1), np.array([795]), 10)
        cost = AffineCost(generator.uniform(0, 1, cells), generator.uniform(1e-6, 1e-4, cells))
        network = SizingProblem(layers, cost)
        best, equal = optimised(network), uniform(network)
        assert cost.seconds(layers.parameters(best)).max() <= cost.seconds(layers.parameters(equal)).max()


def test_optimised_is_never_slower_than_any_other_policy_with_many_layers() -> None:
    generator = np.random.default_rng(7)
    for _ in range(200):
        cells = int(generator.integers(2, 7))
        layers = CutLayers(generator.integers(2 * cells, 90, 4), generator.integers(5, 900, 4), 100)
        network = SizingProblem(
            layers, AffineCost(generator.uniform(0, 1, cells), generator.uniform(1e-5, 1e-4, cells))
        )
        slowest = {name: size(network, policy).seconds.max() for name, policy in POLICIES.items()}
        assert slowest["optimised"] <= slowest["uniform"]
        assert slowest["optimised"] <= slowest["proportional"] * 1.002


def test_uniform_spreads_the_remainder() -> None:
    assert uniform(problem((1.0, 1.0, 1.0), units=8))[:, 0].tolist() == [3, 3, 2]


def test_proportional_follows_speed_up_to_the_cap() -> None:
    assert proportional(problem((2.0, 2.0, 1.0, 1.0), units=600))[:, 0].tolist() == [100, 100, 200, 200]
    assert proportional(problem((4.0, 4.0, 1.0, 1.0)))[:, 0].tolist() == [100, 100, 300, 300]


def test_the_certificate_holds_for_sizes_beyond_the_cap_too() -> None:
    sizes = size(problem((9.0, 1.0)), lambda _: np.array([[80], [720]]))
    assert imbalance(sizes.counts, problem((9.0, 1.0)).layers) > 1.5
    assert sizes.gap >= 0
    assert size(problem((1.0, 1.0, 1.0), units=4, ratio=1.5), uniform).gap >= 0


def test_policies_by_name() -> None:
    assert policy_named("optimised") is optimised
    with pytest.raises(UsageError, match="did you mean 'optimised'"):
        policy_named("optimized")
    with pytest.raises(UsageError, match="use at most 2 cells"):
        uniform(problem((1.0, 1.0, 1.0), units=2))


def test_cap_ratio_is_the_papers() -> None:
    assert cap_ratio(threshold=9 * 0.37, cell_divergence=0.37) == pytest.approx(1.5)
    with pytest.raises(UsageError, match="must both be positive"):
        cap_ratio(1.0, 0.0)
