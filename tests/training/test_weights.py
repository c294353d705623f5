"""Means by samples: a loop written independently of them, over orthogonal links and over the air."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from batches_for_tests import client_batches
from small_training import INPUTS, TARGETS, experiment, mlp, outcomes
from torch import nn

from histfl.engines import ReferenceEngine, VectorisedEngine
from histfl.network import Network
from histfl.partition import draw, extract, merge
from histfl.partition.submodel import masks
from histfl.runs.build import Experiment
from histfl.seeds import Seeds
from histfl.training import Engine

HOLDINGS = [
    [*range(0, 2)],
    [*range(2, 9)],
    [*range(9, 10)],
    [*range(10, 14)],
    [*range(14, 30)],
    [*range(30, 33)],
    [*range(33, 40)],
]
BY_SAMPLES: dict[str, Any] = {"training": {"weights": "samples"}}


def weighted_loop(run: Experiment, rounds: int = 2) -> dict[str, torch.Tensor]:
    """Hierarchical FedAvg by nested loops over torch.optim.SGD, in which a mean counts samples."""
    network, local = run.hist.network, run.hist.task.local
    cloud = mlp().double().state_dict()
    for t in range(rounds):
        cells, cell_samples = [], []
        for cell in range(network.num_cells):
            edge = cloud
            for e in range(2):
                clients, samples = [], []
                for client in range(network.offsets[cell], network.offsets[cell + 1]):
                    mine = torch.tensor(HOLDINGS[client])
                    model = mlp().double()
                    model.load_state_dict(edge)
                    optimiser = torch.optim.SGD(model.parameters(), lr=local.learning_rate)
                    stream = client_batches(
                        Seeds(1).key("batches", t),
                        client,
                        len(mine),
                        first_step=e * local.local_steps,
                        steps=local.local_steps,
                        batch_size=local.batch_size,
                    )
                    for batch in mine[stream]:
                        optimiser.zero_grad()
                        nn.functional.cross_entropy(model(INPUTS.double()[batch]), TARGETS[batch]).backward()
                        optimiser.step()
                    clients.append(model.state_dict())
                    samples.append(len(mine))
                edge = mean(clients, samples)
            cells.append(edge)
            cell_samples.append(sum(samples))
        cloud = mean(cells, cell_samples)
    return cloud


def mean(states: list[dict[str, torch.Tensor]], weights: list[int]) -> dict[str, torch.Tensor]:
    return {
        name: sum(w * state[name] for state, w in zip(states, weights, strict=True)) / sum(weights)  # type: ignore[misc]
        for name in states[0]
    }


@pytest.mark.parametrize("engine", [ReferenceEngine, VectorisedEngine])
@pytest.mark.parametrize(
    "uplink", [{"name": "fdma"}, {"name": "aircomp"}, {"name": "aircomp", "signal": "simulated"}], ids=str
)
def test_means_count_samples(uplink: dict[str, Any], engine: type[Engine]) -> None:
    """Over the air as good as without noise: clients scale what they send."""
    people = Network.uniform(cells=3, clients=7, snr_db=280.0)
    sections = {"holdings": HOLDINGS, "uplink": uplink, "method": {"name": "hfedavg"}}
    run = experiment(people, **sections, **BY_SAMPLES)
    *_, last = outcomes(run, engine())
    for parameter, expected in weighted_loop(run).items():
        torch.testing.assert_close(last.state[parameter], expected, rtol=1e-10, atol=1e-12)
    *_, other = outcomes(experiment(people, **sections), engine())
    assert not torch.allclose(other.state["0.weight"], last.state["0.weight"], rtol=1e-3)


@pytest.mark.parametrize("method", ["hist", "ist", "overlap"])
@pytest.mark.parametrize(
    "uplink", [{"name": "ideal"}, {"name": "aircomp"}, {"name": "aircomp", "signal": "simulated"}], ids=str
)
def test_engines_agree(method: str, uplink: dict[str, Any]) -> None:
    """With lost updates, so that the samples differ from one edge round to the next."""
    network = {"cells": 3, "clients": 7, "dropout": 0.4}
    run = experiment(holdings=HOLDINGS, uplink=uplink, network=network, method={"name": method}, **BY_SAMPLES)
    expected = outcomes(run, ReferenceEngine())
    for right, found in zip(expected, outcomes(run, VectorisedEngine()), strict=True):
        for parameter, value in right.state.items():
            torch.testing.assert_close(found.state[parameter], value, rtol=1e-9, atol=1e-9)


def test_the_error_over_the_air_grows_with_the_scaled_updates() -> None:
    """One client has nearly all samples: its scaled updates are larger than the plain ones, and so is the error."""
    errors = {}
    for weights in ("uniform", "samples"):
        run = experiment(
            Network.uniform(cells=1, clients=4, snr_db=10.0),
            holdings=[[0], [1], [2], [*range(3, 40)]],
            uplink={"name": "aircomp", "paper_power": True},
            method={"name": "hfedavg"},
            training={"weights": weights, "edge_rounds": 20, "batch_size": 1},
        )
        errors[weights] = np.mean([each.results[0].edge_error for each in outcomes(run, ReferenceEngine())])
    # sum of (n w_i / sum w)^2 / n = 4 * (37^2 + 3) / 40^2 = 3.4 for updates of one size
    assert 2.0 < errors["samples"] / errors["uniform"] < 5.0


@pytest.mark.parametrize("method", ["hist", "overlap"])
def test_equal_holdings_weigh_nothing(method: str) -> None:
    holdings = [[*range(first, first + 5)] for first in range(0, 30, 5)]
    plain, weighted = (
        outcomes(
            experiment(
                Network.uniform(cells=3, clients=6),
                holdings=holdings,
                method={"name": method},
                training={"weights": weights},
            ),
            ReferenceEngine(),
        )[-1].state
        for weights in ("uniform", "samples")
    )
    for name, tensor in plain.items():
        torch.testing.assert_close(weighted[name], tensor, rtol=1e-12, atol=1e-14)


def test_the_merge_is_the_weighted_sum_of_masks() -> None:
    """x = sum_j p_j w_j x_j / sum_j p_j w_j, with a cell of weight 0 that holds some entries alone."""
    run = experiment(method={"name": "overlap"})
    plan, weights = run.hist.plan, [3.0, 0.0, 5.0]
    cells = draw(plan, np.array([[2], [1], [1]]), np.random.default_rng(2), shared=1 / 3)
    state = {name: tensor.detach() for name, tensor in run.model.named_parameters()}
    generator = torch.Generator().manual_seed(1)
    whole = [
        {name: torch.randn(x.shape, generator=generator, dtype=x.dtype) for name, x in state.items()}
        for _ in cells
    ]
    whole[1] = state  # no update arrived there
    parts = [(cell, extract(own, cell)) for cell, own in zip(cells, whole, strict=True)]
    found = merge(state, parts, weights)
    for name, old in state.items():
        total = sum(w * masks(cell)[name] for cell, w in zip(cells, weights, strict=True))
        mixed = sum(w * masks(c)[name] * own[name] for c, w, own in zip(cells, weights, whole, strict=True))
        assert isinstance(total, torch.Tensor)
        expected = torch.where(total > 0, mixed / total, old)
        torch.testing.assert_close(found[name], expected, rtol=1e-12, atol=1e-14)


def test_where_nobody_is_heard_the_model_stays() -> None:
    run = experiment(holdings=HOLDINGS, network={"cells": 3, "clients": 7, "dropout": 1.0}, **BY_SAMPLES)
    (only,) = outcomes(run, ReferenceEngine(), rounds=1)
    for name, tensor in run.model.named_parameters():
        assert torch.equal(only.state[name], tensor)
