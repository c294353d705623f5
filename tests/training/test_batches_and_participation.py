import numpy as np
import pytest
import torch
from batches_for_tests import client_batches
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.errors import UsageError
from histfl.network import Network
from histfl.seeds import Seeds
from histfl.training import Participation
from histfl.training.batches import variants_of_clients


@settings(deadline=None)
@given(samples=st.integers(1, 40), batch=st.integers(1, 30), steps=st.integers(1, 12))
def test_the_stream_is_epochs_of_every_sample_once(samples: int, batch: int, steps: int) -> None:
    stream = client_batches(5, 3, samples, first_step=0, steps=steps, batch_size=batch).flatten()
    for start in range(0, len(stream) - samples + 1, samples):
        assert sorted(stream[start : start + samples].tolist()) == list(range(samples))


@settings(deadline=None)
@given(first=st.integers(0, 50), steps=st.integers(1, 10))
def test_a_part_of_the_stream_is_that_part_of_the_stream(first: int, steps: int) -> None:
    whole = client_batches(5, 3, 17, first_step=0, steps=first + steps, batch_size=6)
    part = client_batches(5, 3, 17, first_step=first, steps=steps, batch_size=6)
    assert torch.equal(part, whole[first:])


def test_clients_rounds_and_epochs_are_shuffled_differently() -> None:
    def first_epoch(key: int, client: int) -> list[int]:
        return client_batches(key, client, 50, first_step=0, steps=1, batch_size=50)[0].tolist()

    assert first_epoch(1, 0) != first_epoch(1, 1)
    assert first_epoch(1, 0) != first_epoch(2, 0)
    two = client_batches(1, 0, 50, first_step=0, steps=2, batch_size=50)
    assert two[0].tolist() != two[1].tolist()


@settings(deadline=None)
@given(first=st.integers(0, 50), steps=st.integers(1, 10))
def test_variants_depend_on_key_client_step_and_place_alone(first: int, steps: int) -> None:
    clients = torch.tensor([3, 8, 1])
    whole = variants_of_clients(5, clients, 162, first_step=0, steps=first + steps, batch_size=6)
    part = variants_of_clients(5, clients[1:], 162, first_step=first, steps=steps, batch_size=4)
    assert torch.equal(part, whole[1:, first:, :4])
    assert not torch.equal(
        whole, variants_of_clients(6, clients, 162, first_step=0, steps=first + steps, batch_size=6)
    )


def test_every_variant_is_as_likely() -> None:
    drawn = variants_of_clients(1, torch.arange(10), 162, first_step=0, steps=81, batch_size=200)
    times = torch.bincount(drawn.flatten(), minlength=162)
    assert len(times) == 162
    assert (times - 1000).abs().max() < 5 * 1000**0.5


def test_sampled_clients_are_uniform_and_without_repetition() -> None:
    network = Network.uniform(cells=3, clients_per_cell=10)
    times = np.zeros(10)
    for t in range(200):
        schedule = Participation(per_cell=4).schedule(network.cell(1), 5, t, Seeds(1))
        for sampled, arrived in zip(schedule.sampled, schedule.arrived, strict=True):
            assert len(set(sampled.tolist())) == 4
            assert np.array_equal(sampled, arrived)
            times[sampled] += 1
    expected, spread = 1000 * 0.4, (1000 * 0.4 * 0.6) ** 0.5
    assert np.abs(times - expected).max() < 4 * spread


def test_a_clients_loss_does_not_depend_on_who_else_takes_part() -> None:
    cell = Network.uniform(cells=1, clients_per_cell=10).cell(0)
    everyone = Participation(dropout=0.5).schedule(cell, 20, 0, Seeds(1))
    some = Participation(per_cell=5, dropout=0.5).schedule(cell, 20, 0, Seeds(1))
    for edge_round in range(20):
        survivors = set(everyone.arrived[edge_round].tolist())
        assert set(some.arrived[edge_round].tolist()) == survivors & set(some.sampled[edge_round].tolist())
    lost = 1 - sum(map(len, everyone.arrived)) / everyone.transmissions
    assert 0.35 < lost < 0.65


def test_more_participants_than_clients_are_all_of_them() -> None:
    schedule = Participation(per_cell=99).schedule(Network.uniform(1, 4).cell(0), 1, 0, Seeds(1))
    assert schedule.sampled[0].tolist() == [0, 1, 2, 3]


def test_bad_participation_is_refused() -> None:
    with pytest.raises(UsageError, match="participants = 0"):
        Participation(per_cell=0)
    with pytest.raises(UsageError, match="dropout"):
        Participation(dropout=1.5)
