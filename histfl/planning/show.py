"""A plan as tables and as a picture; many cells are shown in groups of equal numbers, by speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.table import Table

from histfl.arrays import Floats, Ints
from histfl.planning.network import ARMS, CellSizes, NetworkPlan
from histfl.planning.request import Planning, Variation
from histfl.reports.html import write_plots
from histfl.reports.plots import Axis, Bars, Line, Mark, Plot, Rule
from histfl.reports.style import COLOURS
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
    """The cells, the seconds a round, and those along the varied setting."""
    plan = planning.plan
    tables = [_cells_table(plan)] if plan.cells else []
    tables.append(_rounds_table(plan))
    return [*tables, _variation_table(planning.variation)] if planning.variation else tables


def about_sentence(plan: NetworkPlan) -> str:
    """What is planned."""
    layers = plan.cut.layers
    cut = ", ".join(
        f"{name} ({units} units of {weight})"
        for name, units, weight in zip(layers.names, layers.units, layers.parameters_per_unit, strict=True)
    )
    if layers.num_layers > NAMED_LAYERS:
        cut = f"{layers.num_layers} layers ({layers.units.sum()} units)"
    return (
        f"{plan.num_cells} cells, {plan.clients_per_cell.sum()} clients; {plan.cut.name}: "
        f"{plan.cut.parameters} parameters, cut: {cut}; cap {plan.cap:g}; mean of {plan.draws} draws"
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
    table = Table(box=None, title=f"seconds a round by cell, {plan.uplink}", collapse_padding=True)
    table.add_column("cell" if alone else "cells by speed\n(means)", no_wrap=True)
    for name in plan.cells:
        for column in columns:  # short names, so that all fit into 80 columns
            table.add_column(f"{SHORT[name]}\n{column}", justify="right", no_wrap=True)
    done = 0
    for group in groups:
        label = str(group[0]) if alone else f"{done + 1}-{done + len(group)}"
        table.add_row(
            label,
            *(_cell_texts(chosen, group)[column] for chosen in plan.cells.values() for column in columns),
        )
        done += len(group)
    return table


def _cell_texts(chosen: CellSizes, group: Ints) -> dict[str, str]:
    sizes = chosen.sizes
    seconds = {"compute": chosen.compute, "uplink": chosen.uplink, "total": sizes.seconds}
    return {
        "units": f"{chosen.units.sum(axis=1)[group].mean():.4g}",
        "params": f"{sizes.parameters[group].mean():.0f}",
        **{name: f"{values[group].mean():.3g}" for name, values in seconds.items()},
    }


def _rounds_table(plan: NetworkPlan) -> Table:
    table = Table(box=None, title="seconds a round")
    table.add_column("uplink")
    for heading in (*NAMES.values(), "saved over uniform", f"times faster than {NAMES[BASELINE]}"):
        table.add_column(heading, justify="right")
    for uplink, name in plan.links.items():
        full, equal, best = (plan.seconds_per_round[f"{uplink}.{arm}"] for arm in ARMS)
        saved = "-" if best is None or equal is None else f"{1 - best / equal:.1%}"
        faster = "-" if best is None or full is None else f"{full / best:.2f}"
        table.add_row(name, *map(_seconds, (full, equal, best)), saved, faster)
    return table


def _variation_table(variation: Variation) -> Table:
    table = Table(box=None, title=f"seconds a round by {variation.setting}")
    table.add_column(variation.setting)
    for uplink in variation.plans[0].links:
        for arm in ARMS:
            table.add_column(f"{uplink}\n{arm}", justify="right")
    for value, plan in zip(variation.values, variation.plans, strict=True):
        table.add_row(value, *map(_seconds, plan.seconds_per_round.values()))
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def draw_plan(planning: Planning, path: Path) -> None:
    """Bars by cell and, where a setting is varied, curves below, as one self-contained page."""
    plan, variation = planning.plan, planning.variation
    plots = [_bars(plan)] + ([_curves(variation)] if variation is not None else [])
    title = f"{plan.cut.name} on {plan.num_cells} cells, {plan.clients_per_cell.sum()} clients"
    write_plots(path, title, plots, 520 * len(plots))


def _bars(plan: NetworkPlan) -> Plot:
    """Two bars a cell side by side, computing below and the uplink on top; a line at the slowest cell."""
    title, marks = f"seconds a round by cell, {plan.uplink}", list[Mark]()
    if not plan.cells:
        return Plot(title, "", Axis(), Axis(), ())
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
    label = "cell" if alone else f"{plan.num_cells} cells in {len(groups)} groups, the fastest first (means)"
    return Plot(title, "", Axis(label), Axis("seconds a round", from_zero=True), tuple(marks), bars="overlay")


def _curves(variation: Variation) -> Plot:
    lines = [
        Line(
            f"{uplink}, {NAMES[arm]}",
            np.array([float(value) for value in variation.values]),
            # None, where no sizes are feasible, is a gap
            np.array([plan.seconds_per_round[f"{uplink}.{arm}"] for plan in variation.plans], dtype=float),
            LINE_COLOURS[arm],
            dash,
            width=2,
            markers=True,
        )
        for uplink, dash in zip(variation.plans[0].links, DASHES, strict=False)
        for arm in ARMS
    ]
    title = f"seconds a round by {variation.setting}"
    return Plot(title, "", Axis(variation.setting), Axis("seconds a round", scale="log"), tuple(lines))


def _means(values: Floats, groups: list[Ints]) -> Floats:
    return np.array([values[group].mean() for group in groups])
