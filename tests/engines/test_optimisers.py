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
from histfl.engines.blocks import Stepper, bundled
from histfl.engines.steps.one_by_one import StreamedSteps
from histfl.engines.steps.stacked import StackedSteps, VmappedSteps
from histfl.engines.vectorised import _results, _run_in_turn
from histfl.errors import UsageError
from histfl.runs.config import Config, NetworkSettings
from histfl.runs.loading import load_config
from histfl.runs.unread import unread
from histfl.training import CellResult, Task, hist
from histfl.training.optimisers import OPTIMISERS, SGD, InPlaceSGD, Slots, Tensors
from histfl.training.schedules import Step
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


class Rateless:
    """An object of the user's own that is no dataclass."""

    def slots(self, start: Tensors) -> Slots:
        return ()

    def step(self, tensors: Tensors, gradients: Tensors, slots: Slots) -> None:
        torch._foreach_add_(list(tensors), list(gradients), alpha=-0.01)

    def fused(self) -> InPlaceSGD | None:
        return None


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, make in (("signs", Signs), ("proximal", Proximal), ("normalised", Normalised)):
        monkeypatch.setitem(OPTIMISERS, name, make)


def assert_same(right: CellResult, found: CellResult) -> None:
    assert found.loss == pytest.approx(right.loss, rel=1e-6)
    for name, value in right.state.items():
        torch.testing.assert_close(found.state[name], value, rtol=1e-9, atol=1e-9, msg=name)


