"""One list of keys: what a run writes is what is read, key by key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import SMALL, Answer

from histfl.runs.run import read_run
from histfl.runs.schema import Entry, Latency, Pictures, Round, Theory, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from histfl.cli import main

    out = tmp_path_factory.mktemp("schema") / "run"
    every = ("theory.every=1", "evaluate.per=client", "training.rounds=1")
    settings = [part for key in every for part in ("--set", key)]
    with pytest.raises(SystemExit) as ended:
        main(["run", *SMALL, *settings, "--out", str(out)])
    assert not ended.value.code
    return out


def test_every_key_that_is_written_is_in_the_schema(folder: Path) -> None:
    (record,) = map(json.loads, (folder / "rounds.jsonl").read_text("utf-8").splitlines())
    for schema, values in ((Round, record), (Latency, record["latency"]), (Theory, record["theory"])):
        assert [key for key in values if key not in schema.model_fields] == []
        assert list(values) == [key for key in schema.model_fields if key in values]  # and in its order
    assert set(Round.model_fields) == {*record, "measured"}  # which a deployment has, and no simulation


def test_what_is_read_is_what_was_written(folder: Path) -> None:
    run = read_run(folder, "run")
    lines = (folder / "rounds.jsonl").read_text("utf-8").splitlines()
    assert [json.dumps(record) for record in run.records] == lines
    assert json.loads((folder / "pictures.json").read_text("utf-8")) == written(Pictures, run.pictures)


def test_metrics_stand_beside_the_keys_by_their_names() -> None:
    class Small(Entry):
        loss: float

    assert written(Small, {"f1": 0.5, "loss": 1.0}) == {"loss": 1.0, "f1": 0.5}


def test_a_damaged_line_is_named(histfl_command: Callable[..., Answer], folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    text = (copy / "rounds.jsonl").read_text("utf-8")
    (copy / "rounds.jsonl").write_text(text.replace('"updates_sent": ', '"updates_sent": -'), "utf-8")
    answer = histfl_command("report", copy)
    assert answer.code == 2
    assert "updates_sent" in answer.err
