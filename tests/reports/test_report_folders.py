"""Reading run folders for a report: broken ones are named, the rest is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs_for_tests import made_up_pictures, write_run

from histfl.errors import UsageError
from histfl.reports import gather
from histfl.reports.page import report_page


def replace_line(folder: Path, number: int, line: str) -> None:
    lines = (folder / "rounds.jsonl").read_text("utf-8").splitlines()
    lines[number] = line
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """One good run among broken ones."""
    top = tmp_path / "sweep"
    write_run(top / "good")
    (top / "empty").mkdir()
    (write_run(top / "no-config") / "config.toml").unlink()
    (write_run(top / "not-toml") / "config.toml").write_text("= nonsense")
    (write_run(top / "cut-summary") / "summary.json").write_text('{"method": "hi')
    (write_run(top / "list-summary") / "summary.json").write_text("[]")
    (write_run(top / "poor-summary") / "summary.json").write_text('{"method": "hist"}')
    replace_line(write_run(top / "damaged-line"), 2, "{oops")
    replace_line(write_run(top / "list-line"), 2, "[1, 2]")
    replace_line(
        write_run(top / "other-round"),
        2,
        (write_run(top / "spare") / "rounds.jsonl").read_text().splitlines()[0],
    )
    lines = (
        (write_run(top / "ragged") / "rounds.jsonl")
        .read_text()
        .replace('"submodel_parameters": [1000, ', '"submodel_parameters": [', 1)
    )
    (top / "ragged" / "rounds.jsonl").write_text(lines)
    replace_line(write_run(top / "not-finite"), 0, '{"round": 1, "accuracy": NaN}')
    (write_run(top / "odd-pictures") / "pictures.json").write_text('{"partition": 3, "labels": 4}')
    (write_run(top / "no-rounds") / "rounds.jsonl").write_text("")
    lines = (write_run(top / "lost-line") / "rounds.jsonl").read_text().splitlines(keepends=True)
    (top / "lost-line" / "rounds.jsonl").write_text("".join(lines[:-1]))
    return top


def test_broken_runs_are_named_and_the_rest_is_shown(sweep: Path) -> None:
    gathered = gather([sweep])
    assert [run.name for run in gathered.runs] == ["good", "spare"]
    broken = dict(gathered.broken)
    assert set(broken) == {
        "empty",
        "no-config",
        "not-toml",
        "cut-summary",
        "list-summary",
        "poor-summary",
        "damaged-line",
        "list-line",
        "other-round",
        "not-finite",
        "odd-pictures",
        "no-rounds",
        "lost-line",
        "ragged",
    }
    assert broken["empty"] == "empty: no run was begun here"
    assert "line 3" in broken["other-round"]
    assert "pictures.json" in broken["odd-pictures"]
    assert re.search(r"summary\.json is of \d+ rounds, and rounds\.jsonl has \d+", broken["lost-line"])
    page = report_page("sweep", gathered)
    for name, reason in gathered.broken:
        assert f"<b>{name}</b>" in page, reason


def test_a_run_that_goes_on_is_shown_up_to_its_last_whole_round(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=6)
    (folder / "summary.json").unlink()
    text = (folder / "rounds.jsonl").read_text("utf-8")
    (folder / "rounds.jsonl").write_text(text[: len(text) - 40], "utf-8")  # the last line is half written
    (run,) = gather([folder]).runs
    assert (len(run.records), run.planned_rounds, run.finished) == (5, 6, False)
    assert run.summary["final_accuracy"] == run.records[-1]["accuracy"]
    assert "wall_seconds" not in run.summary
    assert "versions" not in run.summary
    page = report_page("run", gather([folder]), refresh_seconds=30)
    assert "run: 5 of 6 rounds" in page
    assert '<meta http-equiv="refresh" content="30">' in page


def test_names_are_paths_below_what_the_folders_share(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "x")
    write_run(tmp_path / "b" / "x")
    (tmp_path / "b" / ".hidden").mkdir()
    (tmp_path / "b" / "figures").mkdir()
    (tmp_path / "b" / "figures" / "accuracy.pdf").touch()
    gathered = gather([tmp_path / "a", tmp_path / "b", tmp_path / "a" / "x"])
    assert [run.name for run in gathered.runs] == ["a/x", "b/x"]
    assert gathered.broken == ()


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="no run in"):
        gather([tmp_path])
    with pytest.raises(UsageError, match="is no folder"):
        gather([tmp_path / "absent"])


def test_the_command_writes_the_page_and_names_broken_runs(
    sweep: Path, histfl_command: Callable[..., Any]
) -> None:
    answer = histfl_command("report", str(sweep))
    assert answer.code == 0
    assert f"report: {sweep / 'report.html'}" in answer.out
    assert "not shown: empty: empty: no run was begun here" in answer.err
    assert (sweep / "report.html").stat().st_size > 4e6  # plotly is inside


def test_the_commands_json_has_the_summaries(
    sweep: Path, tmp_path: Path, histfl_command: Callable[..., Any]
) -> None:
    page = tmp_path / "elsewhere.html"
    answer = histfl_command("report", str(sweep / "good"), str(sweep / "empty"), "--out", str(page), "--json")
    told = answer.json
    assert answer.code == 0
    assert told["runs"]["good"] == json.loads((sweep / "good" / "summary.json").read_text())
    assert list(told["broken"]) == ["empty"]
    assert page.exists()


def test_a_missing_folder_ends_in_one_line(tmp_path: Path, histfl_command: Callable[..., Any]) -> None:
    answer = histfl_command("report", str(tmp_path / "absent"))
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_file_holds_the_page_is_written(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One value anywhere in a run's files is replaced by anything: the run is shown or named."""
    top = tmp_path_factory.mktemp("fuzz")
    folder = write_run(top / "run", rounds=2, error=0.1)
    file = data.draw(st.sampled_from(["summary.json", "pictures.json", "rounds.jsonl"]))
    lines = (
        (folder / file).read_text("utf-8").splitlines()
        if file == "rounds.jsonl"
        else [(folder / file).read_text("utf-8")]
    )
    values = [json.loads(line) for line in lines]
    place: Any = values
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(ANYTHING)
            break
        place = place[key]
    (folder / file).write_text("\n".join(map(json.dumps, values)) + "\n", "utf-8")
    gathered = gather([top])
    assert len(gathered.runs) + len(gathered.broken) == 1
    assert "</html>" in report_page("fuzz", gathered)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)<"  # a folder's name cannot hold a slash
    write_run(tmp_path / hostile / "run")
    folder = write_run(tmp_path / "x")
    (folder / "pictures.json").write_text(
        json.dumps(made_up_pictures(4, layer="</script><script>", label=hostile))
    )
    (tmp_path / "<img src=x onerror=alert(1)>").mkdir()
    page = report_page("</title><script>", gather([tmp_path]))
    body, _, own_scripts = page.rpartition("</main>")
    assert "<script>" not in body
    assert "<img" not in body
    assert own_scripts.count("<script>") >= 2
