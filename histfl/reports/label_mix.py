"""How a split spreads the labels over cells and clients, as tables and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from rich.table import Table

from histfl import data as datasets
from histfl.network.network import Ints
from histfl.reports.html import write_figure
from histfl.runs.build import build_network, build_split, load_data
from histfl.runs.config import Config
from histfl.runs.work import check_clients, described_cells

SHOWN_CLIENTS = 40


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

    def tables(self) -> list[Table]:
        """A table of the cells and one of the first clients."""
        cells = Table("cell", *self.class_names, "samples", box=None)
        for number, row in enumerate(self.cells):
            cells.add_row(str(number), *map(str, row), str(row.sum()))
        clients = Table("client", "cell", *self.class_names, "samples", box=None)
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
    network = build_network(config)
    split = build_split(config, train, network)
    mix = datasets.label_mix(split, train.targets.numpy(), train.num_classes)
    return LabelMix(mix, network.cell_of_client, train.class_names)


def draw_label_mix(mix: LabelMix, path: Path) -> None:
    """Two stacked bar charts, cells and clients, as one self-contained page."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, cols=1, subplot_titles=("by cell", "by client"))
    for row, counts in enumerate((mix.cells, mix.clients), start=1):
        for label, name in enumerate(mix.class_names):
            bar = go.Bar(
                x=np.arange(len(counts)),
                y=counts[:, label],
                name=name,
                legendgroup=name,
                showlegend=row == 1,
                marker_color=_colour(label, len(mix.class_names)),
            )
            figure.add_trace(bar, row=row, col=1)
    figure.update_layout(barmode="stack", template="plotly_white", height=800, title="Samples by label")
    write_figure(path, figure)


def _colour(index: int, of: int) -> str:
    return f"hsl({360 * index / of:.0f}, {65 if index % 2 else 45}%, {45 if index % 2 else 60}%)"
