"""The plots of a comparison, as plotly figures: a line or a bar a group, seeds as bands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from histfl.network.network import Floats, Ints
from histfl.reports.groups import Group, objective_of
from histfl.reports.style import LINE_COLOURS, band_colour, line_style, shown_name
from histfl.runs.records import Record

AXES = {
    "megabytes_per_client": "megabytes sent by a client",
    "simulated_seconds": "simulated seconds",
    "round": "global rounds",
}
SIZE_POINTS = 60
SIZE_CELLS = 16  # more lines than this a run are drawn as a band


def accuracy_figure(groups: Sequence[Group], key: str) -> go.Figure:
    """The goal, as the test accuracy, against what it cost: `key` of AXES."""
    objective = objective_of(groups)
    return _lines(groups, key, objective.goal, f"test {objective.aim.title}")


def error_figure(groups: Sequence[Group]) -> go.Figure:
    """The mean squared error that the air adds to an entry of an edge's update, over the rounds."""
    figure = _lines(groups, "round", "edge_error", "mean squared error an entry")
    figure.update_yaxes(type="log", exponentformat="power")
    return figure


def _lines(groups: Sequence[Group], x: str, y: str, title: str) -> go.Figure:
    figure = go.Figure()
    for index, group in enumerate(groups):
        name, across, values = shown_name(group.label), group.column(x).mean(axis=0), group.column(y)
        if len(group.runs) > 1:
            figure.add_trace(_band(across, values, index, name))
        figure.add_scatter(
            x=across,
            y=values.mean(axis=0),
            name=name,
            legendgroup=str(index),
            mode="lines",
            line=line_style(index),
        )
    figure.update_xaxes(title_text=AXES[x], rangemode="tozero")
    figure.update_yaxes(title_text=title)
    return laid_out(figure, 400, len(groups))


def _band(across: Floats, values: Floats, index: int, name: str) -> go.Scatter:
    """From the lowest to the highest of `values` [one, point]."""
    return go.Scatter(
        x=np.concatenate((across, across[::-1])),
        y=np.concatenate((values.max(axis=0), values.min(axis=0)[::-1])),
        mode="lines",
        fill="toself",
        fillcolor=band_colour(index),
        line={"width": 0},
        name=name,
        legendgroup=str(index),
        showlegend=False,
        hoverinfo="skip",
    )


def part_figure(groups: Sequence[Group]) -> go.Figure:
    """Where a round's time goes: computing and uplink of the slowest cell, the mean over the rounds."""
    figure = go.Figure()
    places = list(range(len(groups)))
    for colour, pattern, part in ((0, "", "compute"), (1, "/", "uplink")):
        means = [part_seconds(group, part) for group in groups]
        bar = go.Bar(
            y=places,
            x=means,
            name=part,
            orientation="h",
            marker={"color": LINE_COLOURS[colour], "pattern": {"shape": pattern, "fillmode": "overlay"}},
        )
        figure.add_trace(bar)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text="simulated seconds a round")
    names = [shown_name(group.label) for group in groups]
    figure.update_yaxes(tickvals=places, ticktext=names, autorange="reversed", automargin=True)
    return laid_out(figure, 170 + 26 * len(groups), 2)


def cell_figure(groups: Sequence[Group]) -> go.Figure:
    """Which cells a round waits for: seconds of every cell, the mean over the rounds that it took part in."""
    figure = go.Figure()
    for index, group in enumerate(groups):
        cells, means = cell_means(group)
        colour = {"color": line_style(index)["color"]}
        if len(means) * len(groups) <= 120:
            figure.add_bar(x=cells, y=means, name=shown_name(group.label), marker=colour)
        else:
            line = line_style(index)
            figure.add_scatter(
                x=cells, y=means, name=shown_name(group.label), mode="lines+markers", line=line
            )
    figure.update_xaxes(title_text="cell", tickformat="d")
    figure.update_yaxes(title_text="simulated seconds a round", rangemode="tozero")
    return laid_out(figure, 360, len(groups))


