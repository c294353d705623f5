"""A run that ends at its targets: the rounds of the whole run, as far as they go."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import SMALL, Answer

Command = Callable[..., Answer]
STOP = ["--set", "training.stop_at_targets=true"]


def rounds(folder: Path) -> list[str]:
    return (folder / "rounds.jsonl").read_text().splitlines()


@pytest.fixture
def whole(histfl_command: Command, tmp_path: Path) -> tuple[Path, float]:
    """Twelve rounds, and the best accuracy of the first six."""
    out = tmp_path / "whole"
    summary = histfl_command("run", *SMALL, "--set", "training.rounds=12", "--out", out, "--json").json
    assert not summary["stopped_at_targets"]
    accuracies = [json.loads(line)["accuracy"] for line in rounds(out)]
    assert accuracies[0] < max(accuracies[:6])
    return out, max(accuracies[:6])


def test_a_run_ends_after_the_round_that_reaches_the_last_target(
    histfl_command: Command, tmp_path: Path, whole: tuple[Path, float]
) -> None:
    folder, target = whole
    options = ["--set", "training.rounds=12", *STOP, "--set", f"training.targets=[0.05, {target}]"]
    summary = histfl_command("run", *SMALL, *options, "--out", tmp_path / "stopped", "--json").json
    assert summary["stopped_at_targets"]
    assert summary["to_target"][f"{target:g}"]["round"] == summary["rounds"] <= 6
    assert rounds(tmp_path / "stopped") == rounds(folder)[: summary["rounds"]]


def test_a_stopped_run_is_done_and_goes_on_when_more_is_asked(
    histfl_command: Command, tmp_path: Path, whole: tuple[Path, float]
) -> None:
    folder, target = whole
    out, twelve = tmp_path / "stopped", ["--set", "training.rounds=12"]
    options = [*twelve, *STOP, "--set", f"training.targets=[{target}]"]
    first = histfl_command("run", *SMALL, *options, "--out", out, "--json").json
    again = histfl_command("run", *SMALL, *options, "--out", out, "--resume", "--json").json
    assert again["rounds"] == first["rounds"]
    last = histfl_command("run", *SMALL, *twelve, "--out", out, "--resume", "--json").json
    assert last["rounds"] == 12
    assert rounds(out) == rounds(folder)
