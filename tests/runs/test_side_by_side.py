"""Others at work in a run's folder: reports harm no run, and what is taken away from it is told at once."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Answer

from histfl.errors import CheckpointError
from histfl.files import write_whole
from histfl.runs.build import prepare
from histfl.runs.execute import execute
from histfl.runs.loading import load_config
from histfl.runs.store import RunFolder

Command = Callable[..., Answer]
SETTINGS = [setting for setting in SMALL if "=" in setting]


def write_again_and_again(path: Path, letter: str) -> None:
    for _ in range(100):
        write_whole(path, letter.encode() * 1000)


def test_many_may_write_one_file(tmp_path: Path) -> None:
    path, context = tmp_path / "page.html", multiprocessing.get_context("fork")
    writers = [context.Process(target=write_again_and_again, args=(path, letter)) for letter in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert path.read_bytes() in [letter * 1000 for letter in (b"a", b"b", b"c")]
    assert list(tmp_path.iterdir()) == [path]


def test_threads_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(write_again_and_again, path, letter) for letter in "abcd"]:
            future.result()
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    write_whole(tmp_path / ("n" * 244), b"whole")
    assert (tmp_path / ("n" * 244)).read_bytes() == b"whole"


@pytest.mark.parametrize("what", ["rounds.jsonl", "", "changed"])
def test_what_is_taken_away_in_mid_run_is_told_at_once(tmp_path: Path, what: str) -> None:
    out, seen = tmp_path / "run", []

    def take_away(record: dict[str, Any]) -> None:
        seen.append(record["round"])
        if what == "changed":
            (out / "rounds.jsonl").write_text("{}\n")
        elif what:
            (out / what).unlink()
        else:
            shutil.rmtree(out)

    experiment = prepare(load_config("quickstart", SETTINGS), device="cpu")
    with pytest.raises(CheckpointError, match=r"while its run went on.*another folder"):
        execute(experiment, RunFolder(out), on_round=take_away)
    assert seen == [1]


def test_the_network_of_an_attempt_without_a_round_is_not_kept(
    histfl_command: Command, tmp_path: Path
) -> None:
    first, second, out = tmp_path / "first.toml", tmp_path / "second.toml", tmp_path / "run"
    first.write_text("[[cells]]\ncount = 2\nclients = 2\nsnr_db = 5\n")
    second.write_text("[[cells]]\ncount = 2\nclients = 3\nsnr_db = 15\n")

    def run(*settings: str) -> int:
        chosen = [word for setting in settings for word in ("--set", setting)]
        return histfl_command(
            "run",
            "quickstart",
            *chosen,
            "--set",
            "training.rounds=1",
            "--out",
            out,
            "--device",
            "cpu",
            "--resume",
        ).code

    breaks_down = "training.learning_rate=1e30"
    assert run(f"network.profile={first}", breaks_down) == 1
    assert (out / "network.toml").read_bytes() == first.read_bytes()
    assert run(f"network.profile={second}", breaks_down) == 1
    assert (out / "network.toml").read_bytes() == second.read_bytes()
    assert run(breaks_down) == 1
    assert not (out / "network.toml").exists()
    (out / "network.toml").write_text("the user's own")
    assert run() == 0
    assert (out / "network.toml").read_text() == "the user's own"


def children(process: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()}


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


@pytest.mark.exhaustive  # three processes start anew
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_side_by_side_end_with_their_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "histfl", "reproduce", "fig7", "--quick", "--parallel", "2"]
    with subprocess.Popen(
        [*command, "--device", "cpu", "--out", tmp_path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as parent:
        while not list(tmp_path.glob("runs/*/.lock")):
            assert parent.poll() is None
            time.sleep(0.05)
        workers = children(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
    assert len(workers) >= 2
    while any(map(alive, workers)):
        time.sleep(0.05)
