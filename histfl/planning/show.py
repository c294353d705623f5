"""A plan as tables and as a picture; many cells are shown in groups of equal numbers, by speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.table import Table

from histfl.arrays import Floats, Ints
from histfl.errors import capitalised
from histfl.planning.network import ARMS, CellSizes, NetworkPlan
from histfl.planning.request import Planning, Variation
from histfl.reports.html import escape, plots_html, sentences_html, table_html, write_page
from histfl.reports.plots import Axis, Bars, Line, Mark, Plot, Rule
from histfl.reports.style import COLOURS
from histfl.reports.tables import Cell, Column
from histfl.reports.tables import Table as ShownTable
from histfl.runs.records import significant
from histfl.runs.sizes import share_sentence
from histfl.training.methods import BASELINE, METHODS

TABLE_ROWS = 20
BARS = 60
NAMED_LAYERS = 3
BLUE, VERMILION, GREEN, ORANGE, SKY = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[4], COLOURS[5]
BAR_COLOURS = {"uniform": (SKY, BLUE), "optimised": (ORANGE, VERMILION)}  # compute, uplink
LINE_COLOURS = {BASELINE: GREEN, "uniform": BLUE, "optimised": VERMILION}
DASHES = ("solid", "dash", "dot")
SHORT = {"uniform": "unif.", "optimised": "opt."}
NAMES = {BASELINE: METHODS[BASELINE].title, "uniform": "uniform", "optimised": "optimised"}


def plan_tables(planning: Planning) -> list[Table]:
    """The cells, what a round takes, and its seconds along the varied setting."""
    plan = planning.plan
    tables = [_cells_table(plan)] if plan.cells else []
    tables.append(_shown(rounds_table(plan), "seconds a round", words=1))
    tables.append(_shown(costs_table(plan), "megabytes and joules a round", words=2))
    return [*tables, _variation_table(planning.variation)] if planning.variation else tables


def about_sentence(plan: NetworkPlan) -> str:
    """What is planned."""
    layers = plan.cut.layers
    cut = ", ".join(
        f"{name} ({units} units of {weight} parameters)"
        for name, units, weight in zip(layers.names, layers.units, layers.parameters_per_unit, strict=True)
    )
    if layers.num_layers > NAMED_LAYERS:
        cut = f"{layers.num_layers} layers ({layers.units.sum()} units)"
    return (
        f"{plan.num_cells} cells, {plan.clients_per_cell.sum()} clients; {plan.cut.name}: "
        f"{plan.cut.parameters:,} parameters, cut: {cut}; cap {plan.cap:g}; mean of {plan.draws} draws"
    )


def worth_sentences(planning: Planning) -> list[str]:
    """How good the sizes are, and why there are none where there are none."""
    plan, variation = planning.plan, planning.variation
    best = plan.cells.get("optimised")
    if best is None:
        sentences = [f"not feasible: {plan.obstacle}"]
    else:
        sentences = [
            f"certificate ({plan.uplink}): with these optimised sizes the slowest cell takes "
            f"{best.sizes.seconds.max():.5g} s on average; no sizes within the cap take less than "
            f"{best.sizes.bound:.5g} s (gap {best.sizes.gap:.2%})"
        ]
    if "uniform" in plan.cells:
        share = share_sentence(plan.cells["uniform"].sizes.parameters, plan.cut.parameters)
        sentences.append(f"with uniform sizes {share}")
    sentences += plan.misgivings
    if variation is not None:
        points = list(zip(variation.values, variation.plans, strict=True))
        sentences += [
            f"{variation.setting} = {value}: {doubt}"
            for value, point in points
            for doubt in point.misgivings
            if doubt not in plan.misgivings
        ]
        sentences += [
            f"{variation.setting} = {value} is not feasible: {point.obstacle}"
            for value, point in points
            if point.obstacle is not None
        ]
    return sentences


def groups_by_speed(plan: NetworkPlan, most: int) -> list[Ints]:
    """Cells, each for itself, or in `most` groups from the fastest to the slowest with uniform sizes."""
    cells = np.arange(plan.num_cells)
    if plan.num_cells <= most:
        return list(cells[:, None])
    return np.array_split(np.argsort(plan.cells["uniform"].sizes.seconds, kind="stable"), most)


def _cells_table(plan: NetworkPlan) -> Table:
    groups = groups_by_speed(plan, TABLE_ROWS)
    alone = len(groups) == plan.num_cells
    columns = ("units", "params", "compute", "uplink", "total") if alone else ("units", "params", "total")
    table = Table(box=None, title=_cells_title(plan, alone), collapse_padding=True)
    table.add_column("cell" if alone else "by speed, the\nfastest first", no_wrap=True)
    for name in plan.cells:
        for column in columns:  # short names, so that all fit into 80 columns
            table.add_column(f"{SHORT[name]}\n{column}", justify="right", no_wrap=True)
    labels = [str(group[0]) for group in groups] if alone else _ranks(groups)
    for label, group in zip(labels, groups, strict=True):
        table.add_row(
            label,
            *(_cell_texts(chosen, group)[column] for chosen in plan.cells.values() for column in columns),
        )
    return table


def _cells_title(plan: NetworkPlan, alone: bool) -> str:
    means = "" if alone else ", means of cells of like speed"
    return f"seconds a round by cell, {plan.uplink}{means}"


def _cell_texts(chosen: CellSizes, group: Ints) -> dict[str, str]:
    sizes = chosen.sizes
    seconds = {"compute": chosen.compute, "uplink": chosen.uplink, "total": sizes.seconds}
    return {
        "units": f"{chosen.units.sum(axis=1)[group].mean():.4g}",
        "params": f"{sizes.parameters[group].mean():.0f}",
        **{name: significant(values[group].mean()) for name, values in seconds.items()},
    }


def rounds_table(plan: NetworkPlan) -> ShownTable:
    """Seconds a round by uplink and choice of sizes."""
    headings = ("uplink", *NAMES.values(), "saved over uniform", f"times faster than {NAMES[BASELINE]}")
    rows = []
    for uplink, name in plan.links.items():
        full, equal, best = seconds = [plan.seconds_per_round[f"{uplink}.{arm}"] for arm in ARMS]
        saved = None if best is None or equal is None else 1 - best / equal
        faster = None if best is None or full is None else full / best
        cells = [Cell(name, name), *(Cell(_number(value), value) for value in seconds)]
        cells.append(Cell("-" if saved is None else f"{saved:.1%}", saved))
        cells.append(Cell("-" if faster is None else f"{faster:.2f}", faster))
        rows.append(tuple(cells))
    return ShownTable(tuple(Column(heading, heading) for heading in headings), tuple(rows))


def costs_table(plan: NetworkPlan) -> ShownTable:
    """Megabytes and joules a round by uplink and choice of sizes."""
    kinds = {
        "MB a client": plan.megabytes_per_client,
        "MB edges to cloud": plan.edge_cloud_megabytes,
        "joules": plan.energy_joules,
    }
    rows = []
    for uplink, name in plan.links.items():
        for arm in ARMS:
            numbers = [each[f"{uplink}.{arm}"] for each in kinds.values()]
            cells = [Cell(_number(value), value) for value in numbers]
            rows.append((Cell(name, name), Cell(NAMES[arm], NAMES[arm]), *cells))
    headings = ("uplink", "sizes", *kinds)
    return ShownTable(tuple(Column(heading, heading) for heading in headings), tuple(rows))


def _shown(shown: ShownTable, title: str, *, words: int) -> Table:
    """On a terminal, its first columns being `words`."""
    table = Table(box=None, title=title)
    for place, column in enumerate(shown.columns):
        table.add_column(column.title, justify="left" if place < words else "right")
    for row in shown.rows:
        table.add_row(*(cell.text for cell in row))
    return table


def _variation_table(variation: Variation) -> Table:
    table = Table(box=None, title=f"seconds a round by {variation.setting}")
    table.add_column(variation.setting)
    for uplink in variation.plans[0].links.values():
        for arm in ARMS:
            table.add_column(f"{uplink}\n{NAMES[arm]}", justify="right")
    for value, plan in zip(variation.values, variation.plans, strict=True):
        table.add_row(value, *map(_number, plan.seconds_per_round.values()))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else significant(value, 4)


def answer_sentence(plan: NetworkPlan) -> str:
    """What the optimised sizes are worth on the plan's own uplink."""
    if plan.obstacle is not None:
        return f"Not feasible: {plan.obstacle}"
    uplink, name = next((key, name) for key, name in plan.links.items() if name == plan.uplink)
    full, equal, best = (plan.seconds_per_round[f"{uplink}.{arm}"] for arm in ARMS)
    words = [f"With optimised sizes a round takes {_number(best)} s over {name}"]
    if best is not None and equal is not None:
        words.append(f"{1 - best / equal:.1%} less than with uniform sizes")
    if best is not None and full is not None:
        words.append(f"{full / best:.1f} times faster than {NAMES[BASELINE]}")
    return f"{', '.join(words)}."


