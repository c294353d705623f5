"""Runs as tasks on Ray: their folders are those of runs one after another, also where workers are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from commands import SMALL, Answer

Command = Callable[..., Answer]
SAME = ("config.toml", "rounds.jsonl", "model.safetensors", "pictures.json")
pytestmark = pytest.mark.xdist_group("ray")


def files(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.glob("*/*") if path.name in SAME}


def test_a_sweep_has_the_same_files_and_names_the_arms_that_fail(
    histfl_command: Command, tmp_path: Path, ray_cluster: None
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    sweep = ["sweep", *SMALL, "--vary", "training.learning_rate=0.1,1e30", "--json"]
    serial = histfl_command(*sweep, "--out", one)
    on_ray = histfl_command(*sweep, "--out", two, "--parallel", "ray", "--workers", "1")
    for answer in (serial, on_ray):
        assert answer.code == 1
        assert "learning_rate=1e30: training diverged in round 1" in answer.err
        assert answer.err.splitlines()[-1].startswith("histfl: 1 of 2 runs diverged:")
    name = "training.learning_rate=0.1"
    found = {path: data for path, data in files(two).items() if path.startswith(name)}
    assert found == {path: data for path, data in files(one).items() if path.startswith(name)}
    assert len(found) == len(SAME)
    told = ("final_accuracy", "megabytes_per_client", "rounds", "engine")
    assert {key: on_ray.json[name][key] for key in told} == {key: serial.json[name][key] for key in told}

    another = [word.replace("0.1,1e30", "0.1,0.2") for word in sweep]
    (two / "training.learning_rate=0.2").mkdir()
    (two / "training.learning_rate=0.2" / "config.toml").write_text((two / name / "config.toml").read_text())
    (two / name / "rounds.jsonl").write_text("{}\n")
    failed = histfl_command(*another, "--out", two, "--resume", "--parallel", "ray", "--workers", "1")
    assert failed.code == 2
    assert name in failed.err.splitlines()[-1]


def test_other_nodes_cores_change_no_bit(
    histfl_command: Command, tmp_path: Path, ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are sized for the cores of the machine that asks."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    one, two = tmp_path / "one", tmp_path / "two"
    sweep = ["sweep", *SMALL, "--set", "network.clients=60", "--vary", "training.seed=1"]
    assert histfl_command(*sweep, "--out", one).code == 0
    assert histfl_command(*sweep, "--out", two, "--parallel", "ray", "--workers", "1").code == 0
    assert files(one) == files(two)


def test_no_time_no_cluster(histfl_command: Command, tmp_path: Path) -> None:
    sweep = ["sweep", *SMALL, "--vary", "training.seed=1,2", "--minutes", "0", "--parallel", "ray"]
    none = histfl_command(*sweep, "--json", "--out", tmp_path / "runs")
    assert (none.code, len(none.json["runs"]["left"])) == (3, 2)


@pytest.mark.exhaustive
def test_twelve_arms_and_two_killed_workers(
    histfl_command: Command, tmp_path: Path, ray_cluster: None, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, killed = tmp_path / "one", tmp_path / "two", list[int]()
    sweep = ["sweep", *SMALL, "--vary", "training.seed=1,2,3,4,5,6", "--vary", "method.name=hist,hfedavg"]
    sweep += ["--set", "training.rounds=20", "--json"]

    def kill() -> None:
        """Two workers, each of which has just ended a round."""
        seen = 0
        while len(killed) < 2:
            time.sleep(0.05)
            rounds = sum(path.read_bytes().count(b"\n") for path in two.glob("*/rounds.jsonl"))
            if rounds < seen + 15:
                continue
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if "_messages" in process.name() and process.pid not in killed:
                        os.kill(process.pid, signal.SIGKILL)
                        killed.append(process.pid)
                        seen = rounds
                        break

    threading.Thread(target=kill, daemon=True).start()
    on_ray = histfl_command(*sweep, "--out", two, "--parallel", "ray", "--workers", "2")
    assert (on_ray.code, len(killed), len(on_ray.json)) == (0, 2, 12)
    assert caplog.text.count("a Ray worker was lost; the run") == 2
    assert histfl_command(*sweep, "--out", one).code == 0
    assert files(one) == files(two)
    assert len(files(two)) == 12 * len(SAME)
