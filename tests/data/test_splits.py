from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.data import SPLITS, Split, label_mix, split
from histfl.errors import UsageError
from histfl.seeds import Seeds


def generator(seed: int = 1) -> np.random.Generator:
    return Seeds(seed).numpy("split")


@st.composite
def networks_and_labels(draw):
    clients = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    least = 2 * sum(clients)
    labels = draw(st.lists(st.integers(0, 5), min_size=least, max_size=least + 150))
    return np.array(labels), np.array(clients), draw(st.integers(0, 2**30))


@pytest.mark.parametrize("name", SPLITS)
@settings(deadline=None, max_examples=60)
@given(case=networks_and_labels(), concentration=st.sampled_from([1e-4, 0.1, 1.0, 1e4]))
def test_every_client_is_served_and_no_sample_twice(name, case, concentration):
    labels, clients, seed = case
    given_ = {"cell_concentration": concentration, "client_concentration": concentration}
    dealt = split(name, labels, clients, generator(seed), **given_)
    assert dealt.num_clients == clients.sum()
    assert dealt.sizes.min() >= 1
    assert len(np.unique(dealt.order)) == len(dealt.order)
    assert dealt.order.min() >= 0
    assert dealt.order.max() < len(labels)
    assert dealt.order.dtype == dealt.offsets.dtype == np.int64
    again = split(name, labels, clients, generator(seed), **given_)
    np.testing.assert_array_equal(again.order, dealt.order)
    mix = label_mix(dealt, labels, 6)
    np.testing.assert_array_equal(mix.sum(axis=1), dealt.sizes)
    for client in range(dealt.num_clients):
        expected = np.bincount(labels[dealt.client(client)], minlength=6)
        np.testing.assert_array_equal(mix[client], expected)


@settings(deadline=None, max_examples=60)
@given(case=networks_and_labels(), name=st.sampled_from(["iid", "dirichlet"]))
def test_iid_and_dirichlet_deal_every_sample_in_even_parts(case, name):
    labels, clients, seed = case
    dealt = split(name, labels, clients, generator(seed))
    assert len(dealt.order) == len(labels)
    assert np.ptp(dealt.sizes) <= 1


@settings(deadline=None, max_examples=60)
@given(case=networks_and_labels(), name=st.sampled_from(["shards", "cell-shards", "cell-iid"]))
def test_shards_are_equal_runs_of_label_sorted_samples(case, name):
    labels, clients, seed = case
    dealt = split(name, labels, clients, generator(seed))
    shard = len(labels) // (2 * clients.sum())
    assert (dealt.sizes == 2 * shard).all()
    groups = clients if name == "cell-iid" else [clients.sum()]
    start = 0
    for group in groups:
        stop = start + 2 * shard * group
        shards = dealt.order[start:stop].reshape(-1, shard)
        # Put back in sorted order, the shards of a group must be cuts of its sorted samples.
        keys = [tuple(zip(labels[run], run, strict=True)) for run in shards]
        joined = [pair for run in sorted(keys) for pair in run]
        assert joined == sorted(joined)
        start = stop


def test_the_paper_setting_gives_few_labels_a_client():
    labels = np.repeat(np.arange(10), 6000)
    dealt = split("shards", labels, [15] * 4, generator())
    mix = label_mix(dealt, labels, 10)
    assert (dealt.sizes == 1000).all()
    assert (mix.sum(axis=0) == 6000).all()
    # 6,000 images a class are 12 whole shards of 500: two shards hold one or two labels.
    assert set((mix > 0).sum(axis=1)) == {1, 2}


def test_cell_iid_cells_look_alike_and_shards_cells_do_not():
    labels = np.repeat(np.arange(10), 6000)
    unlike = {}
    for name in ("shards", "cell-iid"):
        mix = label_mix(split(name, labels, [15] * 4, generator()), labels, 10)
        cells = mix.reshape(4, 15, 10).sum(axis=1) / 15_000
        unlike[name] = np.abs(cells - 0.1).max()
        assert (mix > 0).sum(axis=1).mean() < 4
    assert unlike["cell-iid"] < 0.015
    assert unlike["shards"] > 0.02


def test_cell_shards_give_a_cell_its_run_of_labels_and_a_client_two_shards_of_it():
    labels = np.repeat(np.arange(10), 6000)
    mix = label_mix(split("cell-shards", labels, [15] * 4, generator()), labels, 10)
    held = mix.reshape(4, 15, 10).sum(axis=1) > 0
    assert [list(np.flatnonzero(cell)) for cell in held] == [[0, 1, 2], [2, 3, 4], [5, 6, 7], [7, 8, 9]]
    assert set((mix > 0).sum(axis=1)) == {1, 2}
    other = label_mix(split("cell-shards", labels, [15] * 4, generator(5)), labels, 10)
    assert not np.array_equal(mix, other)  # who gets which shards of the cell is drawn


