"""What a plot shows, described once, and the drawer for the screen, plotly; `paper.py` has the one for paper.

Nothing outside these two modules talks to a library that draws; everything else describes what is to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
import plotly.io
from plotly.colors import hex_to_rgb

from histfl.arrays import Floats, Ints
from histfl.reports.style import GREY, shown_name, shown_names, steps

LOG_TICKS = 4  # over several decades 1, 2 and 5 of each, whose names have room


@dataclass(frozen=True)
class Axis:
    """`powers` is a logarithmic scale that names powers of ten; `ticks` are places and their names."""

    label: str = ""
    scale: Literal["linear", "log", "powers"] = "linear"
    from_zero: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    whole: bool = False  # numbers without a fraction
    share: bool = False  # parts of a whole, in per cent
    downwards: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Line:
    """`y` [point], or [line, point] for several lines of one name that `texts` tells apart; nan is a gap.

    The band reaches from its first to its second values [point]; `width` is in pixels of a screen. `group` is the
    place of the compared group that it shows, by which a page recolours and filters.
    """

    name: str
    x: Floats
    y: Floats
    colour: str
    dash: str = "solid"
    width: float = 2.5
    band: tuple[Floats, Floats] | None = None
    markers: bool = False
    texts: tuple[str, ...] = ()
    group: int | None = None


@dataclass(frozen=True)
class Bars:
    """A bar a place; `shift` moves them beside their place. `hover` is a text in plotly's notation, in which
    `customdata` are the numbers `further` [bar, number]. `groups` are those of which a bar each is, and `texts` stand
    at the bars' ends."""

    name: str
    places: Floats | Ints
    values: Floats | Ints
    colour: str
    sideways: bool = False
    hatched: bool = False
    base: Floats | None = None
    shift: float | None = None
    width: float | None = None
    hover: str | None = None
    further: Floats | None = None
    groups: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeatMap:
    """Values [row, column] in a named scale of colours, or each in one of `colours`, of which the first is that of
    the value `lowest`. Where colours have `names` they stand in the legend, where fields have `texts` these say the
    values, else a bar shows the scale; `limits` are the values of its ends."""

    values: Floats | Ints
    colours: str | tuple[str, ...]
    title: str  # of the scale
    hover: str
    further: Floats | Ints | None = None
    names: tuple[str, ...] = ()
    lowest: int = 0
    gaps: tuple[int, int] = (0, 0)  # between columns and rows, in pixels
    texts: tuple[tuple[str, ...], ...] = ()
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Rule:
    """A straight line across the whole plot, at a value of y; `upright` at one of x."""

    at: float
    colour: str
    dash: str = "solid"
    upright: bool = False


Mark = Line | Bars | HeatMap | Rule


@dataclass(frozen=True)
class Plot:
    """A plot with its title and, for those who do not see it, what it shows; `height` in pixels, without legend.
    `key` is the legend where it is not the marks' own names."""

    title: str
    about: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    height: int = 400
    bars: Literal["group", "stack", "overlay"] = "group"
    key: tuple[Line, ...] = ()


