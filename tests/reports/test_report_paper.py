"""Figures and tables for papers."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from runs_for_tests import write_run

from histfl.reports import gather, groups_of
from histfl.reports.factors import Looks
from histfl.reports.figures import size_line, size_plot
from histfl.reports.plots import on_screen
from histfl.reports.tables import Cell, Column, Table, as_csv, as_latex, latex

pytest.importorskip("matplotlib.figure", reason="the extra figures is not installed")
PLOTS = (
    "accuracy-megabytes-per-client",
    "accuracy-simulated-seconds",
    "accuracy-round",
    "latency-by-part",
    "sizes",
)


def test_sampled_cells_and_many_are_a_band(tmp_path: Path) -> None:
    """Their places in a round's list are not the same cells in every round."""
    write_run(tmp_path / "sampled", "network.cells=4", "network.active_cells=2")
    write_run(tmp_path / "many", "network.clients=40", "network.cells=20")
    write_run(tmp_path / "few", "network.cells=4")
    labels = {group.label: group for group in groups_of(gather([tmp_path]).runs)}
    for name, lines, bands in [("sampled", 1, 1), ("many", 1, 1), ("few", 4, 0)]:
        line = size_line(labels[name], 0, Looks(1))
        assert (len(np.atleast_2d(line.y)), line.band is not None) == (lines, bool(bands)), name
        assert len(on_screen(size_plot([labels[name]])).data) == 1 + bands
    line = size_line(labels["sampled"], 0, Looks(1))
    low, high = line.band
    assert (low[-1], line.y[-1], high[-1]) == (1000, 1003, 1006)  # of the sixth round


@pytest.fixture
def figures(tmp_path: Path, histfl_command: Callable[..., Any]) -> Path:
    for seed in (1, 2):
        write_run(tmp_path / "runs" / f"$hist_{seed}", f"training.seed={seed}", offset=seed / 100)
    write_run(tmp_path / "runs" / "hfedavg", "method.name=hfedavg")
    answer = histfl_command("report", tmp_path / "runs", "--figures", tmp_path / "figures")
    assert (answer.code, answer.err) == (0, "")
    assert f"figures: {tmp_path / 'figures'}" in answer.out
    return tmp_path / "figures"


def test_every_plot_is_a_pdf_with_real_fonts_and_a_sharp_png(figures: Path) -> None:
    assert {path.name for path in figures.iterdir()} == {
        *(f"{name}.{kind}" for name in PLOTS for kind in ("pdf", "png")),
        "answer.csv",
        "answer.tex",
        "runs.csv",
    }
    for name in PLOTS:
        pdf = (figures / f"{name}.pdf").read_bytes()
        assert pdf[:5] == b"%PDF-"
        assert b"/Type3" not in pdf
        with Image.open(figures / f"{name}.png") as picture:
            assert picture.width == 1050  # 3.5 inches at 300 dots
            assert len(picture.convert("RGB").getcolors(10**6)) > 50  # something is drawn


def test_the_csv_has_the_summaries_numbers_to_the_last_digit(figures: Path) -> None:
    with (figures / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    for row in rows:
        summary = json.loads((figures.parent / "runs" / row["run"] / "summary.json").read_text())
        for key in (
            "final_accuracy",
            "best_accuracy",
            "megabytes_per_client",
            "simulated_seconds",
            "energy_joules",
        ):
            assert float(row[key]) == summary[key]
        for target, reached in summary["to_target"].items():
            for key in ("round", "megabytes_per_client", "simulated_seconds"):
                assert row[f"to_{target}_{key}"] == ("" if reached is None else str(reached[key]))


def test_the_latex_table_has_the_numbers_that_the_page_shows(figures: Path) -> None:
    text = (figures / "answer.tex").read_text("utf-8")
    summary = json.loads((figures.parent / "runs" / "hfedavg" / "summary.json").read_text())
    (row,) = [line for line in text.splitlines() if line.startswith("hfedavg")]
    cells = row.removesuffix(r" \\").split(" & ")
    reached = summary["to_target"][
        "0.6"
    ]  # the hardest that is reached: a table that fits a column has no other
    cost = [
        str(reached["round"]),
        f"{reached['megabytes_per_client']:.1f}",
        f"{reached['simulated_seconds']:.3g}",
    ]
    assert cells[1:] == [f"{100 * summary['final_accuracy']:.1f}\\%", *cost]
    assert r"rounds to 60\%" in text
    assert r"\columnwidth" in text
    (row, below) = text.splitlines()[7:9]  # of the two seeds
    assert r" & 61.5\% $\pm$ 0.7 & " in row
    assert below.startswith(r" & \scriptsize 61.0\% to 62.0\%")


def test_the_csv_of_the_answer_has_the_seeds_beside_their_mean(figures: Path) -> None:
    with (figures / "answer.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (row,) = [row for row in rows if "hfedavg" not in row["run"]]
    ends = [
        json.loads((figures.parent / "runs" / f"$hist_{seed}" / "summary.json").read_text())["final_accuracy"]
        for seed in (1, 2)
    ]
    found = {
        key: float(row[f"final_accuracy{key}"]) for key in ("", "_sd", "_interval95", "_lowest", "_highest")
    }
    half = abs(ends[1] - ends[0]) / 2
    expected = (
        sum(ends) / 2,
        half * 2**0.5,
        12.706204736 * half,
        *sorted(ends),
    )  # t of one degree of freedom
    assert list(found.values()) == pytest.approx(expected)
    assert row["final_accuracy_seeds"] == "2"


def test_the_same_runs_give_the_same_files(
    figures: Path, tmp_path: Path, histfl_command: Callable[..., Any]
) -> None:
    histfl_command("report", tmp_path / "runs", "--figures", tmp_path / "again")
    for path in figures.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_hostile_names_are_text_in_latex_and_one_field_in_csv() -> None:
    name = 'a_b & 50% \\input{x} "q", $x$'
    table = Table((Column("run", "run"), Column("x", "x")), ((Cell(name, name), Cell("1", 1)),))
    assert list(csv.reader(as_csv(table).splitlines()))[1] == [name, "1"]
    assert r"a\_b \& 50\% \textbackslash{}input\{x\}" in as_latex(table)


@settings(deadline=None)
@given(st.text(alphabet="ab\\{}$&#^_~%<> "))
def test_latex_commands_never_come_from_text(text: str) -> None:
    written = latex(text)
    for command in ("textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater"):
        written = written.replace("\\" + command + "{}", "")
    for letter in "&%$#_{}":
        written = written.replace("\\" + letter, "")
    assert not set(written) & set("\\&%$#_{}~^<>")


def test_without_the_extra_the_install_line_is_given(
    tmp_path: Path, histfl_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_run(tmp_path / "run")
    answer = histfl_command("report", tmp_path / "run", "--figures", tmp_path / "figures")
    assert answer.code == 2
    assert "pip install 'histfl[figures]'" in answer.err


def test_where_no_run_can_be_shown_there_is_a_page_but_no_figure(
    tmp_path: Path, histfl_command: Callable[..., Any]
) -> None:
    (tmp_path / "empty").mkdir()
    answer = histfl_command("report", tmp_path, "--figures", tmp_path.parent / "none")
    assert answer.code == 2
    assert "empty: no run was begun here" in (tmp_path / "report.html").read_text("utf-8")
    assert not (tmp_path.parent / "none").exists()