def test_leftover_samples_are_not_all_of_one_class():
    labels = np.repeat(np.arange(10), 100)  # 2 x 400 shards of one sample leave 200 samples
    mix = label_mix(split("shards", labels, [400], generator()), labels, 10)
    assert mix.sum() == 800
    assert mix.sum(axis=0).min() > 60


def test_large_concentrations_copy_the_whole_and_small_ones_choose_few_labels():
    labels = np.repeat(np.arange(10), 2000)
    even = label_mix(
        split("dirichlet", labels, [5] * 4, generator(), cell_concentration=1e6, client_concentration=1e6),
        labels,
        10,
    )
    assert np.abs(even / 1000 - 0.1).max() < 0.05
    skewed = label_mix(
        split("dirichlet", labels, [5] * 4, generator(), cell_concentration=1e6, client_concentration=1e-3),
        labels,
        10,
    )
    # A cell has 500 of each label and a client takes 1000, so two labels are the fewest it can hold;
    # clients that want the same label share it, and each goes on to its next.
    assert 2 <= (skewed > 0).sum(axis=1).mean() < 5
    assert (even > 0).all()
    cells = skewed.reshape(4, 5, 10).sum(axis=1) / 5000
    assert np.abs(cells - 0.1).max() < 0.03


def test_client_mixes_have_the_variance_of_their_dirichlet():
    # One cell of many clients: with C classes of equal share, Dirichlet(a, ..., a) has the variance
    # (1/C)(1 - 1/C) / (a C + 1); a client's 1000 draws add p(1 - p)/1000, small against it.
    classes, concentration = 5, 2.0
    labels = np.repeat(np.arange(classes), 80_000)
    dealt = split("dirichlet", labels, [400], generator(), client_concentration=concentration)
    shares = label_mix(dealt, labels, classes) / 1000
    expected = (1 / classes) * (1 - 1 / classes) / (concentration * classes + 1)
    assert shares.var() == pytest.approx(expected, rel=0.1)


def test_a_class_missing_from_a_cell_is_missing_from_its_clients():
    labels = np.repeat(np.arange(4), 500)
    dealt = split("dirichlet", labels, [4] * 8, generator(), cell_concentration=1e-3, client_concentration=1)
    mix = label_mix(dealt, labels, 4).reshape(8, 4, 4)
    assert (mix.sum(axis=1) == 0).any()
    np.testing.assert_array_equal(mix.sum(axis=(0, 1)), [500] * 4)


def test_client_is_a_view():
    dealt = split("iid", np.zeros(10, dtype=int), [2, 3], generator())
    assert np.shares_memory(dealt.client(4), dealt.order)
    with pytest.raises(IndexError):
        dealt.client(-1)
    with pytest.raises(IndexError):
        dealt.client(5)


@pytest.mark.parametrize("name", SPLITS)
def test_more_clients_than_samples_is_refused(name):
    with pytest.raises(UsageError, match=r"5 samples cannot .* 8 clients"):
        split(name, np.zeros(5, dtype=int), [4, 4], generator())


@pytest.mark.parametrize(
    ("name", "labels", "clients", "options", "says"),
    [
        ("shard", [0, 1], [1], {}, "did you mean 'shards'"),
        ("zzz", [0, 1], [1], {}, "known splits: shards, cell-shards, cell-iid"),
        ("iid", [0.5, 1], [1], {}, "float64"),
        ("iid", [-1, 1], [1], {}, "label -1 is negative"),
        ("iid", [], [1], {}, r"shape \(0,\)"),
        ("iid", [0, 1], [1, 0], {}, "one positive number a cell"),
        ("iid", [0, 1], [], {}, "one positive number a cell"),
        ("dirichlet", [0, 1], [1], {"cell_concentration": 0.0}, "cell_concentration = 0.0"),
        ("dirichlet", [0, 1], [1], {"client_concentration": float("nan")}, "client_concentration = nan"),
    ],
)
def test_bad_arguments_are_named(name, labels, clients, options, says):
    with pytest.raises(UsageError, match=says):
        split(name, labels, clients, generator(), **options)


def test_label_mix_names_a_label_without_class():
    with pytest.raises(UsageError, match=r"label 3 is outside 0\.\.2"):
        label_mix(split("iid", [3, 0], [1], generator()), [3, 0], 3)


def test_a_split_checks_its_offsets():
    with pytest.raises(UsageError, match="rise from 0 to 3"):
        Split(np.arange(3), np.array([0, 2, 1, 3]))
    with pytest.raises(UsageError, match="rise from 0 to 3"):
        Split(np.arange(3), np.array([0, 2]))
