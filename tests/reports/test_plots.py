"""The two drawers show what a plot's description says, and nothing else draws."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from histfl.reports.paper import as_svg, on_paper
from histfl.reports.plots import Axis, Bars, HeatMap, Line, Plot, on_screen

PACKAGE = Path(__file__).parents[2] / "histfl"
X = np.array([1.0, 2.0, 3.0])


def plot(*marks: Line | Bars | HeatMap, title: str = "the title") -> Plot:
    return Plot(title, "what it shows", Axis("rounds", from_zero=True), Axis("cost", scale="log"), marks)


def test_both_drawers_show_a_line_with_its_band_colour_and_dash() -> None:
    line = Line("<b>hist", X, X * 2, "#0072B2", "dash", band=(X, X * 3))
    band, drawn = on_screen(plot(line)).data
    assert (drawn.name, drawn.line.color, drawn.line.dash) == ("&lt;b&gt;hist", "#0072B2", "dash")
    assert list(band.y) == [3, 6, 9, 3, 2, 1]
    assert (band.fillcolor, band.legendgroup) == ("rgba(0,114,178,0.18)", drawn.legendgroup)
    pytest.importorskip("matplotlib", reason="the extra figures is not installed")
    svg = as_svg([plot(line)], "it").decode()
    for text in ("the title", "rounds", "cost", "&lt;b&gt;hist"):
        assert f"<!-- {text} -->" in svg
    assert re.search(r"stroke-dasharray: [^;]+; stroke-dashoffset: 0; stroke: #0072b2", svg)
    assert "PolyCollection" in svg


def test_lines_of_one_name_have_gaps_and_a_single_point_is_a_mark() -> None:
    (drawn,) = on_screen(plot(Line("cells", X, np.stack((X, -X)), "#0072B2", texts=("a", "b")))).data
    assert np.array_equal(drawn.y, [1, 2, 3, np.nan, -1, -2, -3], equal_nan=True)
    assert list(drawn.text) == ["a", "a", "a", "a", "b", "b", "b"]
    (drawn,) = on_screen(plot(Line("one", X[:1], X[:1], "#0072B2"))).data
    assert drawn.mode == "markers"


def test_a_key_stands_in_the_legend_in_place_of_the_lines() -> None:
    key = (Line("rate 0.1", X[:0], X[:0], "#0072B2"), Line("hist", X[:0], X[:0], "#8a8a8a", "dash"))
    lines = tuple(Line(f"line {n}", X, X * n, "#0072B2", group=n) for n in (1, 2))
    drawn = replace(plot(*lines), key=key)
    figure = on_screen(drawn)
    assert [trace.name for trace in figure.data if trace.showlegend is not False] == ["rate 0.1", "hist"]
    assert [trace.meta for trace in figure.data[:2]] == [{"group": 1}, {"group": 2}]
    pytest.importorskip("matplotlib", reason="the extra figures is not installed")
    svg = as_svg([drawn], "it").decode()
    assert "<!-- rate 0.1 -->" in svg
    assert "<!-- line 1 -->" not in svg


def test_hatched_bars_have_no_edges_that_hide_them() -> None:
    pytest.importorskip("matplotlib", reason="the extra figures is not installed")
    marks = (
        Bars("compute", X, np.array([1.0, 0.0, 0.0]), "#0000ff", sideways=True),
        Bars("uplink", X, np.array([0.0, 0.004, 0.0]), "#00ff00", sideways=True, hatched=True),
    )
    drawn = replace(plot(*marks), y=Axis("run"))
    with Image.open(io.BytesIO(on_paper(drawn, "it")["png"])) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    green = (pixels[:, :900, 1] > 200) & (pixels[:, :900, 0] < 60) & (pixels[:, :900, 2] < 60)
    assert green.any(axis=1).sum() > 50  # the height of the bar, which is three pixels wide


def test_fields_of_a_map_say_their_values_and_empty_ones_in_the_pages_ink() -> None:
    heat = HeatMap(np.array([[1.0, np.nan]]), "Teal_r", "", "%{text}", texts=(("1.0", "not reached"),))
    drawn, words = on_screen(plot(heat)).data
    assert (drawn.showscale, drawn.text.tolist()) == (False, [["1.0", ""]])
    assert (list(words.x), list(words.y), list(words.text), words.mode) == ([1], [0], ["not reached"], "text")


def test_a_map_is_for_the_screen_alone() -> None:
    heat = HeatMap(np.eye(2), ("#0072B2", "#D55E00"), "cell", "%{z}", np.eye(2), names=("a", "b"))
    drawn, *names = on_screen(plot(heat)).data
    assert (drawn.zmin, drawn.zmax, [entry.name for entry in names]) == (-0.5, 1.5, ["a", "b"])
    pytest.importorskip("matplotlib", reason="the extra figures is not installed")
    with pytest.raises(TypeError, match="HeatMap is drawn on screens alone"):
        on_paper(plot(heat), "it")


def test_nothing_else_talks_to_the_libraries_that_draw() -> None:
    drawing = re.compile(r"^\s*(import|from) (plotly\.(graph_objects|subplots|io|express)|matplotlib)", re.M)
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if drawing.search(path.read_text("utf-8"))
    }
    assert found == {"reports/plots.py", "reports/paper.py"}
