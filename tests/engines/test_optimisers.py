"""A new optimiser is one class and one line: every engine, the command line and Python take it from there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import SMALL, Answer
from engine_cases import jobs_of, make_experiment, recorded
from small_training import train

from histfl.engines import ReferenceEngine, VectorisedEngine
from histfl.engines.blocks import Stepper
from histfl.engines.steps.one_by_one import StreamedSteps
from histfl.engines.steps.stacked import StackedSteps, VmappedSteps
from histfl.engines.vectorised import _bundles, _results, _run_in_turn
from histfl.errors import UsageError
from histfl.runs.config import Config, NetworkSettings
from histfl.runs.loading import load_config
from histfl.runs.unread import unread
from histfl.training import CellResult, Task, hist
from histfl.training.optimisers import OPTIMISERS, SGD, InPlaceSGD, Slots, Tensors
from histfl.wireless.clock import CYCLES_PER_STEP


@dataclass(frozen=True)
class Signs:
    """x <- x - learning_rate * m / (|m| + softness) with m <- beta m + (1 - beta) g."""

    learning_rate: float = 0.01
    beta: float = 0.9
    softness: float = 1e-3

    def slots(self, start: Tensors) -> Slots:
        return ([torch.zeros_like(tensor) for tensor in start],)

    def step(self, tensors: Tensors, gradients: Tensors, slots: Slots) -> None:
        for tensor, gradient, mean in zip(tensors, gradients, slots[0], strict=True):
            mean.lerp_(gradient, 1 - self.beta)
            tensor.sub_(mean / (mean.abs() + self.softness), alpha=self.learning_rate)

    def fused(self) -> InPlaceSGD | None:
        return None


@dataclass(frozen=True)
class Proximal:
    """x <- x - learning_rate * (g + pull * (x - first model)), and a count of its steps beside."""

    learning_rate: float = 0.01
    pull: float = 0.5

    def slots(self, start: Tensors) -> Slots:
        return [tensor.clone() for tensor in start], [torch.zeros_like(tensor[..., :1]) for tensor in start]

    def step(self, tensors: Tensors, gradients: Tensors, slots: Slots) -> None:
        for tensor, gradient, first, count in zip(tensors, gradients, *slots, strict=True):
            count.add_(1)
            tensor.sub_((gradient + self.pull * (tensor - first)) / count, alpha=self.learning_rate)

    def fused(self) -> InPlaceSGD | None:
        return None


@dataclass(frozen=True)
class Normalised(Signs):
    """Of all clients together: no elementwise step."""

    def step(self, tensors: Tensors, gradients: Tensors, slots: Slots) -> None:
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.sub_(gradient / gradient.norm(), alpha=self.learning_rate)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, make in (("signs", Signs), ("proximal", Proximal), ("normalised", Normalised)):
        monkeypatch.setitem(OPTIMISERS, name, make)


def assert_same(right: CellResult, found: CellResult) -> None:
    assert found.loss == pytest.approx(right.loss, rel=1e-6)
    for name, value in right.state.items():
        torch.testing.assert_close(found.state[name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("optimiser", ["signs", "proximal"])
@pytest.mark.parametrize("model", ["mlp", "dense residual", "lenet5", "dropout", "convolutional residual"])
def test_engines_agree(model: str, optimiser: str) -> None:
    training = {"optimiser": optimiser, "clip_norm": 0.5, "local_steps": 4}
    experiment = make_experiment(model, training=training, engine="vectorised")
    assert experiment.engine.name == "vectorised"
    jobs = jobs_of(experiment)
    for right, found in zip(ReferenceEngine().run(jobs), experiment.engine.run(jobs), strict=True):
        assert_same(right, found)


@pytest.mark.parametrize("optimiser", ["signs", "proximal"])
@pytest.mark.parametrize("make", [StackedSteps, VmappedSteps, StreamedSteps])
def test_recorded_steps_agree(make: Callable[[Task], Stepper], optimiser: str) -> None:
    """All clients in step, as on a GPU, in one recording that serves both edge rounds."""
    experiment = make_experiment("mlp", training={"optimiser": optimiser, "clip_norm": 0.5})
    jobs, task = jobs_of(experiment), experiment.hist.task
    trainer = recorded(make)(task)
    bundles = _bundles(jobs, trainer)
    ends = _run_in_turn([[jobs[place] for place in places] for places in bundles], trainer)
    found = _results(list(chain(*ends)), task.local.local_steps)
    for place, result in zip(chain(*bundles), found, strict=True):
        assert_same(ReferenceEngine().run([jobs[place]])[0], result)


def test_a_step_that_is_not_elementwise_is_left_to_the_reference_engine() -> None:
    experiment = make_experiment("mlp", training={"optimiser": "normalised"}, engine="auto")
    assert experiment.engine.name == "reference"


def test_the_fused_step_is_the_step() -> None:
    sgd = SGD(0.1, weight_decay=0.3)
    tensor, gradient = torch.linspace(-1, 1, 9).double(), torch.linspace(2, 1, 9).double()
    whole, fused = tensor.clone(), tensor.clone()
    sgd.step([whole], [gradient], sgd.slots([whole]))
    in_place = sgd.fused()
    assert in_place is not None
    in_place.step(fused, gradient)
    torch.testing.assert_close(fused, whole, rtol=1e-14, atol=1e-14)
    assert SGD(0.1, momentum=0.5).fused() is None


def test_from_the_command_line(histfl_command: Callable[..., Answer], tmp_path: Path) -> None:
    chosen = ("--set", "training.optimiser=signs", "--set", "optimiser.beta=0.5")
    for name, more in (("sgd", ()), ("signs", chosen), ("other", (*chosen, "--set", "optimiser.beta=0.1"))):
        assert histfl_command("run", *SMALL, *more, "--out", tmp_path / name).code == 0
    again = "run", tmp_path / "signs" / "config.toml", "--device", "cpu", "--out", tmp_path / "again"
    assert histfl_command(*again).code == 0
    models = {path.name: (path / "model.safetensors").read_bytes() for path in tmp_path.iterdir()}
    assert models["signs"] == models["again"]
    assert len(set(models.values())) == 3
    goes_on = histfl_command("run", *SMALL, *chosen, "--out", tmp_path / "signs", "--resume")
    assert goes_on.code == 0
    other = histfl_command("run", *SMALL, "--out", tmp_path / "signs", "--resume")
    assert other.code == 2
    assert "optimiser" in other.err


def test_from_python_by_name_table_and_object() -> None:
    plain = train(learning_rate=0.1)
    named = train(optimiser="signs", learning_rate=0.1)
    table = train(optimiser={"name": "signs", "learning_rate": 0.1})
    given = train(optimiser=Signs(learning_rate=0.1))
    for run in (table, given):
        assert run.records == named.records
    assert plain.records != named.records
    assert given.config.training.optimiser == "signs"
    assert train(optimiser=SGD(0.1)).records == plain.records
    assert train(optimiser=SGD(0.1)).config == plain.config
    other = train(optimiser=Signs(learning_rate=0.1, beta=0.1))
    assert other.records != named.records
    assert other.config.fingerprint() != named.config.fingerprint()


def test_an_object_of_no_registry_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    named = train(optimiser="signs", learning_rate=0.1)
    monkeypatch.delitem(OPTIMISERS, "signs")
    run = train(optimiser=Signs(learning_rate=0.1))
    assert run.config.training.optimiser == "given"
    assert run.config.optimiser.options == {"beta": 0.9, "softness": 1e-3, "of": f"{__name__}.Signs"}
    assert run.records == named.records


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimiser": "signz"}, "training.optimiser = 'signz': did you mean 'signs'"),
        (
            {"optimiser": {"name": "signs", "gamma": 1}},
            "unknown key optimiser.gamma with training.optimiser = 'signs'; 'signs' takes",
        ),
        ({"optimiser": {"name": "signs", "beta": "much"}}, "optimiser.beta = 'much'"),
        ({"optimiser": Signs}, "give an object, such as Signs()"),
        ({"optimiser": 3}, r"train\(optimiser=3\) has no method slots"),
        ({"optimiser": Signs(), "learning_rate": 0.1}, r"learning_rate=0.1\): the optimiser has"),
        ({"optimiser": "given"}, "'given' is for Python"),
        ({"optimiser": {"name": "signs", "of": "x"}}, "unknown key optimiser.of"),
    ],
)
def test_bad_ones_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        train(**settings)


def test_options_that_are_keys_of_training_have_one_place(histfl_command: Callable[..., Answer]) -> None:
    answer = histfl_command("run", *SMALL, "--set", "optimiser.learning_rate=0.1", "--out", "never")
    assert answer.code == 2
    assert "learning_rate" in answer.err


def test_what_an_optimiser_does_not_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    changed = ("training.momentum=0.5", "training.learning_rate=0.1")
    config = load_config("quickstart", ("training.optimiser=signs", *changed))
    assert unread([config]) == ["training.momentum = 0.5 is not read with training.optimiser = 'signs'"]
    assert unread([load_config("quickstart", changed)]) == []
    with caplog.at_level(logging.WARNING):
        train(optimiser="signs", momentum=0.5)
    assert "training.momentum" in caplog.text


def test_older_runs_keep_their_fingerprints() -> None:
    first = Config(network=NetworkSettings(cycles_per_step=CYCLES_PER_STEP))
    assert first.fingerprint() == sha256(b"{}").hexdigest()


def test_rounds_go_on_with_new_slots() -> None:
    """A client keeps nothing: the second round from a model is the first one from it."""
    experiment = make_experiment("mlp", training={"optimiser": "signs", "rounds": 1})
    start = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    engine = VectorisedEngine()
    first, again = (
        next(hist(experiment.hist, start, engine, first_round=0, rounds=1)).state for _ in range(2)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
