"""What a plot shows, described once, and its two drawers: plotly for the screen, matplotlib for paper.

Nothing outside this module talks to either library; everything else describes what is to be seen.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
import plotly.io
from plotly.colors import hex_to_rgb
from plotly.subplots import make_subplots

from histfl.arrays import Floats, Ints
from histfl.errors import missing_extra
from histfl.reports.style import DASHES, shown_name, steps

COLUMN_INCHES = (3.5, 2.5)  # one column of a two-column paper
PANEL_INCHES = (4.2, 3.3)
# Embedded TrueType: publishers refuse matplotlib's default Type 3 fonts.
PAPER = {
    "font.size": 8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "text.usetex": False,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.hashsalt": "histfl",
}
PANELS = PAPER | {
    "figure.facecolor": "white",
    "text.parse_math": True,  # powers of ten on log axes
    "axes.titlesize": 9,
    "legend.fontsize": 6,
}
PAPER_DASHES = dict(zip(DASHES, ("-", "--", ":", "-.", (0, (10, 3)), (0, (10, 3, 1, 3))), strict=True))


@dataclass(frozen=True)
class Axis:
    """`powers` is a logarithmic scale that names powers of ten; `ticks` are places and their names."""

    label: str = ""
    scale: Literal["linear", "log", "powers"] = "linear"
    from_zero: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    whole: bool = False  # numbers without a fraction
    downwards: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Line:
    """`y` [point], or [line, point] for several lines of one name that `texts` tells apart; nan is a gap.

    The band reaches from its first to its second values [point]; `width` is in pixels of a screen.
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


@dataclass(frozen=True)
class Bars:
    """A bar a place; `shift` moves them beside their place. `hover` is a text in plotly's notation, in which
    `customdata` are the numbers `further` [bar, number]."""

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


@dataclass(frozen=True)
class HeatMap:
    """Values [row, column] in a named scale of colours, or each in one of `colours`, of which the first is that of
    the value `lowest`. Where colours have `names` they stand in the legend, else a bar shows the scale."""

    values: Floats | Ints
    colours: str | tuple[str, ...]
    title: str  # of the scale
    hover: str
    further: Floats | Ints
    names: tuple[str, ...] = ()
    lowest: int = 0
    gaps: tuple[int, int] = (0, 0)  # between columns and rows, in pixels


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
    """A plot with its title and, for those who do not see it, what it shows; `height` in pixels, without legend."""

    title: str
    about: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    height: int = 400
    bars: Literal["group", "stack", "overlay"] = "group"


