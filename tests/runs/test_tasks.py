"""Tasks of every kind from `histfl.train` and the command line: records, targets, reports, resume and refusals."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import SMALL, Answer
from small_training import INPUTS, mlp, train
from tasks_for_tests import cases, halves, model_of
from torch import nn

import histfl
from histfl.errors import UsageError
from histfl.reports import gather
from histfl.reports.page import report_page
from histfl.runs.records import scalars
from histfl.training.metrics import RootMeanSquare
from histfl.training.objective import Objective

CASES = cases()
VALUES = INPUTS[:, :1] - INPUTS[:, 1:2]


def of_case(name: str, **settings: Any) -> histfl.Run:
    case = CASES[name]
    return train(model_of(case), *halves(case), objective=case.objective, **settings)


def one(inputs: int = 8, outputs: int = 1) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, outputs))


def numbers(**settings: Any) -> histfl.Run:
    return train(one(), (INPUTS, VALUES), objective="regression", **settings)


@pytest.mark.parametrize("name", CASES)
def test_a_task_runs_and_resumes_bit_by_bit(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"evaluate_per": "client", "participants": 1}
    whole = of_case(name, rounds=2, **settings)
    of_case(name, rounds=1, out=tmp_path, **settings)
    resumed = of_case(name, rounds=2, out=tmp_path, resume=True, **settings)
    assert resumed.records == whole.records
    goal = whole.objective.goal
    assert whole.column(goal)[-1] == whole.summary[f"final_{goal}"]
    assert "accuracy" not in whole.records[0] or name in ("segmentation", "language")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert whole.objective.aim.title in page
    assert "Who holds which labels" not in page
    assert resumed.pictures["labels"] is None


def test_theory_and_augmentation_know_other_targets() -> None:
    theory = of_case("a dictionary", theory_every=1).records[0]["theory"]
    assert theory["gradient_norm"] != 0
    assert theory["smoothness"] > 0
    with pytest.raises(UsageError, match="augment = 'crop-flip' is for images"):
        of_case("a tuple", augment="crop-flip")
    assert np.isfinite(of_case("segmentation", augment="crop-flip", theory_every=1).loss).all()


def test_targets_and_the_answer_speak_of_the_goal(tmp_path: Path) -> None:
    found = {}
    for method in ("hist", "hfedavg"):
        found[method] = numbers(
            method=method,
            targets=[1.4, 1.2],
            rounds=4,
            local_steps=4,
            learning_rate=0.1,
            out=tmp_path / method,
            stop_at_targets=True,
        )
    for run in found.values():
        first = next(number for number, value in enumerate(run.column("rmse"), 1) if value <= 1.4)
        assert run.summary["to_target"]["1.4"]["round"] == first
        assert run.summary["best_rmse"] == run.column("rmse").min()
    comparison = histfl.compare(*found.values())
    assert comparison.sentence.startswith("To an RMSE of 1.")
    page = report_page("both", gather([tmp_path]))
    for said in ("RMSE against its cost", "Test RMSE against megabytes", "to 1.2", "Lower and further left"):
        assert said in page


def test_a_goal_that_is_the_loss_or_another_metric() -> None:
    run = train(goal="loss", targets=[1.2, 0.01], rounds=2)
    assert run.summary["best_loss"] == run.loss.min()
    assert run.summary["to_target"]["0.01"] is None
    assert run.config.training.targets == (1.2, 0.01)
    assert train(goal="loss").config.training.targets == ()
    assert numbers(goal="r2", targets=[-50.0]).summary["to_target"]["-50"]["round"] == 1


def test_runs_of_different_goals_do_not_stand_beside_each_other(tmp_path: Path) -> None:
    numbers(out=tmp_path / "a")
    numbers(goal="r2", out=tmp_path / "b")
    gathered = gather([tmp_path])
    assert [run.name for run in gathered.runs] == ["a"]
    assert gathered.broken == (("b", "its goal is r2, and that of a is rmse; report it apart"),)
    with pytest.raises(UsageError, match=r"compare\(\): .*its goal is r2"):
        histfl.compare(a=numbers(), b=numbers(goal="r2"))


@dataclass(frozen=True)
class Largest:
    title: str = "largest error"
    higher_is_better: bool = False
    is_share: bool = False
    bounds: tuple[float, ...] = (-math.inf, math.inf)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).abs().sum().double()

    def value(self, sums: torch.Tensor, samples: int) -> float:
        return float(sums) / samples


def median(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).abs().median()


def correlation(outputs: torch.Tensor, targets: torch.Tensor) -> np.floating[Any]:
    assert len(outputs) == 40  # of all of them at once
    return np.corrcoef(outputs.flatten().numpy(), targets.flatten().numpy())[0, 1]


def test_metrics_of_ones_own(tmp_path: Path) -> None:
    metrics = {"median": (median, "min"), "correlation": correlation, "distance": Largest()}
    settings: dict[str, Any] = {"metrics": metrics, "goal": "median", "targets": [1.0], "rounds": 2}
    run = numbers(out=tmp_path, **settings)
    assert set(metrics) < set(run.records[0])
    assert run.column("distance") == pytest.approx(run.column("mae"))
    outputs = run.model(INPUTS).detach()
    assert run.column("median")[-1] == pytest.approx(float(median(outputs, VALUES)))
    assert run.column("correlation")[-1] == pytest.approx(float(correlation(outputs, VALUES)))
    assert run.summary["best_median"] == run.column("median").min()
    (shown,) = gather([tmp_path]).runs  # without the functions
    assert shown.objective.aim.title == "median"
    assert not shown.objective.aim.higher_is_better
    assert shown.config.objective.minimised == ("median", "distance")
    assert "a median of" in report_page("own", gather([tmp_path]))
    with pytest.raises(UsageError, match=r"objective|another"):
        numbers(out=tmp_path, resume=True, **(settings | {"metrics": {"median": (median, "min")}}))


def test_a_metric_of_ones_own_keeps_its_title_in_the_folder(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"metrics": {"distance": Largest()}, "goal": "distance", "targets": [1.0]}
    run = numbers(out=tmp_path, **settings)
    assert repr(run).startswith("Run(hist: 1 rounds, largest error ")
    assert run.config.objective.titles == {"distance": "largest error"}
    (read,) = gather([tmp_path]).runs  # without the object
    assert (read.objective.aim.title, read.objective.aim.higher_is_better) == ("largest error", False)
    assert "Largest error against its cost" in report_page("own", gather([tmp_path]))
    renamed = {"metrics": {"distance": Largest(title="furthest")}}  # which is no other run
    assert numbers(out=tmp_path, rounds=2, resume=True, **settings | renamed).records[:1] == run.records
    assert gather([tmp_path]).runs[0].objective.aim.title == "furthest"


def test_a_folder_without_titles_is_read_and_gone_on_with(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"metrics": {"distance": Largest()}, "goal": "distance"}
    numbers(out=tmp_path, **settings)
    config = tmp_path / "config.toml"
    text = config.read_text("utf-8")
    older = re.sub(r"\[objective\.titles\]\n.*\n", "", text)
    assert len(older) < len(text)
    config.write_text(older, "utf-8")
    assert gather([tmp_path]).runs[0].objective.aim.title == "distance"
    assert len(numbers(out=tmp_path, rounds=2, resume=True, **settings).records) == 2
    config.write_text(text.replace('"largest error"', '"two\\nlines"'), "utf-8")
    ((_, said),) = gather([tmp_path]).broken
    assert "objective.titles: 'distance' = 'two\\nlines': a title is a few words in one line" in said


def test_a_direction_may_be_the_functions_own_and_names_are_known_metrics() -> None:
    def spread(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(outputs.std())

    spread.higher_is_better = False  # type: ignore[attr-defined]
    run = numbers(metrics={"spread": spread}, goal="spread")
    assert not run.objective.aim.higher_is_better
    named = train(one(8, 3), metrics=["miou"])
    assert {"accuracy", "miou"} <= set(named.records[0])


def own_objective() -> Objective:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).abs().pow(1.5).mean()

    return Objective(loss, {"rmse": RootMeanSquare(), "worst": Largest()}, "worst")


def test_an_objective_of_ones_own(tmp_path: Path) -> None:
    def run(**settings: Any) -> histfl.Run:
        return train(
            one(),
            (INPUTS, VALUES),
            objective=own_objective(),
            metrics={"median": (median, "min")},
            **settings,
        )

    whole = run(rounds=2)
    run(rounds=1, out=tmp_path)
    assert run(rounds=2, out=tmp_path, resume=True).records == whole.records
    table = whole.config.objective
    assert (table.name, table.goal, table.metrics) == ("given", "worst", ("rmse",))
    assert table.minimised == ("worst", "median")
    assert whole.summary["final_worst"] == whole.column("worst")[-1]
    assert gather([tmp_path]).runs[0].objective.goal == "worst"


def test_a_loss_of_ones_own_takes_the_place_of_an_objectives() -> None:
    def doubled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 2 * nn.functional.mse_loss(outputs, targets)

    assert numbers(loss=doubled).loss[0] != numbers().loss[0]


@pytest.mark.parametrize("per", ["client", "cell"])
def test_evaluation_on_the_own_data_is_recorded_when_asked_for(per: str, tmp_path: Path) -> None:
    run = train(evaluate_per=per, rounds=2, out=tmp_path, method="hfedavg")
    told = run.records[-1]["own_data"]
    assert told["per"] == per
    # i.i.d. parts of one size: their mean is that of the whole set, which is also the test set here
    assert told["values"]["loss"]["mean"] == pytest.approx(run.loss[-1], rel=1e-5)
    assert told["values"]["accuracy"]["worst_decile"] <= told["values"]["accuracy"]["mean"]
    assert run.summary["own_data"] == told
    assert f"of the worst tenth of the {per}s" in (tmp_path / "report.html").read_text("utf-8")
    plain = train(rounds=2, method="hfedavg")
    assert "own_data" not in plain.records[0]
    assert [record | {"own_data": 0} for record in plain.records] == [
        record | {"own_data": 0} for record in run.records
    ]
    followed = scalars(run.records[-1])  # what TensorBoard and MLflow are told
    assert followed["own_data/values/accuracy/worst_decile"] == told["values"]["accuracy"]["worst_decile"]


def failing(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    raise ZeroDivisionError("no positives\nat all")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "numbers to classify": (
        {"data": (INPUTS, VALUES)},
        r"training set: the targets are torch.float32 \[sample, 1\], and objective 'classification' takes whole class "
        "numbers.*'regression'",
    ),
    "classes to regress": (
        {"objective": "regression"},
        r"class numbers, torch.int64 \[sample\].*targets.float\(\)",
    ),
    "classes as labels": (
        {"objective": "multilabel"},
        r"'multilabel' takes 0.0 or 1.0.*F.one_hot\(targets\)",
    ),
    "labels beyond 1": (
        {"objective": "multilabel", "data": (INPUTS, VALUES)},
        "the targets reach from .* to .*'multilabel' takes 0.0 or 1.0",
    ),
    "no pixels": (
        {"objective": "segmentation"},
        r"'segmentation' takes class numbers.*\[sample, height, width\]",
    ),
    "nothing but ignored": (
        {"objective": "language-modelling", "data": (INPUTS, torch.full((40, 8), -100))},
        "every target is -100, the objective's ignore_index",
    ),
    "another number for ignored": (
        {"objective": "language-modelling", "data": (INPUTS, torch.full((40, 8), -1))},
        "target -1 is no class number; .*objective.ignore_index = -100",
    ),
    "pixels for a classifier": (
        {
            "model": nn.Sequential(
                nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 1)
            )
        },
        "objective = 'segmentation'",
    ),
    "shards of numbers": (
        {"objective": "regression", "data": (INPUTS, VALUES), "model": one(), "split": "shards"},
        r"split = 'shards' deals samples by their class.*\(sample, 1\); use 'iid', or say who holds",
    ),
    "two outputs for one number": (
        {"objective": "regression", "data": (INPUTS, VALUES), "model": one(8, 2)},
        r"returns shape \(5, 2\) for 5 samples with targets of shape \(1,\); it must return \(5, 1\)",
    ),
    "a target that is none": (
        {"objective": "regression", "data": (INPUTS, VALUES / 0)},
        "training set: the target of sample 0 holds NaN",
    ),
    "test targets of another shape": (
        {"objective": "regression", "data": (INPUTS, VALUES), "test": (INPUTS, INPUTS), "model": one()},
        r"training targets have shape \(1,\), test targets \(8,\)",
    ),
    "an error below zero": (
        {"objective": "regression", "targets": [-1.0]},
        "targets.0 = -1.0: an RMSE is at least 0",
    ),
    "an mIoU above one": ({"objective": "segmentation", "targets": [1.5]}, "an mIoU lies from 0 to 1"),
    "an R2 above one": ({"objective": "regression", "goal": "r2", "targets": [2.0]}, "an R2 is at most 1"),
    "a perplexity of a half": (
        {"objective": "language-modelling", "targets": [0.5]},
        "a perplexity is at least 1",
    ),
    "an objective of 3": ({"objective": 3}, r"objective=3\): give a name"),
    "an unknown objective": (
        {"objective": "ranking"},
        "'ranking': Input should be 'classification', 'regression'",
    ),
    "an unknown error": (
        {"objective": {"name": "regression", "error": "cubed"}},
        "objective.error = 'cubed'",
    ),
    "an unknown goal": ({"goal": "acuracy"}, "objective.goal = 'acuracy' is no metric.*'accuracy'"),
    "an objective without its goal": (
        {"objective": Objective(nn.functional.cross_entropy, {}, "f1")},
        "goal 'f1' is no metric of it",
    ),
    "a count that is none": (
        {"objective": Objective(nn.functional.cross_entropy, {}, "loss", counted=lambda targets: "all")},
        "counted of the objective returns 'all'; it must return how many targets",
    ),
    "counted by 3": (
        {"objective": Objective(nn.functional.cross_entropy, {}, "loss", counted=3)},  # type: ignore[arg-type]
        "the objective's counted is 3; give a function",
    ),
    "metrics of 3": ({"metrics": 3}, r"metrics=3\): give a table"),
    "a metric of 3": ({"metrics": {"f1": 3}}, "the metric 'f1' is 3; give"),
    "a direction of its own": ({"metrics": {"f1": (median, "up")}}, "the metric 'f1' is .*; give"),
    "an unknown metric": ({"metrics": ["f2"]}, "objective.metrics.* = 'f2'"),
    "a class of a metric": (
        {"metrics": {"f1": Largest}},
        r"is a class; give an object of it, such as Largest\(\)",
    ),
    "a metric named loss": ({"metrics": {"loss": median}}, "'loss': records have something else"),
    "a goal without a direction": ({"metrics": {"f1": median}, "goal": "f1"}, r"\{'f1': \(f, 'max'\)\}"),
    "a metric that fails": (
        {"metrics": {"auc": failing}},
        "the metric 'auc' fails on outputs of 40 samples: ZeroDivisionError: no positives at all; correct it",
    ),
    "a metric of a list": (
        {"metrics": {"auc": lambda o, t: o}},
        "the metric 'auc' returns .*; it must return one number",
    ),
    "a metric that is none": ({"metrics": {"auc": lambda o, t: float("nan")}}, "the metric 'auc' is nan"),
    "an accuracy of 57": (
        {"metrics": {"accuracy": lambda o, t: 57}},
        "'accuracy' is 57; it must lie from 0 to 1",
    ),
    "a known metric that does not fit": (
        {"metrics": ["rmse"]},
        "the metric 'rmse' fails on outputs of 5 samples",
    ),
    "a target that no value of an own metric reaches": (
        {"metrics": {"largest": Largest(bounds=(0.0, 1.0))}, "goal": "largest", "targets": [0.5, 70.0]},
        "targets.1 = 70.0: a largest error lies from 0 to 1",
    ),
    "a title of two lines": (
        {"metrics": {"largest": Largest(title="two\nlines")}},
        r"'largest' has title = 'two\\nlines'; give a few words in one line",
    ),
    "no title": ({"metrics": {"largest": Largest(title=" ")}}, "'largest' has title = ' '; give a few words"),
    "bounds of one": (
        {"metrics": {"largest": Largest(bounds=(1.0,))}},
        r"'largest' has bounds = \(1.0,\); they are its lowest and highest value",
    ),
    "two goals": (
        {"objective": {"name": "classification", "goal": "loss"}, "goal": "accuracy"},
        r"train\(goal='accuracy'\): the objective has goal = 'loss'; leave out one",
    ),
    "an ignored class beyond 64 bits": (
        {"objective": {"name": "segmentation", "ignore_index": 10**30}},
        "objective.ignore_index = 1000.*; it must fit into 64 bits",
    ),
    "per user": ({"evaluate_per": "user"}, "evaluate.per = 'user': Input should be 'cell' or 'client'"),
}


@pytest.mark.parametrize(("settings", "said"), REFUSED.values(), ids=REFUSED)
def test_a_misfit_of_a_task_is_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        train(**settings)
    assert "\n" not in str(raised.value)


def houses() -> tuple[Any, Any]:
    return (INPUTS, VALUES), (INPUTS, VALUES)


def two_sides() -> tuple[Any, Any]:
    return ((INPUTS, INPUTS), VALUES), ((INPUTS, INPUTS), VALUES)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def command_line(data: str, *more: str) -> list[str]:
    chosen = (f"data.name=test_tasks:{data}", "data.split=iid", "objective.name=regression", *more)
    return [*SMALL, *(word for setting in chosen for word in ("--set", setting))]


def test_a_regression_from_the_command_line(
    histfl_command: Callable[..., Answer], tmp_path: Path, here: None
) -> None:
    asked = command_line(
        "houses", "training.targets=[3, 0.1]", "evaluate.per=client", "objective.error=huber"
    )
    answer = histfl_command("run", *asked, "--json", "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert set(answer.json["to_target"]) == {"3", "0.1"}
    assert (
        answer.json["final_rmse"] == json.loads((tmp_path / "run" / "summary.json").read_text())["final_rmse"]
    )
    assert "RMSE" in answer.err  # the progress
    shown = histfl_command("report", tmp_path / "run").out
    assert "is at an RMSE of" in shown
    assert shown.index("on the data of each  client") < shown.index("mean RMSE") < shown.index("worst tenth")
    refused = histfl_command("run", *command_line("two_sides"), "--out", tmp_path / "two")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "model 'mlp' takes one tensor" in refused.err
    mix = histfl_command("data", "show", "quickstart", "--set", "data.name=test_tasks:houses")
    assert mix.code == 2
    assert "no classes; there is no label mix to show" in mix.err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["objective.name=given"], "objective.name = 'given' is for Python"),
        (['objective.maximised=["f1"]'], "objective.maximised = .* is for Python"),
        (["objective.goal=f1"], "objective.goal = 'f1' is no metric of this run; use accuracy, loss"),
        (["objective.name=regression", "data.split=iid"], "class numbers, torch.int64"),
        (["evaluate.per=all"], "Input should be 'cell' or 'client'"),
    ],
)
def test_what_the_command_line_cannot_take_is_one_line(
    histfl_command: Callable[..., Answer], tmp_path: Path, settings: list[str], said: str
) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    answer = histfl_command("run", *SMALL, *words, "--out", tmp_path / "run")
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert re.search(said, answer.err), answer.err


def test_the_plain_classifier_has_no_more_than_before() -> None:
    assert "own_data" not in train(mlp()).records[0]
