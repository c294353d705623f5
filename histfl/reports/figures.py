"""The plots of a comparison: a line or a bar a group, seeds as bands; on the screen, and as files for papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from histfl.arrays import Floats, Ints
from histfl.errors import capitalised
from histfl.files import storage_errors, write_whole
from histfl.reports.answer import answer_table, runs_table
from histfl.reports.factors import FEW_LINES, Looks, looks_of
from histfl.reports.gather import Gathered, Group, groups_of, objective_of
from histfl.reports.paper import on_paper
from histfl.reports.plots import Axis, Bars, Line, Mark, Plot
from histfl.reports.style import GREY, PART_COLOURS
from histfl.reports.tables import as_csv, as_latex
from histfl.runs.records import Record, significant

AXES = {
    "megabytes_per_client": "megabytes sent by a client",
    "simulated_seconds": "simulated seconds",
    "round": "global rounds",
}
SIZE_POINTS = 60
SIZE_CELLS = 16  # more lines than this a run are drawn as a band
NAMED_CELLS = 20
FAR_APART = 20.0  # times the least cost: from there on the axis is logarithmic


def write_figures(folder: Path, gathered: Gathered) -> list[Path]:
    """The standard plots and tables of the runs into `folder`; returns what was written."""
    groups = groups_of(gathered.runs)
    plots = {
        f"{objective_of(groups).goal}-{key.replace('_', '-')}": accuracy_plot(groups, key) for key in AXES
    }
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
    few = " where six are shown at most" if len(groups) > FEW_LINES else ""
    band = (
        f" Lines are means over the seeds, bands reach from the lowest to the highest{few}." if seeds else ""
    )
    about = f"{'Higher' if aim.higher_is_better else 'Lower'} and further left is better.{band}"
    title = f"Test {aim.title} against {AXES[key]}"
    return _over(
        groups, key, objective.goal, Axis(f"test {aim.title}", share=aim.is_share), title=title, about=about
    )


def own_data_plot(groups: Sequence[Group]) -> Plot:
    """The goal on the data of the worst tenth of the clients or cells, over the rounds, of the groups that were
    evaluated there."""
    objective, told = objective_of(groups), told_own_data(groups)
    per = " or ".join(sorted({group.runs[0].records[-1]["own_data"]["per"] + "s" for group in told}))
    about = f"The mean over the worst tenth of the {per}, each on the data that it trains on."
    y = Axis(f"{objective.aim.title}, worst tenth", share=objective.aim.is_share)
    title = f"{capitalised(objective.aim.title)} of the worst tenth of the {per}"

    def worst(record: Record) -> float:
        return float(record["own_data"]["values"][objective.goal]["worst_decile"])

    return _over(groups, "round", worst, y, title=title, about=about, among=told)


def told_own_data(groups: Sequence[Group]) -> list[Group]:
    """Those that were evaluated on their clients' or cells' own data."""
    return [group for group in groups if all("own_data" in run.records[-1] for run in group.runs)]


def error_plot(groups: Sequence[Group]) -> Plot:
    """The mean squared error that the air adds to an entry of an edge's update, over the rounds, of the groups to
    which it adds any."""
    about = "Mean squared error of an entry of an edge's update, the mean over cells and edge rounds."
    y, told = Axis("mean squared error an entry", scale="powers"), told_error(groups)
    return _over(groups, "round", "edge_error", y, title="What the air adds", about=about, among=told)


def told_error(groups: Sequence[Group]) -> list[Group]:
    """Those to whose updates the air added an error."""
    return [group for group in groups if (group.column("edge_error") > 0).any()]


def _over(
    groups: Sequence[Group],
    key: str,
    quantity: str | Callable[[Record], float],
    y: Axis,
    *,
    title: str,
    about: str,
    among: Sequence[Group] | None = None,
) -> Plot:
    """A quantity of the records, the mean over the seeds, against `key` of AXES; `among` some of the groups alone."""
    lines, looks = [], looks_of(groups)
    for index, group in enumerate(groups):
        if among is not None and group not in among:
            continue
        across = group.column(key).mean(axis=0)
        values = group.column(quantity) if isinstance(quantity, str) else group.values(quantity)
        band = (values.min(axis=0), values.max(axis=0)) if len(group.runs) > 1 else None
        lines.append(
            Line(group.label, across, values.mean(axis=0), band=band, group=index, **looks.style(index))
        )
    return Plot(title, about, cost_axis(AXES[key], lines), y, tuple(lines), key=key_of(looks))


def cost_axis(label: str, lines: Sequence[Line]) -> Axis:
    """From zero, or logarithmic where the lines' last costs are far apart."""
    ends = np.array([line.x[-1] for line in lines])
    starts = np.array([line.x[0] for line in lines])
    far = bool((starts > 0).all() and ends.max(initial=0) > FAR_APART * ends.min(initial=np.inf))
    return Axis(label, scale="log") if far else Axis(label, from_zero=True)


