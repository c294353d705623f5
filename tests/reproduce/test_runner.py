"""Arms carried out: in pieces, side by side, shared, and not twice."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from small_artefacts import small_artefact

from histfl.errors import UsageError
from histfl.reports.paper import as_svg
from histfl.reproduce import files
from histfl.reproduce.artefact import Artefact
from histfl.reproduce.files import collect, kept_results, run_folder, run_results
from histfl.reproduce.runner import carry_out, ending_at, jobs_of
from histfl.runs import jobs
from histfl.runs.execute import OnRound
from histfl.runs.jobs import Execution, Tally
from histfl.runs.run import Run


def reproduce(artefact: Artefact, runs: Path, *, keep_models: bool = False, **how: Any) -> tuple[Tally, str]:
    said, execution = io.StringIO(), Execution(device="cpu", **how)
    console = Console(file=said, width=200)
    tally = carry_out(jobs_of(artefact.arms, runs), execution, console, keep_models=keep_models)
    return tally, said.getvalue()


def rounds(artefact: Artefact, runs: Path) -> list[str]:
    return [(run_folder(runs, arm.config) / "rounds.jsonl").read_text() for arm in artefact.arms]


def test_a_second_time_nothing_is_run(tmp_path: Path) -> None:
    artefact = small_artefact()
    tally, said = reproduce(artefact, tmp_path)
    assert (len(tally.done), tally.left, tally.diverged) == (2, (), ())
    assert "2 runs, 0 of them done before" in said
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("rounds.jsonl")}
    assert len(files) == 2
    tally, said = reproduce(artefact, tmp_path)
    assert len(tally.done) == 2
    assert "2 of them done before" in said
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("rounds.jsonl")}


def test_models_are_kept_on_demand_only(tmp_path: Path) -> None:
    artefact = small_artefact()
    reproduce(artefact, tmp_path / "lean")
    reproduce(artefact, tmp_path / "all", keep_models=True)
    kept = {path.name for path in (tmp_path / "lean").rglob("*.safetensors")}
    assert kept == {"checkpoint.safetensors"}  # for arms that share the rounds and go on
    assert len([*(tmp_path / "all").rglob("*.safetensors")]) == 4
    assert len([*(tmp_path / "lean").rglob("summary.json")]) == 2


def test_an_arm_that_asks_for_more_rounds_goes_on_with_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, execute = [], jobs.execute

    def watched(*given: Any, on_round: OnRound, **more: Any) -> Run:
        return execute(
            *given, on_round=lambda record: (seen.append(record["round"]), on_round(record)), **more
        )

    monkeypatch.setattr(jobs, "execute", watched)
    for rounds_asked, expected in ((2, [1, 2, 1, 2]), (3, [3, 3]), (2, [])):
        tally, _ = reproduce(small_artefact(training__rounds=rounds_asked), tmp_path)
        assert (len(tally.done), seen) == (2, expected)
        seen.clear()


def test_runs_side_by_side_give_the_same_rounds(tmp_path: Path) -> None:
    artefact = small_artefact(seeds=(1, 2))
    reproduce(artefact, tmp_path / "one", engine="reference")
    tally, said = reproduce(artefact, tmp_path / "two", engine="reference", parallel=2)
    assert len(tally.done) == 4
    assert "4 of 4" in said
    assert rounds(artefact, tmp_path / "one") == rounds(artefact, tmp_path / "two")


def test_a_mistake_in_a_process_is_the_users_one_line(tmp_path: Path) -> None:
    artefact = small_artefact(model__hidden=-1)
    with pytest.raises(UsageError, match=r"^mlp-h.*-seed1-\w+: .*hidden"):
        reproduce(artefact, tmp_path, parallel=2)


def test_when_the_minutes_are_over_everything_is_kept_and_goes_on(tmp_path: Path) -> None:
    artefact = small_artefact(training__rounds=6)
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    reproduce(artefact, whole)
    tally, _ = reproduce(artefact, pieces, minutes=0)
    assert (len(tally.left), tally.done) == (2, ())
    # A run that had to stop after some of its rounds, as its minutes would have it.
    first = artefact.arms[0]
    shorter = first.config.training.model_copy(update={"rounds": 2})
    piece = small_artefact(training__rounds=2)
    assert piece.arms[0].config.training == shorter
    reproduce(piece, pieces)
    assert [text.count("\n") for text in rounds(artefact, pieces)] == [2, 2]
    tally, _ = reproduce(artefact, pieces)
    assert len(tally.done) == 2
    assert rounds(artefact, pieces) == rounds(artefact, whole)


def test_the_minutes_end_a_run_between_its_rounds(tmp_path: Path) -> None:
    artefact = small_artefact(training__rounds=100_000)
    tally, _ = reproduce(artefact, tmp_path, minutes=0.05)
    assert len(tally.left) == 2
    done = run_results(artefact, tmp_path).all
    assert done
    assert not any(result.finished for result in done)
    folder = run_folder(tmp_path, artefact.arms[0].config)
    before = (folder / "rounds.jsonl").read_text()
    reproduce(artefact, tmp_path, minutes=0.1)
    after = (folder / "rounds.jsonl").read_text()
    assert after.startswith(before)
    assert len(after) > len(before)


def test_a_run_ended_at_an_accuracy_goes_on_later(tmp_path: Path) -> None:
    artefact = small_artefact(training__rounds=8, training__targets=(0.3, 0.99))
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    reproduce(artefact, whole)
    early = dataclasses.replace(artefact, arms=tuple(ending_at(arm, 0.3) for arm in artefact.arms))
    tally, _ = reproduce(early, pieces)
    assert len(tally.done) == 2
    for result in run_results(artefact, pieces).all:
        assert not result.finished
        reached = result.to_target["0.3"]
        assert reached is not None
        assert reached["round"] == result.rounds_done < 8
    reproduce(artefact, pieces)
    assert rounds(artefact, pieces) == rounds(artefact, whole)


def test_an_arm_that_ends_before_that_accuracy_is_not_made_longer() -> None:
    artefact = small_artefact(training__targets=(0.3, 0.4), training__stop_at_targets=True)
    for arm in artefact.arms:
        assert ending_at(arm, 0.9) == ending_at(arm, 0.4) == arm
        assert ending_at(arm, 0.3).config.training.targets == (0.3,)
        assert ending_at(arm, 0.35).config.training.targets == (0.3, 0.35)


def test_arms_that_share_their_rounds_share_a_run(tmp_path: Path) -> None:
    longer, target = small_artefact(training__rounds=5), small_artefact(training__rounds=3)
    works = jobs_of([*target.arms, *longer.arms], tmp_path)
    assert len(works) == 2
    tally = carry_out(works, Execution(device="cpu"), Console(file=io.StringIO()))
    assert len(tally.done) == 2
    assert [result.rounds_done for result in run_results(longer, tmp_path).all] == [5, 5]
    assert [result.rounds_done for result in run_results(target, tmp_path).all] == [3, 3]


def test_a_run_that_diverges_is_told_and_not_tried_again(tmp_path: Path) -> None:
    artefact = small_artefact(training__learning_rate=1e30)
    tally, _ = reproduce(artefact, tmp_path)
    assert len(tally.diverged) == 2
    tally, said = reproduce(artefact, tmp_path)
    assert len(tally.diverged) == 2
    assert "2 of them done before" in said
    kept = tmp_path / "kept"
    assert len(collect(artefact, tmp_path, kept)) == 2
    for results in (run_results(artefact, tmp_path), kept_results(artefact, kept)[0]):
        assert [result.rounds_done for result in results.all] == [0, 0]
        (row,) = artefact.rows(results)
        assert (row.verdict, "not reached" in row.ours) == ("no", True)
        assert results.of(method="hist").highest_accuracies().values == (None,)
        assert (
            results.of(method="hist").seconds_a_round().values
            == results.of(method="hist").accuracy_at("round", 1).values
            == (None,)
        )
        assert results.of(method="hist").common_rounds == []
        as_svg(artefact.panels(results), "it")


def test_a_run_tells_its_commit_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.origin.cache_clear()
    monkeypatch.setenv("HISTFL_COMMIT", "abc123")
    artefact = small_artefact()
    reproduce(artefact, tmp_path)
    files.origin.cache_clear()
    about = json.loads((run_folder(tmp_path, artefact.arms[0].config) / "origin.json").read_text())
    assert about["commit"] == "abc123"
    assert "cores" in about["machine"]
    assert about["torch"] == torch.__version__


def test_the_commit_is_of_the_repository_that_holds_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HISTFL_COMMIT", raising=False)
    code = tmp_path / "histfl" / "reproduce" / "files.py"
    code.parent.mkdir(parents=True)
    shutil.copy(str(files.__file__), code)
    spec = importlib.util.spec_from_file_location("copied_files", code)
    assert spec is not None
    assert spec.loader is not None
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        asked = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "another project")
    assert copied._commit() is None
    git("add", "-f", str(code))
    git("commit", "-q", "-m", "its own code")
    head = git("rev-parse", "HEAD")
    assert copied._commit() == head
    (tmp_path / "README.md").write_text("new")
    assert copied._commit() == f"{head} with changes"
