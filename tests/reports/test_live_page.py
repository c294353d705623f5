"""The page that follows a run, and telling followers of rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL
from runs_for_tests import made_up_rounds, write_run

from histfl.reports import live
from histfl.reports.live import LivePage, Telling
from histfl.runs.loading import load_config
from histfl.runs.records import scalars
from histfl.runs.store import RunFolder


def test_the_page_waits_its_time_and_then_shows_the_run_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    folder = write_run(tmp_path / "run", rounds=4)
    (folder / "summary.json").unlink()
    following = LivePage(tmp_path / "report.html", "live", [folder, tmp_path / "not-yet-begun"], pytest.fail)
    clock[0] += 29
    following.on_round({})
    assert not following.path.exists()
    clock[0] += 2
    following.on_round({})
    text = following.path.read_text("utf-8")
    assert 'http-equiv="refresh"' in text
    assert "run: 4 of 5 rounds" in text
    following.path.unlink()
    clock[0] += 29
    following.on_round({})
    assert not following.path.exists()


def test_the_page_at_the_end_is_whole_and_does_not_reload(
    tmp_path: Path, histfl_command: Callable[..., Any]
) -> None:
    assert histfl_command("run", *SMALL, "--out", tmp_path / "run").code == 0
    text = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert 'http-equiv="refresh"' not in text
    assert text.rstrip().endswith("</html>")
    assert not list((tmp_path / "run").glob("*.unfinished"))


def test_a_page_that_cannot_be_written_ends_no_run(
    tmp_path: Path, histfl_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SECONDS_BETWEEN_PAGES", 0.0)
    (tmp_path / "run" / "report.html").mkdir(parents=True)  # in the page's way
    answer = histfl_command("run", *SMALL, "--out", tmp_path / "run", "--json")
    assert (answer.code, answer.json["rounds"]) == (0, 3)
    assert answer.err.count("report.html could not be written") == 1


class Listener:
    def __init__(self) -> None:
        self.heard: list[int] = []
        self.finished: bool | None = None

    def on_round(self, record: dict[str, Any]) -> None:
        self.heard.append(record["round"])

    def on_end(self, run: Any) -> None:
        self.heard.append(-1)

    def close(self, *, finished: bool) -> None:
        self.finished = finished


def test_a_follower_hears_the_rounds_of_an_earlier_process_first(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", rounds=5))
    listener = Listener()
    told = Telling([listener], folder, pytest.fail)
    for record in made_up_rounds(load_config("quickstart"), rounds=5)[3:]:
        told.on_round(record)
    told.close(finished=True)
    assert listener.heard == [1, 2, 3, 4, 5]
    assert listener.finished is True


def test_scalars_are_the_numbers_of_a_record_by_path() -> None:
    record = {
        "round": 1,
        "cap": None,
        "ok": True,
        "loss": 0.5,
        "units": [[1]],
        "latency": {"cell_seconds": [2.0, 3.0]},
    }
    assert scalars(record) == {
        "round": 1,
        "loss": 0.5,
        "latency/cell_seconds/cell_0": 2.0,
        "latency/cell_seconds/cell_1": 3.0,
    }