def draw_plan(planning: Planning, path: Path) -> None:
    """The answer, bars by cell and, where a setting is varied, curves beside, as one self-contained page."""
    plan, variation = planning.plan, planning.variation
    plots = ([_bars(plan)] if plan.cells else []) + ([_curves(variation)] if variation is not None else [])
    body = (
        f"<p>{escape(about_sentence(plan))}</p><p>{escape(capitalised(plan.computing['computing']))}.</p>"
        + (plots_html(plots, "plan") if plots else "")
        + table_html(rounds_table(plan), "Seconds a round.", "rounds")
        + table_html(costs_table(plan), "Megabytes and joules a round.", "costs")
        + sentences_html(worth_sentences(planning))
    )
    title = f"{plan.cut.name} on {plan.num_cells} cells, {plan.clients_per_cell.sum()} clients"
    write_page(path, title, answer_sentence(plan), body)


def _bars(plan: NetworkPlan) -> Plot:
    """Two bars a cell side by side, computing below and the uplink on top; a line at the slowest cell."""
    title, marks = f"Seconds a round by cell, {plan.uplink}", list[Mark]()
    groups = groups_by_speed(plan, BARS)
    alone = len(groups) == plan.num_cells
    place = np.arange(len(groups), dtype=float)
    for shift, (name, chosen) in zip((-0.4, 0.0), plan.cells.items(), strict=False):
        compute, uplink = (_means(part, groups) for part in (chosen.compute, chosen.uplink))
        parameters = _means(chosen.sizes.parameters.astype(np.float64), groups)
        parts = (("compute", compute, np.zeros(len(groups))), ("uplink", uplink, compute))
        for (part, height, base), colour in zip(parts, BAR_COLOURS[name], strict=True):
            bars = Bars(
                f"{name}: {part}",
                place,
                height,
                colour,
                base=base,
                shift=shift,
                width=0.4,
                hover="%{customdata[0]:.4g} s, %{customdata[1]:.0f} parameters",
                further=np.stack([height, parameters], axis=1),  # y counts from the base
            )
            marks.append(bars)
        marks.append(Rule(float(chosen.sizes.seconds.max()), BAR_COLOURS[name][1], "dot"))
    about = "Computing below, the uplink on top; the dotted lines are the slowest cells'."
    label = "cell"
    ticks = tuple((float(cell), str(cell)) for cell in range(0, len(groups), max(1, len(groups) // 20)))
    if not alone:
        about += f" Means of {plan.num_cells} cells in {len(groups)} groups, by their rank in speed."
        label = "groups of cells, the fastest first"
        every = max(1, len(groups) // 6)
        ticks = tuple((place, ranks) for place, ranks in enumerate(_ranks(groups)) if place % every == 0)
    axes = Axis(label, ticks=ticks, whole=alone), Axis("seconds a round", from_zero=True)
    return Plot(title, about, *axes, tuple(marks), bars="overlay")


def _ranks(groups: list[Ints]) -> list[str]:
    """Of each group the places of its cells by speed, which are no cell numbers."""
    ends = np.cumsum([len(group) for group in groups])
    return [
        f"rank {end - len(group) + 1} to {end}" if len(group) > 1 else f"rank {end}"
        for group, end in zip(groups, ends, strict=True)
    ]


def _curves(variation: Variation) -> Plot:
    lines = [
        Line(
            f"{name}, {NAMES[arm]}",
            np.array([float(value) for value in variation.values]),
            # None, where no sizes are feasible, is a gap
            np.array([plan.seconds_per_round[f"{uplink}.{arm}"] for plan in variation.plans], dtype=float),
            LINE_COLOURS[arm],
            dash,
            width=2,
            markers=True,
        )
        for (uplink, name), dash in zip(variation.plans[0].links.items(), DASHES, strict=False)
        for arm in ARMS
    ]
    title, about = f"Seconds a round by {variation.setting}", "A dash an uplink, a colour a choice of sizes."
    return Plot(title, about, Axis(variation.setting), Axis("seconds a round", scale="log"), tuple(lines))


def _means(values: Floats, groups: list[Ints]) -> Floats:
    return np.array([values[group].mean() for group in groups])
