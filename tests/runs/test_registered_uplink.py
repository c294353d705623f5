"""An uplink of a fixed rate: one class, one line in UPLINKS, and every command knows it and its own setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import SMALL, Answer

from histfl.errors import UsageError
from histfl.network import Network
from histfl.runs.config import Config
from histfl.runs.unread import unread
from histfl.seeds import Seeds
from histfl.settings import Positive, checked
from histfl.training import CellSchedule, State, mean_of_clients
from histfl.wireless.clock import Latency, Transmissions
from histfl.wireless.uplinks import UPLINKS, UplinkKind

Command = Callable[..., Answer]
SLOW = ("--set", "uplink.name=dummy", "--set", "uplink.rate=1000", "--set", "uplink.set_up_s=0.5")
NO_CPU = ("--set", "network.cycles_per_step=1e-6")


@dataclass(frozen=True)
class FixedRate:
    """Every client sends at `rate` bits a second, after `set_up_s` seconds."""

    rate: Positive = 1e6
    set_up_s: float = 0.0
    bits_per_parameter: float = 32.0

    def draw(
        self, network: Network, schedules: Sequence[CellSchedule], round: int, seeds: Seeds
    ) -> Sequence[None]:
        return [None] * len(schedules)

    def latency(self, network: Network, sent: Transmissions, links: Sequence[None]) -> Latency:
        return Latency(self.rate, self.bits_per_parameter, fixed_s=self.set_up_s)

    def aggregate(
        self, start: State, finals: Iterable[State], link: None, edge_round: int, learning_rate: float
    ) -> tuple[State, torch.Tensor]:
        return mean_of_clients(finals), torch.zeros(())


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UPLINKS, "dummy", UplinkKind(FixedRate, "a rate for everyone", network=()))


@pytest.mark.parametrize("sizes", ["uniform", "optimised"])
def test_a_run_and_its_report_have_it(sizes: str, histfl_command: Command, tmp_path: Path) -> None:
    out = ("--set", f"method.sizes={sizes}", "--out", tmp_path / "run", "--json")
    answer = histfl_command("run", *SMALL, *SLOW, *NO_CPU, *out)
    assert answer.code == 0, answer.err
    summary = answer.json
    assert summary["uplink"] == "dummy"
    largest = max(summary["submodel_parameters"])
    expected = 3 * 2 * (32 * largest / 1000 + 0.5)  # three rounds of two edge rounds
    assert summary["simulated_seconds"] == pytest.approx(expected, rel=0.05 if sizes == "optimised" else 1e-6)
    assert "rate = 1000" in (tmp_path / "run" / "config.toml").read_text("utf-8")
    page = tmp_path / "page.html"
    assert histfl_command("report", tmp_path / "run", "--out", page).code == 0
    assert "dummy" in page.read_text("utf-8")


def test_what_the_sizes_are_promised_is_what_the_clock_then_says(
    histfl_command: Command, tmp_path: Path
) -> None:
    """Also with seconds that no size changes, which once were taken as in proportion to it."""
    more = (
        "--set",
        "method.sizes=[1,2,3,4]",
        "--set",
        "network.profile=uniform",
        "--set",
        "network.cycles_per_step=1e6",
    )
    assert histfl_command("run", *SMALL, *SLOW, *more, "--out", tmp_path / "run").code == 0
    from histfl.runs.store import RunFolder

    for record in RunFolder(tmp_path / "run").read_rounds():
        latency = record["latency"]
        assert latency["predicted_seconds"] == pytest.approx(latency["seconds"], rel=1e-9)


def test_a_plan_compares_it_under_its_own_name(histfl_command: Command) -> None:
    answer = histfl_command("plan", "quickstart", *SLOW, *NO_CPU, "--draws", "2", "--json")
    assert answer.code == 0, answer.err
    plan = answer.json
    assert plan["uplink"] == "dummy"
    assert {key.split(".")[0] for key in plan["seconds_per_round"]} == {"oma", "aircomp", "dummy"}
    whole = 5 * (32 * plan["parameters"] / 1000 + 0.5)
    assert plan["seconds_per_round"]["dummy.hfedavg"] == pytest.approx(whole, rel=1e-6)
    slowest = max(cell["seconds"] for cell in plan["cells"]["uniform"])
    assert plan["seconds_per_round"]["dummy.uniform"] == pytest.approx(slowest, rel=1e-9)
    shown = histfl_command("plan", "quickstart", *SLOW, "--draws", "2", "--vary", "cells=2,4")
    assert shown.code == 0
    assert "dummy" in shown.out


@pytest.mark.parametrize(
    ("uplink", "said"),
    [
        ({"name": "dummy", "rat": 3}, "unknown key 'uplink.rat'; did you mean 'rate'?"),
        (
            {"name": "fdma", "bandwith_hz": 3},
            "unknown key 'uplink.bandwith_hz'; did you mean 'bandwidth_hz'?",
        ),
        ({"name": "dummy", "rate": -1.0}, "uplink.rate = -1.0: Input should be positive"),
        ({"name": "dummy", "rate": "fast"}, "uplink.rate = 'fast': Input should be a valid number"),
        (
            {"name": "dumy"},
            "uplink.name = 'dumy': Input should be 'fdma', 'tdma', 'aircomp', 'ideal' or 'dummy'",
        ),
    ],
)
def test_what_nobody_takes_is_refused(uplink: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        checked(Config, {"uplink": uplink}, "mine.toml")
    assert str(error.value).startswith("mine.toml: ")
    assert said in str(error.value)


def test_what_it_does_not_read_is_told_and_what_others_do_not_read_of_it() -> None:
    def told(**uplink: Any) -> list[str]:
        return [reason.partition(" = ")[0] for reason in unread([checked(Config, {"uplink": uplink}, "x")])]

    assert told(name="dummy", rate=5.0, bits_per_parameter=16.0) == []
    assert told(name="dummy", antennas=3, paper_power=True) == ["uplink.antennas", "uplink.paper_power"]
    assert told(name="fdma", rate=5.0) == ["uplink.rate"]


def test_a_round_trip_keeps_its_setting() -> None:
    config = checked(Config, {"uplink": {"name": "dummy", "rate": 5}}, "x")
    tables = config.model_dump(mode="json", exclude_none=True)
    assert checked(Config, tables, "x") == config
    assert config.fingerprint() != checked(Config, {"uplink": {"name": "dummy"}}, "x").fingerprint()
    assert np.isclose(tables["uplink"]["rate"], 5.0)
