"""The cloud's step and what it remembers: given by name, resumed bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from commands import SMALL, Answer

from histfl.partition import State
from histfl.training.cloud import CLOUD_STEPS, Replace


@dataclass(frozen=True)
class Halfway:
    """Half of the way to the merged model, and as far again as the step before went (a momentum)."""

    momentum: float = 0.5

    def step(self, old: State, merged: State, memory: State) -> tuple[State, State]:
        zero = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
        moves = {
            name: 0.5 * (merged[name] - old[name]) + self.momentum * (memory or zero)[name] for name in old
        }
        return {name: old[name] + moves[name] for name in old}, moves


@pytest.fixture
def halfway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLOUD_STEPS, "halfway", Halfway)


def test_replace_takes_the_merged_model() -> None:
    old, merged = {"x": torch.zeros(2)}, {"x": torch.ones(2)}
    assert Replace().step(old, merged, {}) == (merged, {})


def test_a_registered_step_runs_from_the_command_line_and_resumes_bit_by_bit(
    histfl_command: Callable[..., Answer], tmp_path: Path, halfway: None
) -> None:
    chosen = ("--set", "cloud.name=halfway", "--set", "cloud.momentum=0.7", "--json")
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    assert histfl_command("run", *SMALL, *chosen, "--out", whole).code == 0
    assert histfl_command("run", *SMALL, *chosen, "--set", "training.rounds=1", "--out", pieces).code == 0
    assert histfl_command("run", *SMALL, *chosen, "--out", pieces, "--resume").code == 0
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (whole / name).read_bytes() == (pieces / name).read_bytes(), name
    assert histfl_command("run", *SMALL, "--json", "--out", tmp_path / "plain").code == 0
    assert (whole / "rounds.jsonl").read_bytes() != (tmp_path / "plain" / "rounds.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["cloud.name=halfways"], "'halfway'"),
        (["cloud.name=halfway", "cloud.momentun=0.5"], "did you mean 'momentum'?"),
        (
            ["cloud.name=halfway", "cloud.momentum=fast"],
            "cloud.momentum = 'fast': Input should be a valid number",
        ),
        (["cloud.momentum=0.5"], "unknown key cloud.momentum with cloud.name = 'replace'"),
    ],
)
def test_a_bad_choice_is_one_line(
    histfl_command: Callable[..., Answer], tmp_path: Path, halfway: None, settings: list[str], said: str
) -> None:
    changed = [word for setting in settings for word in ("--set", setting)]
    answer = histfl_command("run", *SMALL, *changed, "--out", tmp_path / "run")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert said in answer.err
    assert not (tmp_path / "run").exists()
