"""Algorithm 1 against loops written independently of it, and the laws that tie the methods together."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from batches_for_tests import client_batches
from torch import nn

import histfl
from histfl.data import TensorData
from histfl.errors import DivergedError, PartitionError
from histfl.network import Network
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.seeds import Seeds
from histfl.settings import checked

SIZES = {"local_steps": 3, "edge_rounds": 2, "batch_size": 4, "learning_rate": 0.1, "rounds": 2}


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3)).double()


def make_data(samples: int = 96) -> TensorData:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 5, dtype=torch.float64, generator=generator)
    return TensorData(inputs, torch.arange(samples) % 3, ("a", "b", "c"))


def experiment(network_: Network, make: Callable[[], nn.Module] = make_model, **sections: Any) -> Experiment:
    tables = {"training": SIZES, "uplink": {"name": "ideal"}, "data": {"split": "iid"}} | sections
    config = checked(Config, tables, "test")
    return build(config, Ingredients(make(), make_data(), make_data(30), network_), device="cpu")


def trained(
    network_: Network, make: Callable[[], nn.Module] = make_model, **sections: Any
) -> dict[str, torch.Tensor]:
    return {
        name: value.detach().clone()
        for name, value in execute(experiment(network_, make, **sections)).model.named_parameters()
    }


def hierarchical_fedavg(exp: Experiment, network: Network, **training: Any) -> dict[str, torch.Tensor]:
    """Nested loops over torch.optim.SGD; shares only the data and the batches with the product."""
    settings = {**SIZES, **training}
    cloud, task = make_model(), exp.hist.task
    for t in range(settings["rounds"]):
        cells = []
        for cell in exp.hist.participation.cells(network, t, Seeds(1)):
            edge = make_model()
            edge.load_state_dict(cloud.state_dict())
            for e in range(settings["edge_rounds"]):
                clients = []
                for client in range(network.offsets[cell], network.offsets[cell + 1]):
                    local = make_model()
                    local.load_state_dict(edge.state_dict())
                    optimiser = torch.optim.SGD(local.parameters(), lr=settings["learning_rate"])
                    mine = torch.from_numpy(task.split.client(client))
                    stream = client_batches(
                        Seeds(1).key("batches", t),
                        client,
                        len(mine),
                        first_step=e * settings["local_steps"],
                        steps=settings["local_steps"],
                        batch_size=settings["batch_size"],
                    )
                    for batch in mine[stream]:
                        optimiser.zero_grad()
                        nn.functional.cross_entropy(
                            local(task.data.inputs[batch]), task.data.targets[batch]
                        ).backward()
                        optimiser.step()
                    clients.append(local.state_dict())
                edge.load_state_dict({k: torch.stack([c[k] for c in clients]).mean(0) for k in clients[0]})
            cells.append(edge.state_dict())
        cloud.load_state_dict({k: torch.stack([c[k] for c in cells]).mean(0) for k in cells[0]})
    return {name: value.detach() for name, value in cloud.named_parameters()}


def assert_same(
    left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], tolerance: float = 1e-12
) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=tolerance, atol=tolerance)


def test_hfedavg_equals_an_independent_loop() -> None:
    network = Network.uniform(cells=3, clients=7)
    run = experiment(network, method={"name": "hfedavg"})
    oracle = hierarchical_fedavg(run, network)
    assert_same(trained(network, method={"name": "hfedavg"}), oracle)


def test_hist_with_one_cell_and_one_edge_round_is_fedavg() -> None:
    network = Network.uniform(cells=1, clients=4)
    training = {**SIZES, "edge_rounds": 1}
    run = experiment(network, method={"name": "hist"}, training=training)
    assert_same(
        trained(network, method={"name": "hist"}, training=training),
        hierarchical_fedavg(run, network, edge_rounds=1),
    )


@pytest.mark.parametrize("method", ["hist", "ist", "overlap"])
def test_one_cell_makes_all_methods_equal(method: str) -> None:
    network = Network.uniform(cells=1, clients=4)
    assert_same(trained(network, method={"name": method}), trained(network, method={"name": "hfedavg"}))


def test_everything_shared_is_hierarchical_fedavg() -> None:
    network = Network.uniform(cells=3, clients=6)
    full = trained(network, method={"name": "overlap", "shared": 1.0})
    assert_same(full, trained(network, method={"name": "hfedavg"}))


def test_methods_see_the_same_batches_and_differ_in_size() -> None:
    network = Network.uniform(cells=3, clients=6)

    def deep() -> nn.Module:
        torch.manual_seed(3)
        layers = [nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)]
        return nn.Sequential(*layers).double()

    full = 5 * 12 + 12 + 12 * 12 + 12 + 12 * 3 + 3
    sizes = {}
    for method in ("hist", "hfedavg", "ist", "overlap"):
        run = execute(experiment(network, deep, method={"name": method}))
        sizes[method] = run.records[-1]["submodel_parameters"][0]
    assert sizes["hfedavg"] == full
    assert sizes["ist"] < sizes["hist"] < sizes["overlap"] < full


def test_biases_of_cut_layers_are_trained_and_returned() -> None:
    start = dict(make_model().named_parameters())
    final = trained(Network.uniform(cells=3, clients=6), method={"name": "hist"})
    for name in ("0.bias", "2.bias"):
        assert (final[name] != start[name]).all()


def test_lost_updates_leave_the_model_as_it_was() -> None:
    network = Network.uniform(cells=3, clients=6)
    run = execute(experiment(network, network={"clients": 6, "cells": 3, "dropout": 1.0}))
    assert_same(
        {n: v.detach() for n, v in run.model.named_parameters()}, dict(make_model().named_parameters()), 0
    )
    assert run.records[-1]["updates_lost"] == run.records[-1]["updates_sent"] == 12
    assert run.records[-1]["training_loss"] is None


def test_given_sizes_are_followed() -> None:
    network = Network.uniform(cells=3, clients=6)
    run = execute(experiment(network, method={"name": "hist", "sizes": [0.5, 0.25, 0.25]}))
    assert run.records[-1]["units"] == [[6], [3], [3]]


def test_partial_participation_costs_less() -> None:
    network = Network.uniform(cells=2, clients=8)
    some = execute(experiment(network, network={"cells": 2, "clients": 8, "participants": 1}))
    everyone = execute(experiment(network))
    assert some.megabytes_per_client[-1] == pytest.approx(everyone.megabytes_per_client[-1] / 4)


def test_random_layers_draw_from_the_runs_seed_and_not_the_global_one() -> None:
    def with_dropout() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 3)).double()

    network = Network.uniform(cells=2, clients=4)
    first = trained(network, with_dropout)
    torch.rand(7)
    before = torch.random.get_rng_state()
    exp = experiment(network, with_dropout)
    torch.random.set_rng_state(before)
    again = {name: value.detach() for name, value in execute(exp).model.named_parameters()}
    assert torch.equal(before, torch.random.get_rng_state())
    assert_same(first, again, 0)


def test_divergence_is_said_in_one_line() -> None:
    network = Network.uniform(cells=2, clients=4)
    with pytest.raises(DivergedError, match=r"diverged in round 1.*learning_rate"):
        execute(experiment(network, training={**SIZES, "learning_rate": 1e30}))


def test_more_cells_than_units_name_the_layer() -> None:
    with pytest.raises(histfl.HistflError, match="12 units for 13 cells") as raised:
        execute(experiment(Network.uniform(cells=13, clients=13)))
    assert raised.value.exit_code == 2


def test_a_model_with_nothing_to_cut_is_refused() -> None:
    with pytest.raises(PartitionError):
        experiment(Network.uniform(cells=2, clients=4), lambda: nn.Linear(5, 3).double())