STEPS: dict[str, dict[str, Any]] = {
    "signs": {"optimiser": "signs", "clip_norm": 0.5},
    "proximal": {"optimiser": "proximal", "clip_norm": 0.5},
    "adam": {"optimiser": "adam"},
    "adamw": {"optimiser": "adamw", "weight_decay": 0.1, "proximal": 0.3, "clip_norm": 0.5},
    "fedprox": {"proximal": 0.5, "momentum": 0.5},
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("model", ["mlp", "dense residual", "lenet5", "dropout", "convolutional residual"])
def test_engines_agree(model: str, steps: str) -> None:
    training = {"local_steps": 4, **STEPS[steps]}
    experiment = make_experiment(model, training=training, engine="vectorised")
    assert experiment.engine.name == "vectorised"
    jobs = jobs_of(experiment)
    for right, found in zip(ReferenceEngine().run(jobs), experiment.engine.run(jobs), strict=True):
        assert_same(right, found)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("make", [StackedSteps, VmappedSteps, StreamedSteps])
def test_recorded_steps_agree(make: Callable[[Task], Stepper], steps: str) -> None:
    """All clients in step, as on a GPU, in one recording that serves both edge rounds."""
    experiment = make_experiment("mlp", training=STEPS[steps])
    jobs, task = jobs_of(experiment), experiment.hist.task
    trainer = recorded(make)(task)
    bundles = list(bundled(jobs, trainer))
    ends = _run_in_turn([[jobs[place] for place in places] for places in bundles], trainer)
    found = _results(list(chain(*ends)), task.local.local_steps)
    for place, result in zip(chain(*bundles), found, strict=True):
        assert_same(ReferenceEngine().run([jobs[place]])[0], result)


MAKERS = {"as it is": None, "stacked": StackedSteps, "vmapped": VmappedSteps, "streamed": StreamedSteps}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_rounds_of_a_schedule_have_their_rates(
    make: str, optimiser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one engine, round after round; over the air too, where updates are divided by the rate."""
    stepper, training = MAKERS[make], {"optimiser": optimiser, "schedule": "cosine", "warmup_rounds": 1}
    uplink = {"name": "ideal" if stepper else "aircomp"}
    experiment = make_experiment("mlp", training=training, uplink=uplink)
    if stepper is not None:
        monkeypatch.setattr("histfl.engines.vectorised.choose_trainer", recorded(stepper))
    start = {name: value.detach() for name, value in experiment.model.named_parameters()}
    rights, founds = (
        list(hist(experiment.hist, start, engine, first_round=0, rounds=2))
        for engine in (ReferenceEngine(), VectorisedEngine())
    )
    for right, found in zip(rights, founds, strict=True):
        for name, value in right.state.items():
            torch.testing.assert_close(found.state[name], value, rtol=1e-8, atol=1e-8, msg=name)
    halved = make_experiment("mlp", training={"optimiser": optimiser, "learning_rate": 0.05}, uplink=uplink)
    (first,) = hist(halved.hist, start, ReferenceEngine(), first_round=0, rounds=1)
    assert all(torch.equal(first.state[name], value) for name, value in rights[0].state.items())


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
        (
            {"optimiser": "signz"},
            "training.optimiser = 'signz': Input should be 'sgd', 'adam', .*'signs'",
        ),
        (
            {"optimiser": {"name": "signs", "gamma": 1}},
            "unknown key optimiser.gamma with training.optimiser = 'signs'; 'signs' takes",
        ),
        ({"optimiser": {"name": "signs", "beta": "much"}}, "optimiser.beta = 'much'"),
        ({"optimiser": Signs}, "give an object, such as Signs()"),
        ({"optimiser": 3}, r"train\(optimiser=3\) has no method slots"),
        ({"optimiser": torch.optim.Adam}, r"train\(optimiser=Adam\): torch's.* give a name, sgd or adam or"),
        ({"optimiser": torch.optim.SGD([torch.ones(1)], lr=0.1)}, r"train\(optimiser=SGD\): torch's"),
        ({"optimiser": Signs(), "learning_rate": 0.1}, r"learning_rate=0.1\): the optimiser has"),
        ({"optimiser": "given"}, "'given' is for Python"),
        ({"optimiser": {"name": "signs", "of": "x"}}, "unknown key optimiser.of"),
        (
            {"optimiser": {"name": "adam", "beta1": 1.5}},
            "optimiser.beta1 = 1.5; it must be at least 0 and below 1",
        ),
        ({"optimiser": {"name": "adam", "beta3": 0.5}}, "did you mean 'beta2'"),
        (
            {"optimiser": {"name": "adam", "eps": 1e-300}},
            "optimiser.eps = 1e-300; it must be positive, at least",
        ),
        ({"proximal": -0.1}, "training.proximal = -0.1"),
        ({"schedule": "cosin"}, "training.schedule = 'cosin'"),
        ({"schedule": "given"}, "training.schedule = 'given' is for Python"),
        ({"schedule": Step}, r"give an object, such as Step\(\)"),
        ({"schedule": 3}, r"train\(schedule=3\) has no method factor"),
        ({"schedule": {"name": "step", "schedule_every": 2}, "schedule_every": 3}, "the schedule has"),
        ({"schedule": "step", "schedule_factor": 0.0}, "training.schedule_factor = 0.0"),
        (
            {"schedule": "cosine", "rounds": 5, "warmup_rounds": 5},
            "warmup_rounds = 5 leaves nothing of schedule_rounds = 5; lower the one",
        ),
        (
            {"optimiser": Rateless(), "schedule": "step"},
            "training.schedule = 'step' changes the optimiser's learning_rate, and Rateless is no dataclass",
        ),
        ({"optimiser": Rateless(), "warmup_rounds": 2}, "training.warmup_rounds = 2 changes"),
    ],
)
def test_bad_ones_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        train(**settings)


@pytest.mark.parametrize(
    ("key", "home"),
    [
        ("learning_rate=0.1", "training.learning_rate"),
        ("momentum=0.5", "training.momentum"),
        ("name=adam", "training.optimiser"),
    ],
)
def test_options_that_are_keys_of_training_have_one_place(
    key: str, home: str, histfl_command: Callable[..., Answer]
) -> None:
    answer = histfl_command("run", *SMALL, "--set", f"optimiser.{key}", "--out", "never")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert f"write it as {home}" in answer.err


def test_what_an_optimiser_does_not_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    changed = ("training.momentum=0.5", "training.learning_rate=0.1")
    config = load_config("quickstart", ("training.optimiser=signs", *changed))
    assert unread([config]) == ["training.momentum = 0.5 is not read with training.optimiser = 'signs'"]
    assert unread([load_config("quickstart", changed)]) == []
    with caplog.at_level(logging.WARNING):
        train(optimiser="signs", momentum=0.5)
    assert "training.momentum" in caplog.text


def test_what_a_schedule_does_not_read_is_told() -> None:
    config = load_config(
        "quickstart", ("training.schedule=step", "training.schedule_rounds=9", "training.warmup_rounds=2")
    )
    assert unread([config]) == ["training.schedule_rounds = 9 is not read with training.schedule = 'step'"]
    adam = load_config("quickstart", ("training.optimiser=adam", "training.momentum=0.5"))
    assert unread([adam]) == ["training.momentum = 0.5 is not read with training.optimiser = 'adam'"]


def test_a_cosines_length_is_that_of_the_run_as_it_begins() -> None:
    begun = load_config("quickstart", ("training.schedule=cosine", "training.rounds=9"))
    assert begun.training.schedule_rounds == 9
    kept = Config.model_validate(begun.model_dump())
    longer = kept.model_copy(update={"training": kept.training.model_copy(update={"rounds": 12})})
    assert longer.fingerprint() == begun.fingerprint()
    other = load_config("quickstart", ("training.schedule=cosine", "training.rounds=12"))
    assert other.fingerprint() != begun.fingerprint()
    assert load_config("quickstart", ("training.rounds=12",)).training.schedule_rounds is None


def test_older_runs_keep_their_fingerprints() -> None:
    first = Config(network=NetworkSettings(cycles_per_step=CYCLES_PER_STEP))
    assert first.fingerprint() == sha256(b"{}").hexdigest()


@dataclass(frozen=True)
class Halving:
    """Half the rate in every round."""

    def factor(self, rounds: int, *, warmup_rounds: int) -> float:
        return 0.5**rounds


def test_a_schedule_by_name_table_and_object() -> None:
    options = {"schedule_every": 1, "schedule_factor": 0.5}
    named = train(rounds=3, schedule="step", **options)
    assert train(rounds=3, schedule={"name": "step", **options}).config == named.config
    assert train(rounds=3, schedule=Step(**options)).config == named.config
    own = train(rounds=3, schedule=Halving())
    assert own.config.training.schedule == "given"
    assert own.records == named.records
    assert own.records != train(rounds=3).records


def test_rounds_go_on_with_new_slots() -> None:
    """A client keeps nothing: the second round from a model is the first one from it."""
    experiment = make_experiment("mlp", training={"optimiser": "signs", "rounds": 1})
    start = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    engine = VectorisedEngine()
    first, again = (
        next(hist(experiment.hist, start, engine, first_round=0, rounds=1)).state for _ in range(2)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
