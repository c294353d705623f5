"""What is kept of a run, and the page that is written from it."""

from __future__ import annotations

import dataclasses
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from small_artefacts import small_artefact

from histfl.errors import CheckpointError, UsageError
from histfl.reports.plots import on_screen
from histfl.reproduce.artefact import Artefact, Choice
from histfl.reproduce.cost_table import cost_ratio
from histfl.reproduce.files import (
    POINTS,
    add_origin,
    collect,
    kept_results,
    read_result,
    result_of,
    run_folder,
    run_results,
)
from histfl.reproduce.pages import write_documentation
from histfl.reproduce.runner import carry_out, jobs_of
from histfl.reproduce.summary import counts
from histfl.runs.jobs import Execution


def run(artefact: Artefact, runs: Path) -> None:
    carry_out(jobs_of(artefact.arms, runs), Execution(device="cpu"), Console(file=io.StringIO()))


def records(artefact: Artefact, runs: Path, index: int = 0) -> list[dict[str, float]]:
    path = run_folder(runs, artefact.arms[index].config) / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_long_run_is_thinned_and_keeps_what_matters(tmp_path: Path) -> None:
    artefact = small_artefact(training__rounds=250, training__local_steps=1, training__targets=(0.2, 0.5))
    arm = artefact.arms[0]
    run(dataclasses.replace(artefact, arms=(arm,)), tmp_path)
    result = result_of(artefact, arm, run_folder(tmp_path, arm.config))
    assert result is not None
    written = {record["round"]: record for record in records(artefact, tmp_path)}
    kept = result.columns["round"].astype(int).tolist()
    assert len(kept) <= POINTS + 7
    assert (kept[0], kept[-3:]) == (1, [248, 249, 250])
    for target in ("0.2", "0.5"):
        first = next(number for number, record in written.items() if record["accuracy"] >= float(target))
        assert result.to_target[target] == {
            key: written[first][key] for key in ("round", "megabytes_per_client", "simulated_seconds")
        }
        assert first in kept
    assert max(written, key=lambda number: written[number]["accuracy"]) in kept
    for number, accuracy in zip(kept, result.columns["accuracy"], strict=True):
        assert accuracy == pytest.approx(written[number]["accuracy"], rel=1e-6)


def test_a_file_gives_back_the_result(tmp_path: Path) -> None:
    artefact = small_artefact()
    run(artefact, tmp_path / "runs")
    paths = collect(artefact, tmp_path / "runs", tmp_path / "kept")
    assert [path.name for path in paths] == ["hist-seed1.json", "hfedavg-seed1.json"]
    for path, there in zip(paths, run_results(artefact, tmp_path / "runs").all, strict=True):
        again = read_result(path)
        assert (again.arm, again.labels, again.finished) == (there.arm, there.labels, True)
        assert again.to_target == there.to_target
        for key, column in there.columns.items():
            assert np.array_equal(column, again.columns[key])
        assert again.about == json.loads(json.dumps(there.about))
        assert again.about["config"]["model"]["hidden"] == 16
        assert again.about["versions"]["torch"]
        command = again.about["command"]
        assert command.startswith(f"histfl reproduce fig4 --only {there.arm} --seeds 1 --device cpu")
    results, stale = kept_results(artefact, tmp_path / "kept")
    assert (len(results.all), stale) == (2, [])


def test_results_of_other_settings_are_named_and_not_shown(tmp_path: Path) -> None:
    artefact = small_artefact()
    run(artefact, tmp_path / "runs")
    collect(artefact, tmp_path / "runs", tmp_path / "kept")
    results, stale = kept_results(small_artefact(training__batch_size=20), tmp_path / "kept")
    assert (results.all, stale) == ((), ["hist-seed1", "hfedavg-seed1"])


def test_an_unfinished_run_replaces_no_finished_one(tmp_path: Path) -> None:
    longer, kept = small_artefact(training__rounds=6), tmp_path / "kept"
    run(small_artefact(training__rounds=2), tmp_path / "part")
    assert len(collect(longer, tmp_path / "part", kept)) == 2
    results, _ = kept_results(longer, kept)
    assert [result.finished for result in results.all] == [False, False]
    run(longer, tmp_path / "whole")
    assert len(collect(longer, tmp_path / "whole", kept)) == 2
    assert collect(longer, tmp_path / "part", kept) == []
    results, _ = kept_results(longer, kept)
    assert [result.rounds_done for result in results.all] == [6, 6]


