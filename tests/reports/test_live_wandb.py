"""`--wandb` without a network, read back from what W&B would send."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL

from histfl.runs.records import scalars

pytestmark = [pytest.mark.filterwarnings("ignore")]  # W&B's own


def sent(folder: Path) -> tuple[dict[int, dict[str, float]], dict[str, float], str]:
    """The rounds' numbers by step, those of the summary, and the run's id."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    rounds: dict[int, dict[str, float]] = {}
    summary: dict[str, float] = {}
    run = ""
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            run = record.run.run_id or run
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in (*record.history.item, *record.summary.update)
            }
            if record.HasField("history"):
                rounds[record.history.step.num] = values
            elif record.HasField("summary"):
                summary |= values
    return rounds, summary, run


def test_wandb_has_every_number_of_the_records_and_the_summary(
    tmp_path: Path, histfl_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    out = tmp_path / "run"
    first = histfl_command("run", *SMALL, "--set", "training.rounds=2", "--out", out)  # not followed
    answer = histfl_command("run", *SMALL, "--out", out, "--resume", "--wandb", "--json")
    assert (first.code, answer.code) == (0, 0), answer.err
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    rounds, summary, run = sent(out)
    assert run == (out / "wandb.txt").read_text()  # a resumed run goes on in the same one
    for record in records:
        found = rounds[record["round"]]
        assert {tag: found[tag] for tag in scalars(record)} == scalars(record)
    expected = scalars(json.loads((out / "summary.json").read_text()), "summary/")
    assert {tag: summary[tag] for tag in expected} == expected


def test_without_the_extra_the_install_line_is_given(
    tmp_path: Path, histfl_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    answer = histfl_command("run", *SMALL, "--out", tmp_path / "run", "--wandb")
    assert answer.code == 2
    assert "pip install 'histfl[wandb]'" in answer.err
    assert not (tmp_path / "run").exists()
