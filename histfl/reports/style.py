"""Colours, dashes and names of what is drawn."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
from plotly.colors import sample_colorscale

# Okabe and Ito's palette, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
LINE_COLOURS = COLOURS[:6]  # black is lost on a dark page, yellow on a white one
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GREY = "#8a8a8a"
LONGEST_NAME = 44


def line_style(index: int) -> dict[str, Any]:
    """The index-th line: six colours, then the same ones dashed."""
    return {
        "colour": LINE_COLOURS[index % len(LINE_COLOURS)],
        "dash": DASHES[index // len(LINE_COLOURS) % len(DASHES)],
    }


def cell_colours(cells: int) -> list[str]:
    """A colour a cell."""
    if cells <= len(LINE_COLOURS):
        return list(LINE_COLOURS[:cells])
    return [str(colour) for colour in sample_colorscale("Viridis", list(np.linspace(0, 1, cells)))]


def steps(colours: Sequence[str]) -> list[list[Any]]:
    """A colour scale without gradients: equal stretches of each colour."""
    n = len(colours)
    return [[edge / n, colour] for index, colour in enumerate(colours) for edge in (index, index + 1)]


def shown_name(name: str) -> str:
    """A name for plotly, which reads markup in text: escaped, and short enough for a legend."""
    if len(name) > LONGEST_NAME:
        half = LONGEST_NAME // 2 - 1
        name = f"{name[:half]}…{name[-half:]}"
    return html.escape(name, quote=False)