def size_figure(groups: Sequence[Group]) -> go.Figure:
    """Parameters of every cell's submodel over the rounds; a band where cells are many."""
    figure = go.Figure()
    for index, group in enumerate(groups):
        shown = size_lines(group)
        rounds, lines = shown.rounds, shown.lines
        name = shown_name(group.label)
        if shown.band is not None:
            figure.add_trace(_band(rounds, shown.band, index, name))
        gap = np.full((len(lines), 1), np.nan)  # ends a cell's line, so that one trace holds all cells
        figure.add_scatter(
            x=np.hstack((np.tile(rounds, (len(lines), 1)), gap)).ravel(),
            y=np.hstack((lines, gap)).ravel(),
            text=np.repeat(shown.names, len(rounds) + 1),
            name=name,
            legendgroup=str(index),
            mode="lines" if len(rounds) > 1 else "markers",
            line=line_style(index) | {"width": 1.5},
        )
    figure.update_xaxes(title_text=AXES["round"], rangemode="tozero")
    figure.update_yaxes(title_text="parameters of a cell's submodel", rangemode="tozero")
    return laid_out(figure, 360, len(groups))


def part_seconds(group: Group, part: str) -> float:
    """The mean seconds a round of `compute` or `uplink`."""
    return float(group.values(lambda record: float(record["latency"][f"{part}_seconds"])).mean())


def cell_means(group: Group) -> tuple[Ints, Floats]:
    """The cells that took part in a shown round, and the mean seconds of each; of the group's first seed."""
    seconds = by_cell(group, lambda record: record["latency"]["cell_seconds"])
    everyone = range(seconds.shape[1])
    active = [group.runs[0].records[index].get("active_cells") or everyone for index in group.shown]
    cells, places = np.unique(np.array(active), return_inverse=True)
    times = np.bincount(places.ravel())
    return cells, np.bincount(places.ravel(), seconds.ravel()) / times


@dataclass(frozen=True)
class SizeLines:
    """Sizes of submodels [line, round], a line a cell; or one line, the cells' mean, and as `band` [2, round]
    their smallest and largest."""

    rounds: Floats
    lines: Floats
    names: list[str]
    band: Floats | None = None


def size_lines(group: Group) -> SizeLines:
    """The sizes of the group's first seed. Cells that are many, or sampled and so not the same in every
    round, are drawn as a band."""
    sizes = by_cell(group, lambda record: record["submodel_parameters"]).T
    rounds = np.array([group.runs[0].records[i]["round"] for i in group.shown], dtype=float)
    keep = np.unique(np.linspace(0, len(rounds) - 1, min(SIZE_POINTS, len(rounds))).astype(int))
    if (sizes == sizes[:, :1]).all():
        keep = np.unique([0, len(rounds) - 1])
    rounds, sizes = rounds[keep], sizes[:, keep]
    if len(sizes) <= SIZE_CELLS and group.runs[0].records[0].get("active_cells") is None:
        return SizeLines(rounds, sizes, [f"cell {cell}" for cell in range(len(sizes))])
    band = np.stack((sizes.min(axis=0), sizes.max(axis=0)))
    return SizeLines(rounds, sizes.mean(axis=0, keepdims=True), ["mean of the cells"], band)


def by_cell(group: Group, read: Callable[[Record], Sequence[float]]) -> Floats:
    """[shown round, cell] of the group's first seed."""
    return np.array([read(group.runs[0].records[index]) for index in group.shown], dtype=np.float64)


def laid_out(figure: go.Figure, height: int, entries: int) -> go.Figure:
    """The common frame: a legend below the plot that grows with its entries, up to a point."""
    legend = min(22 * ((entries + 1) // 2), 260)
    figure.update_layout(
        template="plotly_white",
        height=height + legend,
        margin={"l": 60, "r": 15, "t": 15, "b": 55 + legend},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        hovermode="closest",
    )
    return figure
