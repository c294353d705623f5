"""The two drawers show what a plot's description says, and nothing else draws."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from histfl.reports.plots import Axis, Bars, HeatMap, Line, Plot, as_svg, on_page, on_paper, on_screen

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


def test_a_name_of_two_plots_stands_in_the_legend_once() -> None:
    above, below = Bars("shirt", X, X, "#0072B2"), Bars("shirt", X, X, "#0072B2")
    figure = on_page("both", [plot(above, Bars("shoe", X, X, "#D55E00")), plot(below, title="two")], 500)
    assert [(trace.name, trace.showlegend) for trace in figure.data] == [
        ("shirt", True),
        ("shoe", None),
        ("shirt", False),
    ]
    assert [title.text for title in figure.layout.annotations] == ["the title", "two"]


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
    assert found == {"reports/plots.py"}
