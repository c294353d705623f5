"""Objectives and metrics: given by name, written into the records, targets follow the goal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from commands import SMALL, Answer
from torch import nn

from histfl.training.metrics import METRICS
from histfl.training.objective import Objective, check_scores
from histfl.training.objectives import OBJECTIVES


@dataclass(frozen=True)
class Confidence:
    """Minus the logarithm of the right class's probability, the mean: lower is better, and no share."""

    title: str = "surprise"
    higher_is_better: bool = False
    is_share: bool = False

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs.double(), targets, reduction="sum")

    def value(self, sums: torch.Tensor, samples: int) -> float:
        return float(sums) / samples


def smoothed(smoothing: float = 0.1) -> Objective:
    """Classification with smoothed labels; its goal is the surprise."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=smoothing)

    return Objective(loss, {"surprise": Confidence()}, "surprise", check_scores)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBJECTIVES, "smoothed", smoothed)
    monkeypatch.setitem(METRICS, "surprise", Confidence)


def records(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text("utf-8").splitlines()]


def test_a_registered_metric_stands_in_every_record(
    histfl_command: Callable[..., Answer], tmp_path: Path, registered: None
) -> None:
    chosen = ("--set", 'objective.metrics=["surprise"]', "--json", "--out", tmp_path)
    answer = histfl_command("run", *SMALL, *chosen)
    assert answer.code == 0, answer.err
    for record in records(tmp_path):
        assert 0 <= record["accuracy"] <= 1
        assert record["surprise"] == pytest.approx(record["loss"], rel=1e-5)


def test_a_registered_objective_runs_and_its_goal_is_what_targets_speak_of(
    histfl_command: Callable[..., Answer], tmp_path: Path, registered: None
) -> None:
    chosen = ("--set", "objective.name=smoothed", "--set", "training.targets=[2.29, 0.01]")
    answer = histfl_command("run", *SMALL, *chosen, "--json", "--out", tmp_path)
    assert answer.code == 0, answer.err
    values = [record["surprise"] for record in records(tmp_path)]
    first = next(number for number, value in enumerate(values, start=1) if value <= 2.29)
    assert answer.json["to_target"]["2.29"]["round"] == first
    assert answer.json["to_target"]["0.01"] is None
    assert answer.json["best_surprise"] == min(values)
    assert "accuracy" not in records(tmp_path)[0]
    shown = histfl_command("report", tmp_path)
    assert shown.code == 0, shown.err
    assert "To a surprise of" not in shown.out  # there is nothing to compare with
    assert "surprise" in shown.out


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("objective.name=smothed", "'smoothed'"),
        ("objective.smoothing=0.2", "unknown key objective.smoothing with objective.name = 'classification'"),
        ('objective.metrics=["surprize"]', "'surprise'"),
        ("training.targets=[1.5]", "accuracy"),
    ],
)
def test_a_bad_choice_is_one_line(
    histfl_command: Callable[..., Answer], tmp_path: Path, registered: None, setting: str, said: str
) -> None:
    answer = histfl_command("run", *SMALL, "--set", setting, "--out", tmp_path / "run")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert said in answer.err