def key_of(looks: Looks) -> tuple[Line, ...]:
    """A legend of factors: a line a value, in its colour or dash."""
    if not looks.factors:
        return ()
    nothing, by = np.zeros(0), looks.factors[looks.colour]
    dashed = None if looks.dash is None else looks.factors[looks.dash]
    colours = [
        Line(f"{by.title} {value}", nothing, nothing, colour)
        for value, colour in zip(by.values, by.colours, strict=True)
    ]
    if dashed is None:
        return tuple(colours)
    dashes = [
        Line(f"{dashed.title} {value}", nothing, nothing, GREY, dash)
        for value, dash in zip(dashed.values, dashed.dashes, strict=True)
    ]
    return (*colours, *dashes)


def part_plot(groups: Sequence[Group]) -> Plot:
    """Where a round's time goes: computing and uplink of the slowest cell, the mean over the rounds."""
    places, everyone = np.arange(len(groups)), tuple(range(len(groups)))
    seconds = {part: np.array([part_seconds(group, part) for group in groups]) for part in PART_COLOURS}
    totals = sum(seconds.values(), np.zeros(len(groups)))
    longest = float(totals.max(initial=0.0))
    bars = [
        Bars(
            part,
            places,
            seconds[part],
            colour,
            sideways=True,
            hatched=part == "uplink",
            groups=everyone,
            texts=tuple(significant(total) for total in totals) if part == "uplink" else (),
        )
        for part, colour in PART_COLOURS.items()
    ]
    ticks = tuple((index, group.label) for index, group in enumerate(groups))
    return Plot(
        "Seconds a round, by part",
        "Of the slowest cell; the mean over the rounds, with its sum at the end of the bar.",
        Axis("simulated seconds a round", limits=(0.0, 1.2 * max(longest, 1e-12))),
        Axis(ticks=ticks, downwards=True),
        tuple(bars),
        height=_bars_height(groups),
        bars="stack",
    )


def _bars_height(groups: Sequence[Group]) -> int:
    return 170 + 26 * len(groups)


def cell_plot(groups: Sequence[Group]) -> Plot:
    """Which cells a round waits for: seconds of every cell, the mean over the rounds that it took part in."""
    marks: list[Mark] = []
    means, looks = [cell_means(group) for group in groups], looks_of(groups)
    as_bars = not looks.factors and sum(len(seconds) for _, seconds in means) <= 120
    for index, (group, (cells, seconds)) in enumerate(zip(groups, means, strict=True)):
        style = looks.style(index)
        if as_bars:
            marks.append(Bars(group.label, cells, seconds, style["colour"]))
        else:
            across = cells.astype(np.float64)
            marks.append(Line(group.label, across, seconds, markers=True, group=index, **style))
    longest, numbers = (
        np.array([seconds.max() for _, seconds in means]),
        np.unique(np.concatenate([c for c, _ in means])),
    )
    ticks = tuple((float(cell), str(cell)) for cell in numbers) if len(numbers) <= NAMED_CELLS else ()
    far = not as_bars and longest.min() > 0 and longest.max() > FAR_APART * longest.min()
    return Plot(
        "Seconds a round, by cell",
        "The round waits for the slowest cell; the mean over the rounds that a cell took part in.",
        Axis("cell", whole=True, ticks=ticks),
        Axis("simulated seconds a round", scale="log" if far else "linear", from_zero=not far),
        tuple(marks),
        height=max(360, _bars_height(groups)),
        key=key_of(looks),
    )


def size_plot(groups: Sequence[Group]) -> Plot:
    """Parameters of every cell's submodel over the rounds; a band where cells are many."""
    looks = looks_of(groups)
    return Plot(
        "Parameters of the cells' submodels over the rounds",
        "A line a cell; equal cells lie on one another. A band where cells are many or change by the round.",
        Axis(AXES["round"], from_zero=True),
        Axis("parameters of a cell", from_zero=True),
        tuple(size_line(group, index, looks) for index, group in enumerate(groups)),
        height=360,
        key=key_of(looks),
    )


def size_line(group: Group, index: int, looks: Looks) -> Line:
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
    style = looks.style(index)
    return Line(group.label, rounds, y, width=1.5, band=band, texts=texts, group=index, **style)


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