def test_of_unfinished_runs_the_longer_is_kept_unless_its_settings_are_others(tmp_path: Path) -> None:
    longer, kept = small_artefact(training__rounds=6), tmp_path / "kept"
    run(small_artefact(training__rounds=2), tmp_path / "two")
    run(small_artefact(training__rounds=3), tmp_path / "three")
    assert len(collect(longer, tmp_path / "three", kept)) == 2
    assert collect(longer, tmp_path / "two", kept) == []
    other = small_artefact(training__rounds=6, training__batch_size=20)
    run(small_artefact(training__rounds=2, training__batch_size=20), tmp_path / "other")
    assert len(collect(other, tmp_path / "other", kept)) == 2
    results, stale = kept_results(other, kept)
    assert ([result.rounds_done for result in results.all], stale) == ([2, 2], [])


def test_an_arm_that_has_come_to_ask_for_more_is_not_finished(tmp_path: Path) -> None:
    shorter = small_artefact(training__rounds=3, training__targets=(0.3,), training__stop_at_targets=True)
    run(shorter, tmp_path / "runs")
    collect(shorter, tmp_path / "runs", tmp_path / "kept")
    assert all(result.finished for result in kept_results(shorter, tmp_path / "kept")[0].all)
    longer = small_artefact(training__rounds=9, training__targets=(0.3, 0.99), training__stop_at_targets=True)
    results, stale = kept_results(longer, tmp_path / "kept")
    assert ([result.finished for result in results.all], stale) == ([False, False], [])
    assert results.of(method="hist").to_target(0.99).text() == "unfinished"


def test_a_run_that_broke_down_has_ended_without_a_value(tmp_path: Path) -> None:
    artefact = small_artefact(training__rounds=6)
    run(small_artefact(training__rounds=2), tmp_path)
    hist = run_folder(tmp_path, artefact.arms[0].config)
    (hist / "diverged.json").write_text(json.dumps({"reason": "the loss is not finite"}))
    broken, going = (run_results(artefact, tmp_path).of(method=method) for method in ("hist", "hfedavg"))
    for spread in (broken.mean_accuracy(6), broken.accuracy_at("round", 5), broken.last_accuracies(2)):
        assert (spread.text(), spread.waiting) == ("not reached", 0)
    for spread in (going.mean_accuracy(6), going.accuracy_at("round", 5), going.last_accuracies(2)):
        assert (spread.text(), spread.waiting) == ("unfinished", 1)


def test_an_unfinished_run_has_not_missed_its_target(tmp_path: Path) -> None:
    longer = small_artefact(training__rounds=6, training__targets=(0.99,))
    run(small_artefact(training__rounds=2), tmp_path)
    assert run_results(longer, tmp_path).of(method="hist").to_target(0.99).text() == "unfinished"
    run(longer, tmp_path)
    assert run_results(longer, tmp_path).of(method="hist").to_target(0.99).text() == "not reached"


def test_seeds_are_read_together(tmp_path: Path) -> None:
    artefact = small_artefact(seeds=(1, 2))
    run(artefact, tmp_path)
    results = run_results(artefact, tmp_path)
    hist, whole = (results.of(method=method) for method in ("hist", "hfedavg"))
    accuracy = [[record["accuracy"] for record in records(artefact, tmp_path, index)] for index in (0, 2)]
    assert hist.column("accuracy") == pytest.approx(np.array(accuracy), rel=1e-6)
    assert hist.mean_accuracy(4).mean == pytest.approx(np.mean(accuracy), rel=1e-6)
    assert hist.last_accuracies(2).mean == pytest.approx(np.mean([a[2:] for a in accuracy]), rel=1e-6)
    load = records(artefact, tmp_path)[1]["megabytes_per_client"]
    at_load = hist.accuracy_at("megabytes_per_client", load)
    assert at_load.mean == pytest.approx(np.mean([a[1] for a in accuracy]), rel=1e-5)
    rounds = cost_ratio(whole, hist, 0.3, "round")
    costs = cost_ratio(whole, hist, 0.3)
    a_round = 12_730 / (8 * 795 + 10)
    for ratio, cost in zip(rounds.values, costs.values, strict=True):
        assert ratio is not None
        assert cost == pytest.approx(ratio * a_round, rel=1e-6)


def test_a_run_in_pieces_tells_all_their_origins(tmp_path: Path) -> None:
    for commit, machine in (
        ("a" * 40, "machine one"),
        ("b" * 40, "machine two"),
        ("a" * 40, "machine two"),
        (None, "machine two"),
    ):
        add_origin(tmp_path, {"commit": commit, "machine": machine})
    found = json.loads((tmp_path / "origin.json").read_text())
    assert found == {"commit": f"{'a' * 40}; {'b' * 40}", "machine": "machine one; machine two"}
    artefact = small_artefact()
    run(artefact, tmp_path / "runs")
    folder = run_folder(tmp_path / "runs", artefact.arms[0].config)
    (folder / "origin.json").write_text(json.dumps(found))
    collect(artefact, tmp_path / "runs", tmp_path / "kept")
    text = write_documentation([artefact], tmp_path / "kept", tmp_path / "docs").read_text("utf-8")
    for part in ("a" * 9, "b" * 9, "machine one", "machine two"):
        assert part in text


