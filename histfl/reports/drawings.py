"""Pictures of a run: which cell holds which units, and who holds which labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from histfl.network.network import Floats
from histfl.reports.answer import Cell, Column, Table
from histfl.reports.style import GREY, cell_colours, shown_name, steps
from histfl.runs.pictures import SHARED

Picture = dict[str, Any]
NAMED_CELLS = 12
TABLE_CELLS, TABLE_CLASSES = 32, 20


def partition_figure(partition: Picture) -> go.Figure:
    """A row a cut layer, a stripe a unit, coloured by the cell that holds it."""
    layers, cells, numbers = partition["layers"], partition["cells"], _cell_numbers(partition)
    width = max(len(layer["owner"]) for layer in layers)
    owners = np.full((len(layers), width), np.nan)
    for row, layer in enumerate(layers):
        owners[row, : len(layer["owner"])] = layer["owner"]
    shared = bool((owners == SHARED).any())
    colours = ([GREY] if shared else []) + cell_colours(cells)
    names = (["every cell"] if shared else []) + [f"cell {number}" for number in numbers]
    lowest = SHARED if shared else 0
    figure = go.Figure(
        go.Heatmap(
            z=owners,
            colorscale=steps(colours),
            zmin=lowest - 0.5,
            zmax=cells - 0.5,
            showscale=len(names) > NAMED_CELLS,
            colorbar={"title": {"text": "cell" if numbers == list(range(cells)) else "cell, in order"}},
            customdata=_numbered(owners, numbers),
            xgap=1 if width <= 150 else 0,
            ygap=4,
            hovertemplate="unit %{x}: cell %{customdata}<extra></extra>",
        )
    )
    if len(names) <= NAMED_CELLS:
        for name, colour in zip(names, colours, strict=True):
            marker = {"color": colour, "symbol": "square", "size": 12}
            figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker)
    rows = list(range(len(layers)))
    ticks = [shown_name(layer["name"]) for layer in layers]
    figure.update_yaxes(tickvals=rows, ticktext=ticks, autorange="reversed", automargin=True)
    figure.update_xaxes(title_text="unit", range=[-0.5, width - 0.5])
    return _framed(figure, 150 + 34 * len(layers))


def partition_table(partition: Picture) -> Table:
    """How many of the drawn units each cell holds, layer by layer."""
    numbers = _cell_numbers(partition)[:TABLE_CELLS]
    columns = (Column("layer", "layer"), *(Column(f"cell_{cell}", f"cell {cell}") for cell in numbers))
    rows = []
    for layer in partition["layers"]:
        owner = np.array(layer["owner"], dtype=int)
        shared = int((owner == SHARED).sum())
        counts = [int((owner == cell).sum()) + shared for cell in range(len(numbers))]
        rows.append((Cell(layer["name"], layer["name"]), *(Cell(str(count), count) for count in counts)))
    return Table(columns, tuple(rows))


def _cell_numbers(partition: Picture) -> list[int]:
    """Whose the places 0, 1, ... are: the active cells of the round, or all."""
    return partition.get("active_cells") or list(range(partition["cells"]))


def _numbered(owners: Floats, numbers: Sequence[int]) -> Floats:
    """The numbers in the network of cells given by their place; SHARED and nothing as they are."""
    places = np.nan_to_num(owners, nan=SHARED).astype(int)
    return np.where(places >= 0, np.array(numbers, dtype=float)[places], owners)


def label_figure(labels: Picture) -> go.Figure:
    """A column a client, a row a class; the darker, the more samples. Lines part the cells."""
    counts = np.array(labels["client_counts"]).T
    clients, cells = labels["shown_clients"], labels["shown_cells"]
    figure = go.Figure(
        go.Heatmap(
            z=counts,
            colorscale="Cividis",
            customdata=np.tile(np.array([clients, cells]).T, (len(counts), 1, 1)),
            colorbar={"title": {"text": "samples"}},
            hovertemplate="client %{customdata[0]} of cell %{customdata[1]}: %{z} samples<extra></extra>",
        )
    )
    borders = [index for index in range(1, len(cells)) if cells[index] != cells[index - 1]]
    for border in borders if len(borders) <= 40 else []:
        figure.add_vline(x=border - 0.5, line_width=2, line_color="#ffffff")
    names = [shown_name(name) for name in labels["class_names"]]
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, autorange="reversed", automargin=True
    )
    every = max(1, len(clients) // 20)
    figure.update_xaxes(
        title_text="client",
        tickvals=list(range(0, len(clients), every)),
        ticktext=list(map(str, clients[::every])),
    )
    return _framed(figure, 140 + 22 * len(names))


def label_table(labels: Picture) -> Table:
    """Samples by cell and class."""
    names = labels["class_names"][:TABLE_CLASSES]
    columns = (Column("cell", "cell"), *(Column(name, name) for name in names), Column("samples", "samples"))
    rows = []
    for cell, counts in enumerate(labels["cell_counts"][:TABLE_CELLS]):
        shown = [*counts[:TABLE_CLASSES], sum(counts)]
        rows.append((Cell(str(cell), cell), *(Cell(str(count), count) for count in shown)))
    return Table(columns, tuple(rows))


def _framed(figure: go.Figure, height: int) -> go.Figure:
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 15, "t": 15, "b": 85},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
    )
    return figure
