"""Runs side by side, within a time, and stopped: the files are those of runs one after another."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import SMALL, Answer

from histfl.cli import main
from histfl.errors import DivergedError, UsageError
from histfl.reports import live
from histfl.runs.jobs import Execution

Command = Callable[..., Answer]
SAME = ("config.toml", "rounds.jsonl", "model.safetensors", "pictures.json")
SWEEP = ["sweep", *SMALL, "--vary", "training.learning_rate=0.1,0.2,1e30"]


def files(top: Path, *, but: str = "1e30") -> dict[str, bytes]:
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in top.glob("*/*")
        if path.name in SAME and but not in path.parent.name
    }


def test_side_by_side_the_files_and_the_answer_are_the_same(
    histfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a run that diverges, a tracker, and a page that is written as they go on."""
    monkeypatch.setattr(live, "SECONDS_BETWEEN_PAGES", 0.0)
    one, two = tmp_path / "one", tmp_path / "two"
    serial = histfl_command(*SWEEP, "--out", one, "--json")
    parallel = histfl_command(*SWEEP, "--out", two, "--json", "--parallel", "2", "--tensorboard")
    for answer in (serial, parallel):
        assert answer.code == 1
        assert "learning_rate=1e30: training diverged in round 1" in answer.err
        assert answer.err.splitlines()[-1].startswith("histfl: 1 of 3 runs diverged:")
    assert files(one) == files(two)
    assert len(files(two)) == 2 * len(SAME)
    told = ("final_accuracy", "megabytes_per_client", "rounds", "engine")
    for name, summary in serial.json.items():
        assert {key: parallel.json[name][key] for key in told} == {key: summary[key] for key in told}
    assert list(serial.json) == list(parallel.json)
    assert "2 of 3, 0 running" in parallel.err or "(3 of 3)" in parallel.err
    assert parallel.err.count("learning_rate=0.1: each of the cells") == serial.err.count(
        "learning_rate=0.1: each of the cells"
    )
    assert len(list(two.glob("*/tensorboard/events*"))) == 2
    assert 'http-equiv="refresh"' not in (two / "report.html").read_text()


def test_minutes_end_a_sweep_which_goes_on_later(histfl_command: Command, tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    words = ["sweep", *SMALL, "--vary", "training.seed=1,2", "--json"]
    assert histfl_command(*words, "--out", whole).code == 0
    none = histfl_command(*words, "--out", pieces, "--minutes", "0", "--parallel", "2")
    names = ["training.seed=1", "training.seed=2"]
    assert (none.code, none.json) == (3, {"runs": {"done": 0, "left": names, "diverged": []}})
    assert none.err.splitlines()[-1].startswith("2 of 2 runs are left; go on with: histfl ")
    assert "--resume" in none.err
    assert not pieces.exists()
    # A piece: the first run, and one round of the second.
    assert histfl_command("sweep", *SMALL, "--vary", "training.seed=1", "--out", pieces).code == 0
    shorter = ["--set", "training.rounds=1"]
    assert (
        histfl_command("run", *SMALL, "--set", "training.seed=2", *shorter, "--out", pieces / names[1]).code
        == 0
    )
    some = histfl_command(*words, "--out", pieces, "--minutes", "0", "--resume")
    assert (some.code, some.json["runs"]) == (3, {"done": 1, "left": names[1:], "diverged": []})
    assert "2 runs, 1 of them done before" in some.err
    before = (pieces / names[0] / "summary.json").stat().st_mtime_ns
    rest = histfl_command(*words, "--out", pieces, "--minutes", "60", "--resume")
    assert (rest.code, rest.json["runs"]) == (0, {"done": 2, "left": [], "diverged": []})
    assert (pieces / names[0] / "summary.json").stat().st_mtime_ns == before
    assert files(pieces) == files(whole)
    other = histfl_command(*words, "--out", pieces, "--resume", "--set", "training.targets=[0.01]")
    assert other.code == 0
    assert [list(summary["to_target"]) for summary in other.json.values()] == [["0.01"]] * 2
    assert (pieces / "training.seed=1" / "rounds.jsonl").read_bytes() == files(whole)[
        f"{names[0]}/rounds.jsonl"
    ]


def test_the_minutes_end_a_run_of_a_sweep_between_its_rounds(histfl_command: Command, tmp_path: Path) -> None:
    long = ["sweep", *SMALL, "--set", "training.rounds=100000", "--vary", "training.seed=1,2"]
    answer = histfl_command(*long, "--out", tmp_path, "--minutes", "0.03")
    assert answer.code == 3
    assert answer.out == ""
    assert "seed=1: left after round " in answer.err
    assert (tmp_path / "training.seed=1" / "rounds.jsonl").read_text().endswith("}\n")
    assert "report.html" in os.listdir(tmp_path)


def test_how_runs_are_carried_out_is_checked_at_once() -> None:
    for mistake in ({"device": "tpu"}, {"engine": "warp"}, {"memory_gb": 0.0}):
        with pytest.raises(UsageError):
            Execution(**mistake)  # type: ignore[arg-type]


def test_a_divergence_says_the_same_in_every_process() -> None:
    error = DivergedError("it diverged")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def interrupt(rounds: Path) -> None:
    """As Ctrl-C in a terminal does: every process gets the signal."""
    while len(list(rounds.glob("*/rounds.jsonl"))) < 2:
        time.sleep(0.05)
    for process in multiprocessing.active_children():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_an_interrupt_ends_all_runs_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    interrupting = threading.Thread(target=interrupt, args=(tmp_path,), daemon=True)
    interrupting.start()
    long = ["sweep", *SMALL, "--set", "training.rounds=100000", "--vary", "training.seed=1,2,3"]
    with pytest.raises(SystemExit) as ended:
        main([*long, "--out", str(tmp_path), "--parallel", "2"])
    interrupting.join()
    captured = capfd.readouterr()  # of the processes too
    assert (ended.value.code, captured.out) == (130, "")
    assert captured.err.splitlines()[-1].startswith("histfl: interrupted; go on with: histfl ")
    assert "Traceback" not in captured.err
    assert multiprocessing.active_children() == []
    assert len(list(tmp_path.glob("*/rounds.jsonl"))) == 2
    assert all(rounds.read_text().endswith("}\n") for rounds in tmp_path.glob("*/rounds.jsonl"))
