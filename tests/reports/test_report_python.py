"""run.plot(), run.to_frame() and histfl.compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import histfl
from histfl.errors import CheckpointError, UsageError
from histfl.reports.bound import bound_of


def trained(method: str, seed: int = 1, **where: Any) -> histfl.Run:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 6, generator=generator)
    data = (inputs, (inputs[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    network = histfl.Network.uniform(cells=2, clients_per_cell=2)
    settings = {"rounds": 3, "local_steps": 2, "edge_rounds": 1, "batch_size": 8, "seed": seed}
    return histfl.train(model, data, data, network=network, method=method, device="cpu", **settings, **where)


@pytest.fixture(scope="module")
def runs() -> dict[str, histfl.Run]:
    return {method: trained(method) for method in ("hist", "hfedavg")}


def test_a_run_plots_its_accuracy(runs: dict[str, histfl.Run]) -> None:
    (line,) = runs["hist"].plot("round").data
    assert line.x.tolist() == [1, 2, 3]
    assert line.y.tolist() == runs["hist"].accuracy.tolist()
    with pytest.raises(UsageError, match="plot against 'joy'"):
        runs["hist"].plot("joy")


def test_a_comparison_has_the_summaries_numbers(runs: dict[str, histfl.Run]) -> None:
    found = histfl.compare(runs["hist"], runs["hfedavg"])
    assert [row["run"] for row in found.rows] == ["hist", "hfedavg"]
    for row, run in zip(found.rows, runs.values(), strict=True):
        for key in ("final_accuracy", "megabytes_per_client", "simulated_seconds"):
            assert row[key] == run.summary[key]
    assert [line.name for line in found.plot().data] == ["hist", "hfedavg"]
    assert "<table" in found._repr_html_()


def test_runs_and_comparisons_write_their_page(runs: dict[str, histfl.Run], tmp_path: Path) -> None:
    runs["hist"].write_report(tmp_path / "one.html")
    histfl.compare(**runs).write_report(tmp_path / "both.html")
    assert "hist is at" in (tmp_path / "one.html").read_text("utf-8")
    both = (tmp_path / "both.html").read_text("utf-8")
    assert 'id="plot-partition-0-0"' in both  # drawn without a folder
    assert "histfl.train(...) with the same model" in both


def test_runs_may_be_named_and_seeds_are_one_arm(runs: dict[str, histfl.Run]) -> None:
    found = histfl.compare(runs["hist"], trained("hist", seed=2), theirs=runs["hfedavg"])
    assert [run.name for run in found.runs] == ["hist 1", "hist 2", "theirs"]
    assert [group.label for group in found.groups] == ["hist (2 seeds)", "theirs"]
    with pytest.raises(UsageError, match="at least one run"):
        histfl.compare()
    for given in (list(runs.values()), runs, 3):
        with pytest.raises(
            UsageError, match=rf"not {type(given).__name__}: compare\(a, b\), or compare\(\*runs\)"
        ):
            histfl.compare(given)


def test_what_is_said_of_a_folder_can_be_done_from_python(tmp_path: Path) -> None:
    trained("hist", out=tmp_path)
    with pytest.raises(
        UsageError, match=r"resume it \(--resume, in Python resume=True\), or use another folder"
    ):
        trained("hist", out=tmp_path)
    with pytest.raises(CheckpointError, match=r"method\.name = 'hist', not 'ist'; .* or use another folder$"):
        trained("ist", out=tmp_path, resume=True)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="use another folder, or empty this one to start again"):
        trained("hist", out=tmp_path, resume=True)


def test_a_frame_has_a_row_a_round(runs: dict[str, histfl.Run]) -> None:
    pytest.importorskip("pandas", reason="the extra notebook is not installed")
    frame = runs["hist"].to_frame()
    assert (frame.index.name, frame.index.tolist()) == ("round", [1, 2, 3])
    assert "round" not in frame.columns
    assert np.array_equal(frame["accuracy"], runs["hist"].accuracy)
    assert frame["latency/uplink_seconds"][2] == runs["hist"].records[1]["latency"]["uplink_seconds"]


def test_without_pandas_the_install_line_is_given(
    runs: dict[str, histfl.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install 'histfl\[notebook\]'"):
        runs["hist"].to_frame()


def test_the_bound_of_a_run_in_memory_is_on_its_page(tmp_path: Path) -> None:
    run = trained("hist", theory_every=1)
    run.write_report(tmp_path / "report.html")
    assert "The convergence bound" in (tmp_path / "report.html").read_text("utf-8")
    assert bound_of(run).final.rounds == len(run.records)
