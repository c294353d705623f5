"""Counts of units, and dealing them out."""

from __future__ import annotations

import models_for_tests as models
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.errors import PartitionError
from histfl.partition import Plan, draw, even_counts, num_parameters, plan, share_counts, shared_units
from histfl.partition.plan import CutAxis, UnitGroup


def plan_of(*units: int) -> Plan:
    """Independent layers, one parameter of three numbers a unit each."""
    names = [f"layer{k}" for k in range(len(units))]
    return Plan(
        groups=tuple(
            UnitGroup(name, count, (CutAxis(name, 0, torch.arange(count)),))
            for name, count in zip(names, units, strict=True)
        ),
        shapes={name: (count, 3) for name, count in zip(names, units, strict=True)},
        dtypes=dict.fromkeys(names, torch.float32),
        trainable=frozenset(names),
    )


UNITS = st.lists(st.integers(1, 60), min_size=0, max_size=4)
SHARED = st.sampled_from([0.0, 0.1, 0.5, 1.0])


@given(UNITS, st.integers(1, 12), SHARED)
@settings(deadline=None)
def test_even_counts_add_up_and_differ_by_one_at_most(units, num_cells, shared) -> None:
    cut = plan_of(*units)
    common = shared_units(cut, shared)
    if any(c == 0 and u < num_cells for c, u in zip(common, units, strict=True)):
        with pytest.raises(PartitionError, match=f"units for {num_cells} cells"):
            even_counts(cut, num_cells, shared)
        return
    counts = even_counts(cut, num_cells, shared)
    assert counts.shape == (num_cells, len(units))
    assert np.array_equal(counts.sum(axis=0) + common, cut.units)
    if units:
        assert (np.ptp(counts, axis=0) <= 1).all()
        assert np.ptp(counts.sum(axis=1)) <= 1  # the remainders take turns


@given(UNITS, st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=10), SHARED)
@settings(deadline=None)
def test_share_counts_add_up_and_follow_the_shares(units, shares, shared) -> None:
    cut, weights = plan_of(*units), np.array(shares)
    common = shared_units(cut, shared)
    if any(c == 0 and u < len(shares) for c, u in zip(common, units, strict=True)):
        with pytest.raises(PartitionError, match=f"units for {len(shares)} cells"):
            share_counts(cut, weights, shared)
        return
    counts = share_counts(cut, weights, shared)
    assert counts.shape == (len(shares), len(units))
    assert np.array_equal(counts.sum(axis=0) + common, cut.units)
    assert (counts + common >= 1).all()
    order = np.argsort(weights, kind="stable")
    assert (np.diff(counts[order], axis=0) >= -1).all()  # a larger share is at most one unit behind


def test_share_counts_by_hand() -> None:
    assert share_counts(plan_of(12), np.array([1.0, 1, 2, 2])).ravel().tolist() == [2, 2, 4, 4]
    assert share_counts(plan_of(10), np.array([0.5, 0.3, 0.2])).ravel().tolist() == [5, 3, 2]
    assert share_counts(plan_of(10), np.array([0.46, 0.33, 0.21])).ravel().tolist() == [5, 3, 2]
    assert share_counts(plan_of(10), np.array([1000.0, 1, 1])).ravel().tolist() == [8, 1, 1]


@given(st.lists(st.integers(6, 60), max_size=4), st.integers(1, 6), SHARED, st.integers(0, 2**32))
@settings(deadline=None)
def test_every_unit_goes_to_one_cell_or_to_all(units, num_cells, shared, seed) -> None:
    cut = plan_of(*units)
    counts, common = even_counts(cut, num_cells, shared), shared_units(cut, shared)
    submodels = draw(cut, counts, np.random.default_rng(seed), shared=shared)
    assert len(submodels) == num_cells
    for number, count in enumerate(units):
        holders = torch.zeros(count, dtype=torch.int64)
        for cell, submodel in enumerate(submodels):
            kept = submodel.kept[number]
            assert kept.dtype == torch.int64
            assert torch.equal(kept, kept.unique())  # sorted, none twice
            assert len(kept) == counts[cell, number] + common[number]
            holders[kept] += 1
        assert (holders == num_cells).sum() == (count if num_cells == 1 else common[number])
        assert ((holders == 1) | (holders == num_cells)).all()
    sizes = cut.sizes(counts + common)
    assert sizes.tolist() == [num_parameters(submodel) for submodel in submodels]


def test_a_draw_depends_on_its_generator_alone() -> None:
    cut, counts = plan_of(40, 9), np.array([[20, 3], [20, 6]])
    first, again, other = (draw(cut, counts, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0].kept[0], again[0].kept[0])
    assert not torch.equal(first[0].kept[0], other[0].kept[0])


def test_units_are_equally_likely_everywhere() -> None:
    cut, counts = plan_of(6), np.array([[1], [2], [3]])
    generator = np.random.default_rng(0)
    held = np.zeros((3, 6))
    for _ in range(3000):
        for cell, submodel in enumerate(draw(cut, counts, generator)):
            held[cell, submodel.kept[0].numpy()] += 1
    assert np.allclose(held / 3000, counts / 6, atol=0.04)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[3], [4]], r"layer 'layer0' has 8 units, .* deal out 7; they must add up to 8"),
        ([[8], [0]], r"cell 1 gets 0 units of layer 'layer0'"),
        ([[9], [-1]], r"cell 1 gets -1 units of layer 'layer0'"),
        ([[4, 4], [4, 4]], r"shape \(2, 2\)"),
    ],
)
def test_counts_that_cannot_be_dealt_are_named(counts, message) -> None:
    with pytest.raises(PartitionError, match=message):
        draw(plan_of(8), np.array(counts), np.random.default_rng(0))


def test_fewer_units_than_cells_names_the_layer() -> None:
    cut = plan(models.LeNet5(), models.images(1, 28))
    with pytest.raises(PartitionError, match="layer 'conv2' has 16 units for 20 cells; use at most 16 cells"):
        even_counts(cut, 20)


@pytest.mark.parametrize("shares", [[0.5, 0.0], [0.5, -1.0], [0.5, np.nan], [0.5, np.inf]])
def test_shares_must_be_positive_and_finite(shares) -> None:
    with pytest.raises(PartitionError, match="the share of cell 1"):
        share_counts(plan_of(8), np.array(shares))


def test_no_cells_and_impossible_fractions_are_refused() -> None:
    with pytest.raises(PartitionError, match="cells = 0"):
        even_counts(plan_of(8), 0)
    with pytest.raises(PartitionError, match=r"shared = 1\.5"):
        even_counts(plan_of(8), 2, 1.5)


def test_ten_thousand_cells() -> None:
    cut = plan_of(20_000)
    submodels = draw(cut, even_counts(cut, 10_000), np.random.default_rng(0))
    assert torch.equal(torch.cat([s.kept[0] for s in submodels]).sort().values, torch.arange(20_000))
