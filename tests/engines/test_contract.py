"""Every engine gives what the reference engine gives: the same batches, steps, losses and merges."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import MODELS, make_experiment

from histfl.engines import ENGINES, ReferenceEngine
from histfl.network import Network
from histfl.runs.build import Experiment
from histfl.training import Engine, RoundOutcome, hist
from histfl.training.cloud import CLOUD_STEPS
from histfl.training.codecs import CODECS
from histfl.training.methods import METHODS
from histfl.training.optimisers import OPTIMISERS

ROUNDS = 2
# float32: both orders of summation are right, and 12 client steps carry their rounding along.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3, "an engine must leave torch's threads as they were"
    torch.set_num_threads(before)


# One cluster for all of them; a worker's bits are those of the vectorised engine, which test_ray.py has in every run.
ON_RAY = pytest.param("ray", marks=[pytest.mark.xdist_group("ray"), pytest.mark.exhaustive])


@pytest.fixture(
    params=[ON_RAY if name == "ray" else name for name in ENGINES if name != "reference"],
)
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "ray":
        return request.getfixturevalue("ray_engine")
    return ENGINES[request.param](None)


def outcomes(experiment: Experiment, engine: Engine) -> list[RoundOutcome]:
    state = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    return list(hist(experiment.hist, state, engine, first_round=0, rounds=ROUNDS))


def assert_agree(experiment: Experiment, engine: Engine, tolerance: float = 1e-9) -> None:
    for right, found in zip(
        outcomes(experiment, ReferenceEngine()), outcomes(experiment, engine), strict=True
    ):
        assert right.state.keys() == found.state.keys()
        for name, value in right.state.items():
            assert found.state[name].dtype == value.dtype
            torch.testing.assert_close(found.state[name], value, rtol=tolerance, atol=tolerance, msg=name)
        for one, other in zip(right.results, found.results, strict=True):
            assert one.client_steps == other.client_steps
            assert (one.loss is None) == (other.loss is None)
            if one.loss is not None:
                assert other.loss == pytest.approx(one.loss, rel=max(tolerance, 1e-6))
            assert other.edge_error == pytest.approx(one.edge_error, rel=max(tolerance, 1e-6))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_models(model: str, dtype: torch.dtype, engine: Engine) -> None:
    if model.startswith("resnet18") and dtype == torch.float32:
        pytest.skip("statistics of a few values multiply float32 rounding; float64 decides")
    assert_agree(make_experiment(model, dtype=dtype), engine, TOLERANCES[dtype])


@pytest.mark.parametrize(
    "model", ["mlp", "dense residual", "tied", "convolutional residual", "image residual"]
)
@pytest.mark.parametrize(
    "training",
    [
        {"momentum": 0.9},
        {"weight_decay": 0.3},
        {"clip_norm": 0.05},
        {"momentum": 0.5, "weight_decay": 0.1, "clip_norm": 0.2},
        {"proximal": 0.3, "schedule": "cosine"},
        {"correction": "mtgc", "weights": "samples"},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_local_training(model: str, training: dict[str, Any], engine: Engine) -> None:
    assert_agree(make_experiment(model, training=training), engine)


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers(model: str, name: str, engine: Engine) -> None:
    """Adam far from where its step is the sign of a gradient, which near zero is the sign of its rounding."""
    options = {} if name == "sgd" else {"eps": 0.1}
    training = {"optimiser": name, "weight_decay": 0.1, "proximal": 0.3, "warmup_rounds": 1}
    assert_agree(make_experiment(model, training=training, optimiser=options), engine)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("cloud", CLOUD_STEPS)
def test_between_clients_and_cloud(codec: str, cloud: str, engine: Engine) -> None:
    assert_agree(make_experiment("lenet5", codec={"name": codec}, cloud={"name": cloud}), engine)


@pytest.mark.parametrize("method", METHODS)
def test_methods(method: str, engine: Engine) -> None:
    assert_agree(make_experiment("mlp", method={"name": method}), engine)


@pytest.mark.parametrize("model", ["mlp", "lenet5", "dense residual", "convolutional residual", "dropout"])
def test_scaled_submodels(model: str, engine: Engine) -> None:
    method = {"name": "overlap", "sizes": [0.5, 0.25, 0.25], "scale": 0.7}
    assert_agree(make_experiment(model, method=method), engine)


@pytest.mark.parametrize("model", ["mlp", "convolutional residual"])
def test_uneven_sizes(model: str, engine: Engine) -> None:
    experiment = make_experiment(model, method={"name": "hist", "sizes": [0.5, 0.25, 0.25]})
    assert_agree(experiment, engine)
    sizes = {
        int(outcome.parameters.max() - outcome.parameters.min()) for outcome in outcomes(experiment, engine)
    }
    assert 0 not in sizes


@pytest.mark.parametrize("model", ["mlp", "convolutional residual"])
@pytest.mark.parametrize(
    "network",
    [
        {"participants": 2},
        {"active_cells": 2},
        {"dropout": 0.5},
        {"active_cells": 2, "participants": 2, "dropout": 0.4},
        {"dropout": 1.0},
    ],
    ids=str,
)
def test_participation(model: str, network: dict[str, Any], engine: Engine) -> None:
    assert_agree(make_experiment(model, network={"cells": 3, "clients": 7, **network}), engine)


@pytest.mark.parametrize("model", ["mlp", "convolutional residual"])
@pytest.mark.parametrize("signal", ["equivalent", "simulated"])
def test_over_the_air(model: str, signal: str, engine: Engine) -> None:
    experiment = make_experiment(model, uplink={"name": "aircomp", "signal": signal})
    assert_agree(experiment, engine)
    assert outcomes(experiment, engine)[0].results[0].edge_error > 0


@pytest.mark.parametrize("split", ["shards", "cell-iid", "dirichlet"])
def test_splits(split: str, engine: Engine) -> None:
    assert_agree(make_experiment("mlp", data={"split": split}), engine)


@pytest.mark.parametrize("model", ["mlp of images", "convolutional residual"])
def test_augmentation(model: str, engine: Engine) -> None:
    data = {"split": "iid", "augment": "crop-flip"}
    experiment = make_experiment(model, data=data, network={"cells": 3, "clients": 7, "dropout": 0.2})
    assert_agree(experiment, engine)
    plain = make_experiment(model, network={"cells": 3, "clients": 7, "dropout": 0.2})
    final, without = outcomes(experiment, engine)[-1].state, outcomes(plain, engine)[-1].state
    assert not any(torch.equal(value, without[name]) for name, value in final.items())


def test_many_clients_a_cell(engine: Engine) -> None:
    """More than one block of stacked clients, and more of them than threads."""
    network = Network.uniform(cells=2, clients=47)
    assert_agree(make_experiment("mlp", people=network, training={"batch_size": 3}), engine)


def test_many_cells_of_few_clients(engine: Engine) -> None:
    network = Network.uniform(cells=25, clients=30)
    assert_agree(make_experiment("mlp", people=network, network={"dropout": 0.2}), engine)


def test_a_single_cell(engine: Engine) -> None:
    assert_agree(make_experiment("mlp", people=Network.uniform(cells=1, clients=5)), engine)


def test_a_loss_of_the_users_own(engine: Engine) -> None:
    def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - torch.nn.functional.one_hot(targets, 3)).square().mean()

    for model in ("mlp", "convolutional residual"):
        assert_agree(make_experiment(model, loss=squared), engine)


def test_frozen_parameters_stay_and_are_cut_with_the_rest(engine: Engine) -> None:
    experiment = make_experiment("mlp", frozen=("fc1.bias", "output.bias"))
    assert {"fc1.bias", "output.bias"}.isdisjoint(experiment.hist.plan.trainable)
    assert_agree(experiment, engine)
    final = outcomes(experiment, engine)[-1].state
    for name, value in make_experiment("mlp").model.named_parameters():
        assert torch.equal(final[name], value) == (name in ("fc1.bias", "output.bias"))


def test_runs_repeat_bit_by_bit_on_any_number_of_threads(engine: Engine) -> None:
    experiment = make_experiment(
        "mlp", people=Network.uniform(cells=3, clients=40), training={"batch_size": 2}
    )
    first = outcomes(experiment, engine)[-1].state
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        again = outcomes(experiment, engine)[-1].state
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_what_a_job_brings_stays_as_it_was(engine: Engine) -> None:
    experiment = make_experiment("mlp")
    start = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    inputs = experiment.hist.task.data.inputs.clone()
    before = torch.random.get_rng_state()
    order = experiment.hist.task.split.order.copy()
    kept = {name: value.clone() for name, value in start.items()}
    list(hist(experiment.hist, start, engine, first_round=0, rounds=1))
    assert all(torch.equal(start[name], kept[name]) for name in kept)
    assert torch.equal(experiment.hist.task.data.inputs, inputs)
    assert np.array_equal(experiment.hist.task.split.order, order)
    assert torch.equal(before, torch.random.get_rng_state())


def test_no_jobs_no_results(engine: Engine) -> None:
    assert list(engine.run([])) == []