def on_screen(plot: Plot, template: str = "plotly_white") -> go.Figure:
    """The plot without its title, in the reports' frame: a legend below that grows with its entries, up to a point.
    A page that brings its own `template` does without plotly's, which take it long to copy."""
    figure = go.Figure(layout={"template": template})
    _add(figure, without_bands(plot) if plot.key else plot)
    if plot.key:
        figure.update_traces(showlegend=False)
        figure.add_traces(
            [_line(entry, None)[0].update(x=[None], y=[None], mode="lines") for entry in plot.key]
        )
    entries = len(plot.key) or sum(isinstance(mark, Line | Bars) for mark in plot.marks)
    legend = min(22 * ((entries + 1) // 2), 260) if entries else 30
    return figure.update_layout(
        height=plot.height + legend,
        margin={"l": 60, "r": 15, "t": 15, "b": 55 + legend},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        hovermode="closest",
        hoverlabel={"namelength": -1},
    )


def without_bands(plot: Plot) -> Plot:
    """So many lines that they have a key: their bands would hide one another."""
    marks = (replace(mark, band=None) if isinstance(mark, Line) else mark for mark in plot.marks)
    return replace(plot, marks=tuple(marks))


def figure_json(figure: go.Figure) -> str:
    """For a page that brings its own template."""
    described = figure.to_dict()
    described["layout"].pop("template", None)
    return str(plotly.io.to_json(described, validate=False))


def _add(figure: go.Figure, plot: Plot) -> None:
    for index, mark in enumerate(plot.marks):
        match mark:
            case Line():
                figure.add_traces(_line(mark, str(index)))
            case Bars():
                figure.add_trace(_bars(mark))
                figure.update_layout(barmode=plot.bars)
            case HeatMap():
                figure.add_traces(_heat_map(mark))
            case Rule():
                add = figure.add_vline if mark.upright else figure.add_hline
                add(mark.at, line={"color": mark.colour, "dash": mark.dash, "width": 2})
    if any(isinstance(mark, HeatMap) for mark in plot.marks):  # lines would run through empty fields
        figure.update_layout(
            xaxis_showgrid=False, yaxis_showgrid=False, xaxis_zeroline=False, yaxis_zeroline=False
        )
    figure.update_xaxes(**_axis(plot.x))
    figure.update_yaxes(**_axis(plot.y))


def _axis(axis: Axis) -> dict[str, Any]:
    drawn: dict[str, Any] = {"title_text": axis.label} if axis.label else {}
    if axis.scale != "linear":
        drawn |= {"type": "log", "nticks": LOG_TICKS}
    if axis.scale == "powers":
        drawn["exponentformat"] = "power"
    if axis.scale == "log":  # whole numbers: plotly's own 20 and 50 are a small 2 and 5
        drawn["tickformat"] = ".6~g"
    if axis.from_zero:
        drawn["rangemode"] = "tozero"
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        drawn |= {"tickvals": places, "ticktext": [shown_names(name) for name in names], "automargin": True}
    if axis.whole:
        drawn["tickformat"] = "d"
    if axis.share:
        drawn |= {"tickformat": ".3~%", "hoverformat": ".1%"}
    if axis.downwards:
        drawn["autorange"] = "reversed"
    if axis.limits:
        drawn["range"] = axis.limits
    return drawn


def _line(line: Line, group: str | None) -> list[go.Scatter]:
    """One trace, whose gaps part several lines, over that of the band."""
    lines = np.atleast_2d(line.y)
    gap = np.full((len(lines), 1), np.nan)
    common: dict[str, Any] = {"name": shown_name(line.name), "legendgroup": group}
    if line.group is not None:
        common["meta"] = {"group": line.group}
    drawn = go.Scatter(
        x=np.hstack((np.tile(line.x, (len(lines), 1)), gap)).ravel()[:-1],
        y=np.hstack((lines, gap)).ravel()[:-1],
        text=np.repeat(line.texts, len(line.x) + 1)[:-1] if line.texts else None,
        mode="lines+markers" if line.markers else "lines" if len(line.x) > 1 else "markers",
        line={"color": line.colour, "dash": line.dash, "width": line.width},
        **common,
    )
    if line.band is None:
        return [drawn]
    low, high = line.band
    red, green, blue = hex_to_rgb(line.colour)
    band = go.Scatter(
        x=np.concatenate((line.x, line.x[::-1])),
        y=np.concatenate((high, low[::-1])),
        mode="lines",
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.18)",
        line={"width": 0},
        showlegend=False,
        hoverinfo="skip",
        **common,
    )
    return [band, drawn]


def _bars(bars: Bars) -> go.Bar:
    places, values = (
        (bars.places.tolist(), bars.values.tolist()) if bars.groups else (bars.places, bars.values)
    )
    x, y = (values, places) if bars.sideways else (places, values)
    return go.Bar(
        x=x,
        y=y,
        orientation="h" if bars.sideways else None,
        base=bars.base,
        offset=bars.shift,
        width=bars.width,
        name=shown_name(bars.name),
        marker={
            "color": bars.colour,
            "pattern": {"shape": "/", "fillmode": "overlay"} if bars.hatched else None,
        },
        customdata=bars.further,
        hovertemplate=bars.hover,
        text=bars.texts or None,
        textposition="outside" if bars.texts else None,
        cliponaxis=False if bars.texts else None,
        meta={"groups": bars.groups} if bars.groups else None,
    )


def _heat_map(heat: HeatMap) -> list[go.Heatmap | go.Scatter]:
    drawn = go.Heatmap(
        z=heat.values,
        colorscale=heat.colours if isinstance(heat.colours, str) else steps(heat.colours),
        showscale=not (heat.names or heat.texts),
        colorbar={"title": {"text": heat.title}},
        customdata=heat.further,
        xgap=heat.gaps[0],
        ygap=heat.gaps[1],
        hovertemplate=f"{heat.hover}<extra></extra>",
    )
    if heat.limits:
        drawn.update(zmin=heat.limits[0], zmax=heat.limits[1])
    if not isinstance(heat.colours, str):
        drawn.update(zmin=heat.lowest - 0.5, zmax=heat.lowest + len(heat.colours) - 0.5)
    square = {"symbol": "square", "size": 12, "line": {"width": 1, "color": GREY}}
    further = [
        go.Scatter(x=[None], y=[None], mode="markers", name=name, marker={"color": colour, **square})
        for name, colour in zip(heat.names, heat.colours, strict=False)
    ]
    if heat.texts:
        # Fields without a value have the page's colour, on which plotly would write in its own dark ink.
        texts, empty = np.array(heat.texts, dtype=object), np.isnan(heat.values)
        drawn.update(text=np.where(empty, "", texts), texttemplate="%{text}")
        y, x = np.nonzero(empty)
        further.append(
            go.Scatter(x=x, y=y, text=texts[empty], mode="text", showlegend=False, hoverinfo="skip")
        )
    return [drawn, *further]
