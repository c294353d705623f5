"""A run's folder as the package wrote it before its rooms were rebuilt (commit 1077727) is one of today's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Answer

import histfl
from histfl.models.registry import build_model

Command = Callable[..., Answer]
KEPT = Path(__file__).with_name("earlier_run")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "earlier"))


def test_it_goes_on_and_ends_as_a_new_run_does(earlier: Path, histfl_command: Command) -> None:
    """Its own two rounds stay to the byte; the third is a new run's, up to what another machine rounds."""
    source, longer = KEPT / "config.toml", ("--set", "training.rounds=3", "--device", "cpu")
    before = (KEPT / "rounds.jsonl").read_bytes()
    new = histfl_command("run", source, *longer, "--out", earlier.with_name("new"), "--json")
    resumed = histfl_command("run", source, *longer, "--out", earlier, "--resume", "--json")
    assert (new.code, resumed.code) == (0, 0), resumed.err
    assert (earlier / "rounds.jsonl").read_bytes().startswith(before)
    spent = "megabytes_per_client", "edge_cloud_megabytes", "energy_joules", "client_steps"
    for key in (*spent, "submodel_parameters", "rounds", "cells", "parameters", "cut"):
        assert resumed.json[key] == new.json[key]
    assert resumed.json["simulated_seconds"] == pytest.approx(new.json["simulated_seconds"], rel=1e-6)
    assert resumed.json["final_loss"] == pytest.approx(new.json["final_loss"], rel=1e-4)


def test_it_is_done_already(earlier: Path, histfl_command: Command) -> None:
    arguments = (KEPT / "config.toml", "--device", "cpu", "--out", earlier, "--resume")
    answer = histfl_command("run", *arguments, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["rounds"] == 2
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (earlier / name).read_bytes() == (KEPT / name).read_bytes()


def test_a_sweep_takes_it_as_done(tmp_path: Path, histfl_command: Command) -> None:
    """Its summary says less than today's, and a sweep reads that of an arm that is done."""
    shutil.copytree(KEPT, tmp_path / "sweep" / "training.seed=1")
    arguments = (KEPT / "config.toml", "--vary", "training.seed=1,2", "--device", "cpu", "--resume")
    answer = histfl_command("sweep", *arguments, "--out", tmp_path / "sweep")
    assert answer.code == 0, answer.err
    assert "2 runs, 1 of them done before" in answer.err


def test_it_is_reported_bounded_loaded_and_compared(earlier: Path, histfl_command: Command) -> None:
    assert histfl_command("report", earlier, "--out", earlier / "page.html").code == 0
    assert "earlier" in (earlier / "page.html").read_text("utf-8")
    bound = histfl_command("bound", earlier, "--json")
    assert bound.code == 0, bound.err
    run = histfl.Run.load(earlier, build_model("mlp", {"hidden": 4}, (1, 28, 28), 10, seed=0))
    said = json.loads((KEPT / "summary.json").read_text("utf-8"))
    assert run.accuracy[-1] == said["final_accuracy"]
    assert run.model is not None
    assert sum(tensor.numel() for tensor in run.model.parameters()) == said["parameters"]
    assert "earlier" in repr(histfl.compare(earlier))
