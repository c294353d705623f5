"""The drawer for paper: matplotlib, from the same descriptions as those on the screen."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from histfl.errors import missing_extra
from histfl.reports.plots import Bars, Line, Plot, without_bands
from histfl.reports.style import DASHES

COLUMN_INCHES = (3.5, 2.5)  # one column of a two-column paper
PANEL_INCHES = (4.2, 3.3)
LONG_NAME, SMALL_POINTS = (
    24,
    5,
)  # characters beside an axis, from which on they are small and in several lines
# Embedded TrueType: publishers refuse matplotlib's default Type 3 fonts.
PAPER = {
    "font.size": 8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "text.usetex": False,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.hashsalt": "histfl",
}
PANELS = PAPER | {
    "figure.facecolor": "white",
    "text.parse_math": True,  # powers of ten on log axes
    "axes.titlesize": 9,
    "legend.fontsize": 6,
}
PAPER_DASHES = dict(zip(DASHES, ("-", "--", ":", "-.", (0, (10, 3)), (0, (10, 3, 1, 3))), strict=True))


def on_paper(plot: Plot, what: str) -> dict[str, bytes]:
    """A column's plot of lines and bars as PDF and PNG; `what` names it where matplotlib is missing."""
    kinds = {"pdf": {"CreationDate": None}, "png": None}  # no date: the same runs give the same file
    lines = (
        sum(name.count("\n") + 2 for name in _names(plot)) if _is_long(plot) else 0
    )  # and one between names
    inches = (COLUMN_INCHES[0], max(COLUMN_INCHES[1], 0.7 + lines * 1.25 * SMALL_POINTS / 72))
    return _drawn([plot], PAPER, inches, kinds, what)


def as_svg(plots: Sequence[Plot], what: str) -> bytes:
    """The plots side by side with their titles; the same plots give the same bytes."""
    inches = (PANEL_INCHES[0] * len(plots), PANEL_INCHES[1])
    return _drawn(plots, PANELS, inches, {"svg": {"Date": None}}, what)["svg"]


def _drawn(
    plots: Sequence[Plot],
    style: dict[str, Any],
    inches: tuple[float, float],
    kinds: dict[str, Any],
    what: str,
) -> dict[str, bytes]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra(what, "figures", error) from None
    files = {kind: io.BytesIO() for kind in kinds}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=inches, layout="constrained")
        for axes, plot in zip(figure.subplots(1, len(plots), squeeze=False)[0], plots, strict=True):
            _draw(axes, plot)
            axes.set_title(plot.title if style is PANELS else "")
        for kind, metadata in kinds.items():
            figure.savefig(files[kind], format=kind, dpi=300, metadata=metadata)
    return {kind: file.getvalue() for kind, file in files.items()}


def _draw(axes: Any, plot: Plot) -> None:
    """With matplotlib; bars are sideways and stacked."""
    ends: Any = 0.0
    for mark in (without_bands(plot) if plot.key else plot).marks:
        if isinstance(mark, Line):
            _draw_line(axes, mark)
        elif isinstance(mark, Bars):
            # an edge in the hatch's white would hide short bars
            hatch = {"hatch": "///", "edgecolor": "white", "linewidth": 0} if mark.hatched else {}
            axes.barh(mark.places, mark.values, left=ends, color=mark.colour, label=mark.name, **hatch)
            ends = ends + mark.values
        else:
            raise TypeError(f"{type(mark).__name__} is drawn on screens alone")
    axes.set(xlabel=plot.x.label, ylabel=plot.y.label)
    if plot.x.from_zero:
        axes.set_xlim(left=0)
    if plot.y.from_zero:
        axes.set_ylim(bottom=0)
    if plot.x.scale != "linear":
        axes.set_xscale("log")
    if plot.y.scale != "linear":
        axes.set_yscale("log")
    if plot.y.ticks:
        small = {"fontsize": SMALL_POINTS} if _is_long(plot) else {}
        axes.set_yticks([place for place, _ in plot.y.ticks], _names(plot), **small)
    if plot.y.share:
        from matplotlib.ticker import PercentFormatter

        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if plot.y.downwards:
        axes.invert_yaxis()
    if plot.key:
        axes.legend(handles=[axes.plot([], [], **_style(line), label=line.name)[0] for line in plot.key])
    elif any(isinstance(mark, Bars) for mark in plot.marks):  # above them: bars fill the plot
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
    elif plot.marks:
        axes.legend()


def _is_long(plot: Plot) -> bool:
    return any(len(name) > LONG_NAME for _, name in plot.y.ticks)


def _names(plot: Plot) -> list[str]:
    """The names beside the y axis; long ones take a line a setting."""
    return [name.replace(", ", ",\n") if _is_long(plot) else name for _, name in plot.y.ticks]


def _style(line: Line) -> dict[str, Any]:
    return {"color": line.colour, "linestyle": PAPER_DASHES[line.dash]}


def _draw_line(axes: Any, line: Line) -> None:
    style = _style(line)
    if line.markers:
        error = None if line.band is None else np.stack((line.y - line.band[0], line.band[1] - line.y))
        points = {"marker": "o", "markersize": 3, "capsize": 2}
        axes.errorbar(line.x, line.y, yerr=error, label=line.name, **points, **style)
        return
    for place, y in enumerate(np.atleast_2d(line.y)):
        axes.plot(line.x, y, label=line.name if place == 0 else None, **style)
    if line.band is not None:
        axes.fill_between(line.x, *line.band, color=line.colour, alpha=0.2, linewidth=0)
