"""A method and a schedule with parameters that nobody knew: a class and a line each, and they are keys everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import SMALL, Answer
from small_training import INPUTS, TARGETS
from torch import nn

import histfl
from histfl.arrays import Ints
from histfl.errors import UsageError
from histfl.partition import Plan, Submodel
from histfl.runs.config import Config
from histfl.runs.store import RunFolder
from histfl.runs.unread import unread
from histfl.seeds import Seeds
from histfl.settings import Count, checked
from histfl.training.dealers import Method, RandomDealer
from histfl.training.methods import METHODS
from histfl.training.schedules import SCHEDULES

Command = Callable[..., Answer]


@dataclass(frozen=True)
class SlowDealer(RandomDealer):
    """Deals as HIST does, but anew only every `keep` rounds."""

    keep: int = 2

    def deal(
        self, plan: Plan, counts: Ints, cells: Sequence[int], round: int, seeds: Seeds
    ) -> tuple[Submodel, ...]:
        return super().deal(plan, counts, cells, round - round % self.keep, seeds)


def slow(keep: Count = 2) -> SlowDealer:
    return SlowDealer(keep=keep)


@dataclass(frozen=True)
class Sawtooth:
    """Full, then `low` of it, in turns."""

    low: float

    def factor(self, rounds: int, *, warmup_rounds: int) -> float:
        return self.low if rounds % 2 else 1.0


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "slow", Method("alternating", slow, title="slow", about="deals seldom"))
    monkeypatch.setitem(SCHEDULES, "sawtooth", Sawtooth)


NEW = (
    "--set",
    "method.name=slow",
    "--set",
    "training.schedule=sawtooth",
    "--set",
    "training.low=0.5",
    "--set",
    "training.rounds=4",
)


def test_they_are_keys_of_a_file_and_on_the_command_line(histfl_command: Command, tmp_path: Path) -> None:
    first, often = tmp_path / "first", tmp_path / "often"
    assert histfl_command("run", *SMALL, *NEW, "--out", first).code == 0
    text = (first / "config.toml").read_text("utf-8")
    assert "low = 0.5" in text
    assert "keep" not in text  # its default is the dealer's
    assert histfl_command("run", first / "config.toml", "--set", "method.keep=1", "--out", often).code == 0
    assert "keep = 1" in (often / "config.toml").read_text("utf-8")
    losses = [[record["loss"] for record in RunFolder(folder).read_rounds()] for folder in (first, often)]
    assert losses[0][:1] == losses[1][:1]
    assert losses[0][1:] != losses[1][1:]  # dealt anew in the second round
    longer = ("--resume", "--set", "training.rounds=5")
    assert histfl_command("run", often / "config.toml", "--out", often, *longer).code == 0
    assert len(RunFolder(often).read_rounds()) == 5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("method.keep=0",), "method.keep = 0"),
        (("method.keep=soon",), "method.keep = 'soon'"),
        (("method.kep=1",), "unknown key 'method.kep'; did you mean 'keep'?"),
        (("training.lo=1",), "unknown key 'training.lo'; did you mean 'low'?"),
        (("training.schedule=sawtooth",), "schedule 'sawtooth': missing a required argument: 'low'"),
    ],
)
def test_a_slip_is_one_line(settings: Sequence[str], said: str, histfl_command: Command) -> None:
    answer = histfl_command("run", *SMALL, *(word for each in settings for word in ("--set", each)))
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert said in line


def test_one_that_nothing_reads_is_told() -> None:
    (reason,) = unread([checked(Config, {"method": {"keep": 3}}, "test")])
    assert reason == "method.keep = 3 is not read with method.name = 'hist'"


def test_from_python_they_stand_in_the_table() -> None:
    def trained(keep: int) -> histfl.Run:
        return histfl.train(
            nn.Sequential(nn.Linear(INPUTS.shape[1], 12), nn.ReLU(), nn.Linear(12, 3)),
            (INPUTS, TARGETS),
            (INPUTS, TARGETS),
            network=histfl.Network.uniform(cells=2, clients_per_cell=2),
            split="iid",
            method={"name": "slow", "keep": keep},
            schedule={"name": "sawtooth", "low": 0.5},
            rounds=1,
            edge_rounds=1,
            local_steps=1,
            batch_size=2,
        )

    assert trained(3).config.method.values()["keep"] == 3
    with pytest.raises(UsageError, match=r"method\.keep = -1"):
        trained(-1)
