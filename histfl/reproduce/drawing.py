"""An artefact's panels, drawn twice: for the screen by plotly, for the documentation as SVG by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from histfl.errors import missing_extra
from histfl.reports.figures import laid_out
from histfl.reports.paper import STYLE
from histfl.reports.style import LINE_COLOURS, band_colour
from histfl.reproduce.artefact import Curve, Panel
from histfl.reproduce.results import Repeats, Spread

SVG_STYLE = STYLE | {"figure.facecolor": "white", "text.parse_math": True}  # powers of ten on log axes
PANEL_INCHES = (4.2, 3.3)


def learning_curve(
    repeats: Repeats, name: str, across: str, *, colour: int, dashed: bool = False
) -> tuple[Curve, ...]:
    """Test accuracy against the column `across`, the mean over the seeds; nothing before the first run."""
    if not repeats.common_rounds:
        return ()
    accuracy = repeats.column("accuracy")
    return (
        Curve(
            name,
            repeats.column(across).mean(axis=0),
            accuracy.mean(axis=0),
            accuracy.min(axis=0),
            accuracy.max(axis=0),
            colour,
            dashed,
        ),
    )


def curve_of(
    points: Iterable[tuple[float, Spread]], name: str, *, colour: int, dashed: bool = False
) -> tuple[Curve, ...]:
    """One value of x and its spread a point; points that no seed reached are left out."""
    known = [
        (x, [v for v in spread.values if v is not None]) for x, spread in points if spread.number is not None
    ]
    if not known:
        return ()
    x = np.array([x for x, _ in known], dtype=np.float64)
    mean, low, high = (
        np.array([read(values) for _, values in known], dtype=np.float64)
        for read in (np.mean, np.min, np.max)
    )
    return (Curve(name, x, mean, low, high, colour, dashed),)


def plotly_figure(panel: Panel) -> go.Figure:
    """One panel; bands reach from the lowest to the highest seed."""
    figure = go.Figure()
    for curve in panel.curves:
        colour = LINE_COLOURS[curve.colour % len(LINE_COLOURS)]
        figure.add_scatter(
            x=np.concatenate((curve.x, curve.x[::-1])),
            y=np.concatenate((curve.high, curve.low[::-1])),
            mode="lines",
            fill="toself",
            fillcolor=band_colour(curve.colour),
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            legendgroup=curve.name,
        )
        figure.add_scatter(
            x=curve.x,
            y=curve.y,
            name=curve.name,
            mode="lines+markers" if panel.points else "lines",
            line={"color": colour, "dash": "dash" if curve.dashed else "solid"},
            legendgroup=curve.name,
        )
    figure.update_xaxes(title_text=panel.x_label)
    figure.update_yaxes(title_text=panel.y_label, type="log" if panel.log_y else "linear")
    return laid_out(figure, 400, len(panel.curves))


def svg(panels: Sequence[Panel]) -> bytes:
    """The panels side by side; the same panels give the same bytes."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("drawing the page", "figures", error) from None
    width, height = PANEL_INCHES
    drawn = io.BytesIO()
    with matplotlib.rc_context(SVG_STYLE):
        figure = Figure(figsize=(width * len(panels), height), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw(axes, panel)
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def _draw(axes: Any, panel: Panel) -> None:
    for curve in panel.curves:
        colour = LINE_COLOURS[curve.colour % len(LINE_COLOURS)]
        style = {"color": colour, "linestyle": "--" if curve.dashed else "-"}
        if panel.points:
            error = np.stack((curve.y - curve.low, curve.high - curve.y))
            axes.errorbar(
                curve.x, curve.y, yerr=error, marker="o", markersize=3, capsize=2, label=curve.name, **style
            )
        else:
            axes.plot(curve.x, curve.y, label=curve.name, **style)
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_title(panel.title, fontsize=9)
    if panel.log_y:
        axes.set_yscale("log")
    if panel.curves:
        axes.legend(fontsize=6)