def test_without_results_no_page_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no results; histfl reproduce collect"):
        write_documentation([small_artefact()], tmp_path, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


def test_the_page_is_written_from_the_files_alone(tmp_path: Path) -> None:
    artefact = small_artefact()
    run(artefact, tmp_path / "runs")
    collect(artefact, tmp_path / "runs", tmp_path / "kept")
    page = write_documentation([artefact], tmp_path / "kept", tmp_path / "docs")
    text = page.read_text("utf-8")
    (row,) = artefact.rows(kept_results(artefact, tmp_path / "kept")[0])
    assert f"| {row.what} | {row.paper} | {row.ours} | {row.holds} |" in text
    assert f"(#fig4) | {' | '.join(map(str, counts([row])))} |" in text
    assert "seconds, not minutes" in text
    figure = tmp_path / "docs" / "figures" / "reproduction" / "fig4.svg"
    drawn = figure.read_bytes()
    assert drawn.startswith(b"<?xml")
    write_documentation([artefact], tmp_path / "kept", tmp_path / "docs")
    assert (page.read_text("utf-8"), figure.read_bytes()) == (text, drawn)
    (tmp_path / "none" / "fig4").mkdir(parents=True)
    write_documentation([artefact], tmp_path / "none", tmp_path / "docs")
    assert "not yet run" in page.read_text("utf-8")
    assert (
        "Not yet run are 2 of 2 arms, which take:\n\n- `histfl reproduce fig4 --seeds 1`"
        in page.read_text("utf-8")
    )
    assert "No run yet." in page.read_text("utf-8")


def test_a_choice_stands_beside_what_its_trials_showed(tmp_path: Path) -> None:
    trial = Choice("no momentum", "the paper names none", finding="momentum")
    artefact = replace(small_artefact(), choices=(trial,))
    (tmp_path / "kept" / "fig4").mkdir(parents=True)
    page = write_documentation([artefact], tmp_path / "kept", tmp_path / "docs")
    assert "- no momentum: the paper names none.\n" in page.read_text("utf-8")
    (tmp_path / "kept" / "findings.json").write_text('{"momentum": "with it nothing changed"}')
    write_documentation([artefact], tmp_path / "kept", tmp_path / "docs")
    assert "- no momentum: the paper names none; with it nothing changed.\n" in page.read_text("utf-8")


def test_the_curves_are_the_means_of_the_seeds_with_their_range(tmp_path: Path) -> None:
    artefact = small_artefact(seeds=(1, 2))
    run(artefact, tmp_path)
    (panel,) = artefact.panels(run_results(artefact, tmp_path))
    accuracy = np.array([[r["accuracy"] for r in records(artefact, tmp_path, index)] for index in (0, 2)])
    band, line, *_ = on_screen(panel).data
    assert line.y == pytest.approx(accuracy.mean(axis=0), rel=1e-6)
    assert band.y == pytest.approx(np.concatenate((accuracy.max(0), accuracy.min(0)[::-1])), rel=1e-6)
    assert (line.name, list(line.x)) == ("hist", [1, 2, 3, 4])


def test_a_damaged_origin_is_named(tmp_path: Path) -> None:
    artefact = small_artefact()
    run(artefact, tmp_path)
    folder = run_folder(tmp_path, artefact.arms[0].config)
    add_origin(folder, {"commit": "abc"})
    (folder / "origin.json").write_text('{"commit": ')
    with pytest.raises(CheckpointError, match=r"origin\.json is damaged .*; remove it"):
        run_results(artefact, tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "fig4" / "hist-seed1.json"
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"hist-seed1\.json is no result"):
        kept_results(small_artefact(), tmp_path)


@pytest.mark.parametrize("text", ["null", "5", '"x"', "[]", "{}", "1e400", "NaN", "[[1]]"])
def test_a_damaged_result_is_named_or_shown(tmp_path: Path, text: str) -> None:
    """Whatever lies in place of a value: the page is written, or one line says which file is no result."""
    artefact = small_artefact()
    run(artefact, tmp_path / "runs")
    path, *_ = collect(artefact, tmp_path / "runs", tmp_path / "kept")
    whole = json.loads(path.read_text())
    keys = [(key,) for key in whole] + [("records", key) for key in whole["records"]]
    for key in keys:
        changed = json.loads(json.dumps(whole))
        holder = changed if len(key) == 1 else changed[key[0]]
        holder[key[-1]] = "@here@"
        path.write_text(json.dumps(changed).replace('"@here@"', text))
        said = path.name
        try:
            write_documentation([artefact], tmp_path / "kept", tmp_path / "docs")
        except CheckpointError as error:
            said = str(error)
        assert path.name in said
