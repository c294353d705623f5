"""The plots of a comparison: a line or a bar a group, seeds as bands; on the screen, and as files for papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from histfl.arrays import Floats, Ints
from histfl.files import storage_errors, write_whole
from histfl.reports.answer import answer_table, runs_table
from histfl.reports.gather import Gathered, Group, groups_of, objective_of
from histfl.reports.plots import Axis, Bars, Line, Mark, Plot, on_paper
from histfl.reports.style import COLOURS, line_style
from histfl.reports.tables import as_csv, as_latex
from histfl.runs.records import Record

AXES = {
    "megabytes_per_client": "megabytes sent by a client",
    "simulated_seconds": "simulated seconds",
    "round": "global rounds",
}
SIZE_POINTS = 60
SIZE_CELLS = 16  # more lines than this a run are drawn as a band


def write_figures(folder: Path, gathered: Gathered) -> list[Path]:
    """The standard plots and tables of the runs into `folder`; returns what was written."""
    groups = groups_of(gathered.runs)
    plots = {f"accuracy-{key.replace('_', '-')}": accuracy_plot(groups, key) for key in AXES}
    plots |= {"latency-by-part": part_plot(groups), "sizes": size_plot(groups)}
    files = {
        f"{name}.{kind}": drawn
        for name, plot in plots.items()
        for kind, drawn in on_paper(plot, "--figures").items()
    }
    answer, runs = answer_table(groups), runs_table(gathered.runs)
    tables = {"answer.csv": as_csv(answer), "runs.csv": as_csv(runs), "answer.tex": as_latex(answer)}
    files |= {name: text.encode() for name, text in tables.items()}
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]


def accuracy_plot(groups: Sequence[Group], key: str) -> Plot:
    """The goal, as the test accuracy, against what it cost: `key` of AXES."""
    objective = objective_of(groups)
    aim = objective.aim
    seeds = any(len(group.runs) > 1 for group in groups)
    band = " Bands reach from the lowest to the highest seed." if seeds else ""
    about = f"{'Higher' if aim.higher_is_better else 'Lower'} and further left is better.{band}"
    title = f"Test {aim.title} against {AXES[key]}"
    return _over(groups, key, objective.goal, Axis(f"test {aim.title}"), title=title, about=about)


def error_plot(groups: Sequence[Group]) -> Plot:
    """The mean squared error that the air adds to an entry of an edge's update, over the rounds."""
    about = "Mean squared error of an entry of an edge's update, the mean over cells and edge rounds."
    y = Axis("mean squared error an entry", scale="powers")
    return _over(groups, "round", "edge_error", y, title="What the air adds", about=about)


def _over(groups: Sequence[Group], key: str, quantity: str, y: Axis, *, title: str, about: str) -> Plot:
    """A quantity of the records, the mean over the seeds, against `key` of AXES."""
    lines = []
    for index, group in enumerate(groups):
        across, values = group.column(key).mean(axis=0), group.column(quantity)
        band = (values.min(axis=0), values.max(axis=0)) if len(group.runs) > 1 else None
        lines.append(Line(group.label, across, values.mean(axis=0), band=band, **line_style(index)))
    return Plot(title, about, Axis(AXES[key], from_zero=True), y, tuple(lines))


def part_plot(groups: Sequence[Group]) -> Plot:
    """Where a round's time goes: computing and uplink of the slowest cell, the mean over the rounds."""
    places = np.arange(len(groups))
    bars = [
        Bars(
            part,
            places,
            np.array([part_seconds(group, part) for group in groups]),
            COLOURS[index],
            sideways=True,
            hatched=part == "uplink",
        )
        for index, part in enumerate(("compute", "uplink"))
    ]
    ticks = tuple((index, group.label) for index, group in enumerate(groups))
    return Plot(
        "Seconds a round, by part",
        "Of the slowest cell; the mean over the rounds.",
        Axis("simulated seconds a round"),
        Axis(ticks=ticks, downwards=True),
        tuple(bars),
        height=170 + 26 * len(groups),
        bars="stack",
    )


def cell_plot(groups: Sequence[Group]) -> Plot:
    """Which cells a round waits for: seconds of every cell, the mean over the rounds that it took part in."""
    marks: list[Mark] = []
    for index, group in enumerate(groups):
        cells, means = cell_means(group)
        style = line_style(index)
        if len(means) * len(groups) <= 120:
            marks.append(Bars(group.label, cells, means, style["colour"]))
        else:
            marks.append(Line(group.label, cells.astype(np.float64), means, markers=True, **style))
    return Plot(
        "Seconds a round, by cell",
        "The round waits for the slowest cell; the mean over the rounds that a cell took part in.",
        Axis("cell", whole=True),
        Axis("simulated seconds a round", from_zero=True),
        tuple(marks),
        height=360,
    )


def size_plot(groups: Sequence[Group]) -> Plot:
    """Parameters of every cell's submodel over the rounds; a band where cells are many."""
    return Plot(
        "Parameters of the cells' submodels over the rounds",
        "A line a cell; equal cells lie on one another. A band where cells are many or change by the round.",
        Axis(AXES["round"], from_zero=True),
        Axis("parameters of a cell's submodel", from_zero=True),
        tuple(size_line(group, index) for index, group in enumerate(groups)),
        height=360,
    )


def size_line(group: Group, index: int) -> Line:
    """The sizes of the group's first seed, a line a cell. Cells that are many, or sampled and so not the same in
    every round, are their mean and a band from the smallest to the largest."""
    sizes = by_cell(group, lambda record: record["submodel_parameters"]).T
    rounds = np.array([group.runs[0].records[i]["round"] for i in group.shown], dtype=float)
    keep = np.unique(np.linspace(0, len(rounds) - 1, min(SIZE_POINTS, len(rounds))).astype(int))
    if (sizes == sizes[:, :1]).all():
        keep = np.unique([0, len(rounds) - 1])
    rounds, sizes = rounds[keep], sizes[:, keep]
    y, band, texts = sizes, None, tuple(f"cell {cell}" for cell in range(len(sizes)))
    if len(sizes) > SIZE_CELLS or group.runs[0].records[0].get("active_cells") is not None:
        y, band, texts = sizes.mean(axis=0), (sizes.min(axis=0), sizes.max(axis=0)), ("mean of the cells",)
    return Line(group.label, rounds, y, width=1.5, band=band, texts=texts, **line_style(index))


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


def by_cell(group: Group, read: Callable[[Record], Sequence[float]]) -> Floats:
    """[shown round, cell] of the group's first seed."""
    return np.array([read(group.runs[0].records[index]) for index in group.shown], dtype=np.float64)
