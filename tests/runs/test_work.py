"""What is larger than the machine is refused before anything begins; what fits, or is only long, is not."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import SMALL, Answer

from histfl.errors import UsageError
from histfl.network import Network
from histfl.runs.build import build_participation, build_uplink, check
from histfl.runs.config import Config
from histfl.runs.loading import load_config
from histfl.runs.work import check_round, work_of_a_round
from histfl.seeds import Seeds
from histfl.settings import checked
from histfl.wireless.clock import Clock, Computing

HUGE_NETWORK = "[[cells]]\ncount = 4\nclients = 25000000\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "network.clients=100000000"), "cannot serve 100000000 clients; use at most 12000"),
        (
            ("run", "network.clients=100000000", "network.active_cells=[0]"),
            "cannot serve 100000000 clients",
        ),
        (("run", "network.profile=huge.toml"), "cannot serve 100000000 clients"),
        (("data", "network.clients=100000000"), "cannot serve 100000000 clients"),
        (("plan", "network.clients=100000000", "training.edge_rounds=20"), "would take at least"),
        (("plan", "network.profile=huge.toml", "training.edge_rounds=20"), "would take at least"),
        (("run", "training.edge_rounds=1000000000"), "would take at least"),
        (("run", "training.local_steps=1000000000"), "would take at least"),
        (("run", "training.edge_rounds=100000000", "training.local_steps=10000"), "nothing is kept before"),
        (("run", "model.hidden=1000000000"), "795,000,000,010 parameters would take at least 9,540 GB"),
        (("plan", "model.hidden=[1000000, 1000000]"), "would take at least"),
        (("plan", "--draws", "1000000000"), r"--draws 1,000,000,000 of 4 cells would take at least"),
        (("run", "--memory-gb", "inf"), "--memory-gb inf: it must be a positive number"),
        (("run", "--memory-gb", "nan"), "--memory-gb nan: it must be a positive number"),
        (("run", "--memory-gb", "1e308"), r"--memory-gb 1e\+308: it must be a positive number"),
        (("run", "--memory-gb", "-1"), "--memory-gb -1.0: it must be a positive number"),
    ],
)
def test_it_is_refused_in_one_line(
    histfl_command: Callable[..., Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    some_memory: None,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("huge.toml").write_text(HUGE_NETWORK)
    command, *changes = arguments
    words = {"run": SMALL, "plan": ["quickstart"], "data": ["show", "quickstart"]}[command]
    flags = changes if changes[0].startswith("--") else [w for change in changes for w in ("--set", change)]
    answer = histfl_command(command, *words, *flags)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert answer.out == ""
    assert re.search(said, answer.err)
    assert not Path("runs").exists()


def test_a_target_that_is_reached_from_the_start_takes_one_round(
    histfl_command: Callable[..., Answer], tmp_path: Path
) -> None:
    targets = ("--set", "training.targets=[0]", "--set", "training.stop_at_targets=true")
    answer = histfl_command("run", *SMALL, *targets, "--out", tmp_path / "run", "--json")
    assert answer.code == 0
    assert answer.json["rounds"] == 1
    assert answer.json["stopped_at_targets"]


def test_what_works_is_not_refused() -> None:
    for clients, cells, changes in (
        (1_000_000, 10_000, ["network.active_cells=10", "network.participants=4"]),
        (10_000_000, 100, ["network.participants=100"]),
        (60, 4, ["training.edge_rounds=1000", "training.local_steps=1000", "training.rounds=1000000000"]),
        (60, 4, ["uplink.antennas=10000", "uplink.name=aircomp"]),
    ):
        sizes = [f"network.clients={clients}", f"network.cells={cells}", "data.name=own:data"]
        check(load_config("quickstart", [*sizes, *changes]))
    check(load_config("resnet18"))


def test_a_list_of_cells_counts_these_alone() -> None:
    counts = np.array([5, 1, 1000])
    for cells, steps in (("all", 1006), (1, 1), (2, 6), ([0, 2], 1005), ([1], 1)):
        config = checked(
            Config,
            {"network": {"active_cells": cells}, "training": {"edge_rounds": 3, "local_steps": 2}},
            "test",
        )
        assert work_of_a_round(config, counts).client_steps == 6 * steps


@pytest.mark.parametrize("uplink", ["fdma", "tdma", "aircomp", "ideal"])
def test_the_estimate_is_less_than_what_a_round_takes(uplink: str) -> None:
    """So that nothing is refused that would fit. Counted is what numpy and Python hold."""
    tables = {
        "network": {"cells": 2, "clients": 40_000},
        "training": {"edge_rounds": 20, "local_steps": 1},
        "uplink": {"name": uplink, "antennas": 1},
    }
    config = checked(Config, tables, "test")
    tracemalloc.start()
    network = Network.uniform(2, clients=40_000)
    schedules = build_participation(config).schedules(network, 20, 0, Seeds(1))
    made = build_uplink(config, 32.0)
    links = [None, None] if uplink in ("ideal", "aircomp") else made.draw(network, schedules, 0, Seeds(1))
    Clock(Computing(20, 100), made).cost(network, schedules, links, np.array([50, 50]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    work = work_of_a_round(config, network.clients_per_cell)
    assert work.transmissions == 800_000
    without_channels = work.bytes - (16 * 800_000 if uplink == "aircomp" else 0)  # torch's, not counted
    assert 0.2 * peak < without_channels < peak


def test_python_is_told_too() -> None:
    config = checked(Config, {"training": {"edge_rounds": 10**9, "local_steps": 10**9}}, "test")
    with pytest.raises(UsageError, match="nothing is kept before it ends"):
        check_round(config, np.array([1, 1]))