def on_screen(plot: Plot) -> go.Figure:
    """The plot without its title, in the reports' frame: a legend below that grows with its entries, up to a point."""
    figure = go.Figure()
    _add(figure, plot)
    entries = sum(isinstance(mark, Line | Bars) for mark in plot.marks)
    legend = min(22 * ((entries + 1) // 2), 260) if entries else 30
    return figure.update_layout(
        template="plotly_white",
        height=plot.height + legend,
        margin={"l": 60, "r": 15, "t": 15, "b": 55 + legend},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        hovermode="closest",
    )


def on_page(title: str, plots: Sequence[Plot], height: int, *, subtitle: str = "") -> go.Figure:
    """The plots one below the other, a legend beside them in which a name of several plots stands once."""
    figure = make_subplots(
        rows=len(plots), cols=1, subplot_titles=[plot.title for plot in plots], vertical_spacing=0.15
    )
    for row, plot in enumerate(plots, start=1):
        _add(figure, plot, row=row, col=1)
    times, shown = Counter(trace.name for trace in figure.data), set()
    for trace in figure.data:
        if times[trace.name] > 1:
            trace.update(legendgroup=trace.name, showlegend=trace.name not in shown)
            shown.add(trace.name)
    words = {"text": title} | ({"subtitle": {"text": subtitle}} if subtitle else {})
    return figure.update_layout(template="plotly_white", height=height, title=words)


def figure_json(figure: go.Figure) -> str:
    """For a page that brings its own template."""
    described = figure.to_dict()
    described["layout"].pop("template", None)
    return str(plotly.io.to_json(described, validate=False))


def _add(figure: go.Figure, plot: Plot, **place: int) -> None:
    for index, mark in enumerate(plot.marks):
        match mark:
            case Line():
                traces = _line(mark, None if place else str(index))
            case Bars():
                traces = [_bars(mark)]
                figure.update_layout(barmode=plot.bars)
            case HeatMap():
                traces = _heat_map(mark)
            case Rule():
                traces, add = [], figure.add_vline if mark.upright else figure.add_hline
                add(mark.at, line={"color": mark.colour, "dash": mark.dash, "width": 2}, **place)
        for trace in traces:
            figure.add_trace(trace, **place)
    figure.update_xaxes(**_axis(plot.x), **place)
    figure.update_yaxes(**_axis(plot.y), **place)


def _axis(axis: Axis) -> dict[str, Any]:
    drawn: dict[str, Any] = {"title_text": axis.label} if axis.label else {}
    if axis.scale != "linear":
        drawn["type"] = "log"
    if axis.scale == "powers":
        drawn["exponentformat"] = "power"
    if axis.from_zero:
        drawn["rangemode"] = "tozero"
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        drawn |= {"tickvals": places, "ticktext": [shown_name(name) for name in names], "automargin": True}
    if axis.whole:
        drawn["tickformat"] = "d"
    if axis.downwards:
        drawn["autorange"] = "reversed"
    if axis.limits:
        drawn["range"] = axis.limits
    return drawn


def _line(line: Line, group: str | None) -> list[go.Scatter]:
    """One trace, whose gaps part several lines, over that of the band."""
    lines = np.atleast_2d(line.y)
    gap = np.full((len(lines), 1), np.nan)
    common = {"name": shown_name(line.name), "legendgroup": group}
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
    x, y = (bars.values, bars.places) if bars.sideways else (bars.places, bars.values)
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
    )


def _heat_map(heat: HeatMap) -> list[go.Heatmap | go.Scatter]:
    drawn = go.Heatmap(
        z=heat.values,
        colorscale=heat.colours if isinstance(heat.colours, str) else steps(heat.colours),
        showscale=not heat.names,
        colorbar={"title": {"text": heat.title}},
        customdata=heat.further,
        xgap=heat.gaps[0],
        ygap=heat.gaps[1],
        hovertemplate=f"{heat.hover}<extra></extra>",
    )
    if not isinstance(heat.colours, str):
        drawn.update(zmin=heat.lowest - 0.5, zmax=heat.lowest + len(heat.colours) - 0.5)
    square = {"symbol": "square", "size": 12}
    squares = (
        go.Scatter(x=[None], y=[None], mode="markers", name=name, marker={"color": colour, **square})
        for name, colour in zip(heat.names, heat.colours, strict=False)
    )
    return [drawn, *squares]


def on_paper(plot: Plot, what: str) -> dict[str, bytes]:
    """A column's plot of lines and bars as PDF and PNG; `what` names it where matplotlib is missing."""
    kinds = {"pdf": {"CreationDate": None}, "png": None}  # no date: the same runs give the same file
    return _drawn([plot], PAPER, COLUMN_INCHES, kinds, what)


def as_svg(plots: Sequence[Plot], what: str) -> bytes:
    """The plots side by side with their titles; the same plots give the same bytes."""
    inches = (PANEL_INCHES[0] * len(plots), PANEL_INCHES[1])
    return _drawn(plots, PANELS, inches, {"svg": {"Date": None}}, what)["svg"]


def _drawn(
    plots: Sequence[Plot],
    style: dict[str, Any],
    inches: tuple[float, float],
    kinds: dict[str, Any],
    what: str,
) -> dict[str, bytes]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra(what, "figures", error) from None
    files = {kind: io.BytesIO() for kind in kinds}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=inches, layout="constrained")
        for axes, plot in zip(figure.subplots(1, len(plots), squeeze=False)[0], plots, strict=True):
            _draw(axes, plot)
            axes.set_title(plot.title if style is PANELS else "")
        for kind, metadata in kinds.items():
            figure.savefig(files[kind], format=kind, dpi=300, metadata=metadata)
    return {kind: file.getvalue() for kind, file in files.items()}


def _draw(axes: Any, plot: Plot) -> None:
    """With matplotlib; bars are sideways and stacked."""
    ends: Any = 0.0
    for mark in plot.marks:
        if isinstance(mark, Line):
            _draw_line(axes, mark)
        elif isinstance(mark, Bars):
            hatch = {"hatch": "///", "edgecolor": "white"} if mark.hatched else {}
            axes.barh(mark.places, mark.values, left=ends, color=mark.colour, label=mark.name, **hatch)
            ends = ends + mark.values
        else:
            raise TypeError(f"{type(mark).__name__} is drawn on screens alone")
    axes.set(xlabel=plot.x.label, ylabel=plot.y.label)
    if plot.x.from_zero:
        axes.set_xlim(left=0)
    if plot.y.from_zero:
        axes.set_ylim(bottom=0)
    if plot.y.scale != "linear":
        axes.set_yscale("log")
    if plot.y.ticks:
        axes.set_yticks(*zip(*plot.y.ticks, strict=True))
    if plot.y.downwards:
        axes.invert_yaxis()
    if plot.marks:
        axes.legend()


def _draw_line(axes: Any, line: Line) -> None:
    style = {"color": line.colour, "linestyle": PAPER_DASHES[line.dash]}
    if line.markers:
        error = None if line.band is None else np.stack((line.y - line.band[0], line.band[1] - line.y))
        points = {"marker": "o", "markersize": 3, "capsize": 2}
        axes.errorbar(line.x, line.y, yerr=error, label=line.name, **points, **style)
        return
    for place, y in enumerate(np.atleast_2d(line.y)):
        axes.plot(line.x, y, label=line.name if place == 0 else None, **style)
    if line.band is not None:
        axes.fill_between(line.x, *line.band, color=line.colour, alpha=0.2, linewidth=0)
