"""Which cell holds which units, and who holds which labels: pictures and tables of a run, and of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import table as terminal

from histfl import data as datasets
from histfl.arrays import Floats, Ints
from histfl.errors import UsageError
from histfl.reports.html import plots_html, table_html, write_page
from histfl.reports.plots import Axis, Bars, HeatMap, Plot, Rule
from histfl.reports.style import GREY, cell_colours
from histfl.reports.tables import Cell, Column, Table
from histfl.runs.config import Config
from histfl.runs.named import build_network, build_split, load_data
from histfl.runs.pictures import NOBODY, SHARED
from histfl.runs.work import check_clients, described_cells

Picture = dict[str, Any]
NAMED_CELLS = 12
TABLE_CELLS, TABLE_CLASSES = 32, 20
SHOWN_CLIENTS = 40


def partition_plot(partition: Picture, title: str = "", about: str = "") -> Plot:
    """A row a cut layer, a stripe a unit, coloured by the cell that holds it; one that nobody holds is blank."""
    layers, cells, numbers = partition["layers"], partition["cells"], _cell_numbers(partition)
    width = max(len(layer["owner"]) for layer in layers)
    owners = np.full((len(layers), width), np.nan)
    for row, layer in enumerate(layers):
        owners[row, : len(layer["owner"])] = layer["owner"]
    owners[owners == NOBODY] = np.nan
    shared = bool((owners == SHARED).any())
    names = (["several cells"] if shared else []) + [f"cell {number}" for number in numbers]
    heat = HeatMap(
        owners,
        tuple(([GREY] if shared else []) + cell_colours(cells)),
        title="cell" if numbers == list(range(cells)) else "cell, in order",
        hover="unit %{x}: cell %{customdata}",
        further=_numbered(owners, numbers),
        names=tuple(names) if len(names) <= NAMED_CELLS else (),
        lowest=SHARED if shared else 0,
        gaps=(1 if width <= 150 else 0, 4),
    )
    ticks = tuple((row, layer["name"]) for row, layer in enumerate(layers))
    return Plot(
        title,
        about,
        Axis("unit", limits=(-0.5, width - 0.5)),
        Axis(ticks=ticks, downwards=True),
        (heat,),
        height=120 + 34 * len(layers),
    )


def partition_table(partition: Picture) -> Table:
    """How many of the drawn units each cell holds, layer by layer."""
    numbers = _cell_numbers(partition)[:TABLE_CELLS]
    columns = (Column("layer", "layer"), *(Column(f"cell_{cell}", f"cell {cell}") for cell in numbers))
    rows = []
    for layer in partition["layers"]:
        counts = (layer.get("held") or _held_by_all(layer["owner"], len(numbers)))[: len(numbers)]
        rows.append((Cell(layer["name"], layer["name"]), *(Cell(str(count), count) for count in counts)))
    return Table(columns, tuple(rows))


def _held_by_all(owners: Sequence[int], cells: int) -> list[int]:
    """The units that each cell holds, in pictures that do not say: a shared one was then every cell's."""
    owner = np.array(owners, dtype=int)
    shared = int((owner == SHARED).sum())
    return [int((owner == cell).sum()) + shared for cell in range(cells)]


def _cell_numbers(partition: Picture) -> list[int]:
    """Whose the places 0, 1, ... are: the active cells of the round, or all."""
    return partition.get("active_cells") or list(range(partition["cells"]))


def _numbered(owners: Floats, numbers: Sequence[int]) -> Floats:
    """The numbers in the network of cells given by their place; SHARED and nothing as they are."""
    places = np.nan_to_num(owners, nan=SHARED).astype(int)
    return np.where(places >= 0, np.array(numbers, dtype=float)[places], owners)


