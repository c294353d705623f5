"""Rounds in which the cloud samples the cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_hist import SIZES, assert_same, experiment, hierarchical_fedavg, trained

from histfl.errors import UsageError
from histfl.network import Network
from histfl.runs.execute import execute
from histfl.seeds import Seeds
from histfl.training import Participation, hist

NETWORK = Network.uniform(cells=6, clients=13)


def sampling(active_cells: int | list[int], **network: Any) -> dict[str, Any]:
    return {"cells": 6, "clients": 13, "active_cells": active_cells, **network}


def test_sampled_cells_are_uniform_and_without_repetition() -> None:
    network, participation = Network.uniform(cells=10, clients_per_cell=2), Participation(active_cells=4)
    times = np.zeros(10)
    for t in range(1000):
        cells = participation.cells(network, t, Seeds(1))
        assert len(cells) == 4
        assert (np.diff(cells) > 0).all()
        times[cells] += 1
    assert np.abs(times - 400).max() < 4 * (1000 * 0.4 * 0.6) ** 0.5


def test_a_sampled_cell_does_what_it_would_among_all() -> None:
    everyone = Participation(per_cell=1, dropout=0.3)
    some = Participation(per_cell=1, dropout=0.3, active_cells=2)
    for t in range(20):
        for schedule in some.schedules(NETWORK, 3, t, Seeds(1)):
            alone = everyone.schedule(NETWORK.cell(schedule.cell), 3, t, Seeds(1))
            assert [own.tolist() for own in schedule.arrived] == [own.tolist() for own in alone.arrived]


def test_as_many_active_cells_as_there_are_is_all_of_them() -> None:
    assert_same(trained(NETWORK, network=sampling(6)), trained(NETWORK), 0)


def test_hfedavg_over_sampled_cells_equals_an_independent_loop() -> None:
    settings = {"method": {"name": "hfedavg"}, "network": sampling(2)}
    training = {**SIZES, "rounds": 4}
    run = experiment(NETWORK, training=training, **settings)
    oracle = hierarchical_fedavg(run, NETWORK, rounds=4)
    assert_same(trained(NETWORK, training=training, **settings), oracle)


@pytest.mark.parametrize("uplink", ["fdma", "tdma", "aircomp", "ideal"])
@pytest.mark.parametrize("sizes", ["uniform", "optimised"])
def test_the_model_is_cut_for_the_active_cells_alone(uplink: str, sizes: str) -> None:
    settings = {
        "network": sampling(2, participants=1),
        "uplink": {"name": uplink},
        "method": {"sizes": sizes},
    }
    run = execute(experiment(NETWORK, **settings))
    seen = set()
    for record in run.records:
        cells, latency = record["active_cells"], record["latency"]
        assert len(cells) == len(record["units"]) == len(record["submodel_parameters"]) == 2
        assert np.sum(record["units"], axis=0).tolist() == [12]
        assert len(latency["cell_seconds"]) == 2
        assert latency["seconds"] == max(latency["cell_seconds"])
        assert latency["slowest_cell"] == cells[int(np.argmax(latency["cell_seconds"]))]
        assert latency["predicted_seconds"] == pytest.approx(latency["seconds"])
        seen.add(tuple(cells))
    last = run.records[-1]
    assert len(seen) > 1
    assert last["updates_sent"] == 2 * SIZES["edge_rounds"]
    sent = SIZES["rounds"] * SIZES["edge_rounds"] * sum(last["submodel_parameters"]) * 8 / 13 / 2**20
    if sizes == "uniform":
        assert last["megabytes_per_client"] == pytest.approx(sent)
    assert run.summary["active_cells"] == last["active_cells"]


def test_every_unit_goes_to_an_active_cell() -> None:
    run = experiment(NETWORK, network=sampling(2))
    state = {name: value.detach().clone() for name, value in run.model.named_parameters()}
    for outcome in hist(run.hist, state, run.engine, first_round=0, rounds=2):
        kept = torch.cat([submodel.kept[0] for submodel in outcome.submodels])
        assert sorted(kept.tolist()) == list(range(12))
        assert len(outcome.schedules) == len(outcome.results) == 2


def test_shares_count_among_the_active_cells() -> None:
    shares = [1.0, 1.0, 1.0, 3.0, 3.0, 3.0]
    run = execute(experiment(NETWORK, network=sampling(2), method={"sizes": shares}))
    for record in run.records:
        own = np.array([shares[cell] for cell in record["active_cells"]])
        assert [row[0] for row in record["units"]] == (12 * own / own.sum()).tolist()


def test_listed_cells_alone_train_as_if_there_were_no_others() -> None:
    settings = {"method": {"name": "hfedavg"}, "network": sampling([4, 1])}
    run = experiment(NETWORK, **settings)
    assert all(record["active_cells"] == [1, 4] for record in execute(run).records)
    oracle = hierarchical_fedavg(run, NETWORK)
    assert_same(trained(NETWORK, **settings), oracle)


def test_cells_that_cannot_be_sampled_are_refused() -> None:
    with pytest.raises(UsageError, match="active_cells has 6, but the cells of this network are 0 to 5"):
        experiment(NETWORK, network=sampling([2, 6]))
    with pytest.raises(
        UsageError, match=r"active_cells = \[2, 2\]; list one cell at least, and each of them once"
    ):
        experiment(NETWORK, network=sampling([2, 2]))
    with pytest.raises(UsageError, match=r"active_cells = \[\]"):
        experiment(NETWORK, network=sampling([]))
    with pytest.raises(UsageError, match="active_cells = 7, but the network has 6 cells"):
        experiment(NETWORK, network=sampling(7))
    with pytest.raises(UsageError, match=r"theory\.every = 2 with network\.active_cells = 2"):
        experiment(NETWORK, network=sampling(2), theory={"every": 2})
    with pytest.raises(UsageError, match="active_cells = 0"):
        Participation(active_cells=0)
