"""A method, a size policy, a split, a channel: each one line in its registry, and a run knows it by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Answer

from histfl.data.splits import SPLITS
from histfl.errors import UsageError
from histfl.runs.config import Config
from histfl.settings import checked
from histfl.sizing import POLICIES, SizingProblem, uniform
from histfl.training.methods import METHODS
from histfl.wireless.channels import CHANNELS, Rayleigh

Command = Callable[..., Answer]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """One of each, and what they were asked."""
    asked: dict[str, list[Any]] = {"method.sizes": [], "data.split": [], "uplink.channel": []}

    def first_largest(problem: SizingProblem) -> Any:
        asked["method.sizes"].append(problem.cap_ratio)
        counts = uniform(problem)
        counts[0] += 1
        counts[1] -= 1
        return counts

    def backwards(labels: Any, clients: Any, generator: Any, concentrations: Any) -> Any:
        asked["data.split"].append(len(labels))
        return SPLITS["iid"](labels[::-1], clients, generator, concentrations)

    def steady(k_factor_db: float) -> Rayleigh:
        asked["uplink.channel"].append(k_factor_db)
        return Rayleigh()

    monkeypatch.setitem(METHODS, "dummy", replace(METHODS["hist"], title="Dummy"))
    monkeypatch.setitem(POLICIES, "dummy", first_largest)
    monkeypatch.setitem(SPLITS, "dummy", backwards)
    monkeypatch.setitem(CHANNELS, "dummy", steady)
    return asked


KEYS = ("method.name", "method.sizes", "data.split", "uplink.channel")
CHOSEN = [part for key in KEYS for part in ("--set", f"{key}=dummy")]


def test_a_run_takes_what_was_registered(
    registered: dict[str, list[Any]], histfl_command: Command, tmp_path: Path
) -> None:
    further = ("--set", "method.cap=1.7", "--set", "uplink.k_factor_db=2.0", "--set", "training.rounds=1")
    answer = histfl_command("run", *SMALL, *CHOSEN, *further, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    assert "not read" not in answer.err  # registered sizes have a cap, and this channel a K factor
    summary = answer.json
    assert [summary[key] for key in ("method", "sizes", "split")] == ["dummy"] * 3
    assert summary["submodel_parameters"][0] > summary["submodel_parameters"][1]
    assert set(registered["method.sizes"]) == {1.7}
    assert len(registered["data.split"]) == 1
    assert registered["uplink.channel"] == [2.0]


def test_a_toml_file_takes_what_was_registered(registered: dict[str, list[Any]], tmp_path: Path) -> None:
    tables = {"method": {"name": "dummy", "sizes": "dummy"}, "data": {"split": "dummy"}}
    config = checked(Config, tables, "mine.toml")
    assert (config.method.name, config.method.sizes, config.data.split) == ("dummy",) * 3


def test_a_report_compares_with_every_registered_baseline(
    monkeypatch: pytest.MonkeyPatch, histfl_command: Command, tmp_path: Path
) -> None:
    monkeypatch.setitem(METHODS, "dummy", replace(METHODS["hfedavg"], title="Dummy"))
    for name in ("hist", "dummy"):
        settings = ("--set", f"method.name={name}", "--set", "training.targets=[0.05]")
        assert histfl_command("run", *SMALL, *settings, "--out", tmp_path / name).code == 0
    answer = histfl_command("report", tmp_path / "hist", tmp_path / "dummy", "--out", tmp_path / "page.html")
    assert answer.code == 0
    assert "less" in answer.out + answer.err


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        (
            "method",
            "name",
            "hust",
            "method.name = 'hust': Input should be 'hist', 'hfedavg', 'ist', 'overlap', 'rolling' or 'nested'",
        ),
        ("method", "name", 5, "method.name = 5: Input should be 'hist'"),
        ("method", "sizes", "best", "'uniform', 'optimised' or 'proportional' or Input should be a list"),
        ("data", "split", 5, "data.split = 5: Input should be 'shards'"),
        ("data", "split", "shard", "did you mean 'shards'"),
    ],
)
def test_other_names_are_refused_as_before(section: str, key: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        checked(Config, {section: {key: value}}, "mine.toml")
    assert said in str(error.value)
