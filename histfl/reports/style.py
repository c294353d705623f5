"""Colours, dashes and names of what is drawn."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
from plotly.colors import sample_colorscale

from histfl.arrays import Floats

# A colour means one thing on a page: Okabe and Ito's are of runs, and told apart by colour-blind readers too; greys of a
# round's parts, Tol's bright ones of a bound's terms, a scale from blue to yellow of cells.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
LINE_COLOURS = COLOURS[:6]  # black is lost on a dark page, yellow on a white one
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PART_COLOURS = {"compute": "#5f6b76", "uplink": "#a9b4be"}
TERM_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#997700")
GREY = "#8a8a8a"
BLACK = "#000000"  # on a dark page the page's ink
DARKEST = 0.2  # of the cells' scale: its violet is lost on a dark page
LONGEST_NAME = 44


def line_style(index: int) -> dict[str, Any]:
    """The index-th line: six colours, then the same ones dashed."""
    return {
        "colour": LINE_COLOURS[index % len(LINE_COLOURS)],
        "dash": DASHES[index // len(LINE_COLOURS) % len(DASHES)],
    }


def many_colours(count: int) -> list[str]:
    """A colour a value, where they are more than LINE_COLOURS."""
    return _sampled("Turbo", np.linspace(0.08, 0.92, count))


def cell_colours(cells: int) -> list[str]:
    """A colour a cell."""
    return _sampled("Viridis", np.linspace(DARKEST, 1, cells))


def _sampled(scale: str, places: Floats) -> list[str]:
    return [str(colour) for colour in sample_colorscale(scale, list(places))]


def steps(colours: Sequence[str]) -> list[list[Any]]:
    """A colour scale without gradients: equal stretches of each colour."""
    n = len(colours)
    return [[edge / n, colour] for index, colour in enumerate(colours) for edge in (index, index + 1)]


def shown_names(names: str) -> str:
    """Names parted by commas, each as `shown_name` has it."""
    return ", ".join(map(shown_name, names.split(", ")[:LONGEST_NAME]))


def shown_name(name: str) -> str:
    """A name for plotly, which reads markup in text: escaped, and short enough for a legend."""
    if len(name) > LONGEST_NAME:
        half = LONGEST_NAME // 2 - 1
        name = f"{name[:half]}…{name[-half:]}"
    return html.escape(name, quote=False)