def label_plot(labels: Picture, title: str = "", about: str = "") -> Plot:
    """A column a client, a row a class; the brighter, the more samples. Lines part the cells."""
    counts = np.array(labels["client_counts"]).T
    clients, cells = labels["shown_clients"], labels["shown_cells"]
    heat = HeatMap(
        counts,
        "Cividis",
        title="samples",
        hover="client %{customdata[0]} of cell %{customdata[1]}: %{z} samples",
        further=np.tile(np.array([clients, cells]).T, (len(counts), 1, 1)),
    )
    borders = [index for index in range(1, len(cells)) if cells[index] != cells[index - 1]]
    rules = [Rule(border - 0.5, "#ffffff", upright=True) for border in borders if len(borders) <= 40]
    every = max(1, len(clients) // 20)
    return Plot(
        title,
        about,
        Axis("client", ticks=tuple((place, str(clients[place])) for place in range(0, len(clients), every))),
        Axis(ticks=tuple(enumerate(labels["class_names"])), downwards=True),
        (heat, *rules),
        height=110 + 22 * len(counts),
    )


def label_table(labels: Picture) -> Table:
    """Samples by cell and class."""
    names = labels["class_names"][:TABLE_CLASSES]
    columns = (Column("cell", "cell"), *(Column(name, name) for name in names), Column("samples", "samples"))
    rows = []
    for cell, counts in enumerate(labels["cell_counts"][:TABLE_CELLS]):
        shown = [*counts[:TABLE_CLASSES], sum(counts)]
        rows.append((Cell(str(cell), cell), *(Cell(str(count), count) for count in shown)))
    return Table(columns, tuple(rows))


@dataclass(frozen=True)
class LabelMix:
    """Samples by label: `clients` [client, class], and the cell of each client."""

    clients: Ints
    cell_of_client: Ints
    class_names: tuple[str, ...]

    @property
    def cells(self) -> Ints:
        """[cell, class]"""
        totals = np.zeros((self.cell_of_client[-1] + 1, self.clients.shape[1]), dtype=np.int64)
        np.add.at(totals, self.cell_of_client, self.clients)
        return totals

    def as_json(self) -> dict[str, Any]:
        return {
            "class_names": list(self.class_names),
            "cells": self.cells.tolist(),
            "clients": self.clients.tolist(),
            "cell_of_client": self.cell_of_client.tolist(),
        }

    def tables(self) -> list[terminal.Table]:
        """A table of the cells and one of the first clients."""
        cells = terminal.Table("cell", *self.class_names, "samples", box=None)
        for number, row in enumerate(self.cells):
            cells.add_row(str(number), *map(str, row), str(row.sum()))
        clients = terminal.Table("client", "cell", *self.class_names, "samples", box=None)
        for number, row in enumerate(self.clients[:SHOWN_CLIENTS]):
            counts = [str(count) if count else "" for count in row]
            clients.add_row(str(number), str(self.cell_of_client[number]), *counts, str(row.sum()))
        if (more := len(self.clients) - SHOWN_CLIENTS) > 0:
            clients.add_row(f"and {more} more")
        return [cells, clients]


def label_mix_of(config: Config, data_dir: Path | None) -> LabelMix:
    """The label mix that a run of `config` trains on."""
    check_clients(config, described_cells(config))
    train, _ = load_data(config, data_dir)
    if not train.class_names:
        raise UsageError(
            f"the targets of data {config.data.name!r} are {train.targets.dtype} of shape {tuple(train.targets.shape)} and "
            "no classes; there is no label mix to show"
        )
    network = build_network(config)
    split = build_split(config, train, network)
    mix = datasets.label_mix(split, train.targets.numpy(), train.num_classes)
    return LabelMix(mix, network.cell_of_client, train.class_names)


def draw_label_mix(mix: LabelMix, path: Path) -> None:
    """Two stacked bar charts, cells and clients, as one self-contained page."""
    plots = []
    for what, counts in (("cell", mix.cells), ("client", mix.clients)):
        places, names = np.arange(len(counts)), mix.class_names
        bars = [
            Bars(name, places, counts[:, label], _colour(label, len(names)))
            for label, name in enumerate(names)
        ]
        axes = Axis(what, whole=True), Axis("samples")
        plots.append(Plot(f"Samples by {what}", "A colour a label.", *axes, tuple(bars), bars="stack"))
    columns = (Column("cell", "cell"), *(Column(name, name) for name in (*mix.class_names, "samples")))
    rows = (
        tuple(Cell(str(number), int(number)) for number in (cell, *counts, counts.sum()))
        for cell, counts in enumerate(mix.cells)
    )
    table = table_html(Table(columns, tuple(rows)), "Samples by cell and label.", "cells")
    write_page(path, "Samples by label", mix_sentence(mix), plots_html(plots, "mix") + table)


def mix_sentence(mix: LabelMix) -> str:
    """How many of the labels clients and cells hold."""
    held = {"client": (mix.clients > 0).sum(axis=1), "cell": (mix.cells > 0).sum(axis=1)}
    spans = {
        who: str(low) if (low := counts.min()) == (high := counts.max()) else f"{low} to {high}"
        for who, counts in held.items()
    }
    return (
        f"Of {len(mix.class_names)} labels a client holds {spans['client']} and a cell {spans['cell']}: "
        f"{len(mix.clients)} clients in {len(mix.cells)} cells, {mix.clients.sum():,} samples."
    )


def _colour(index: int, of: int) -> str:
    return f"hsl({360 * index / of:.0f}, {65 if index % 2 else 45}%, {45 if index % 2 else 60}%)"
