"""Figures and tables for papers: PDF and PNG in a print style, CSV with every digit, LaTeX with the shown ones."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from histfl.errors import missing_extra
from histfl.reports.answer import Table, answer_table, runs_table
from histfl.reports.figures import AXES, part_seconds, size_lines
from histfl.reports.gather import Gathered
from histfl.reports.groups import Group, groups_of, objective_of
from histfl.reports.style import COLOURS, LINE_COLOURS
from histfl.runs.store import storage_errors, write_whole

COLUMN_INCHES = (3.5, 2.5)  # one column of a two-column paper
# Embedded TrueType: publishers refuse matplotlib's default Type 3 fonts.
STYLE = {
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
LINE_STYLES = ("-", "--", ":", "-.")


def write_figures(folder: Path, gathered: Gathered) -> list[Path]:
    """The standard plots and tables of the runs into `folder`; returns what was written."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("--figures", "figures", error) from None
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    groups = groups_of(gathered.runs)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, draw in _plots(groups):
            figure = Figure(figsize=COLUMN_INCHES, layout="constrained")
            draw(figure.subplots())
            for kind in ("pdf", "png"):
                drawn = io.BytesIO()
                metadata = (
                    {"CreationDate": None} if kind == "pdf" else None
                )  # the same runs give the same file
                figure.savefig(drawn, format=kind, dpi=300, metadata=metadata)
                write_whole(folder / f"{name}.{kind}", drawn.getvalue())
                written.append(folder / f"{name}.{kind}")
    answer, runs = answer_table(groups), runs_table(gathered.runs)
    for file, text in (
        ("answer.csv", as_csv(answer)),
        ("runs.csv", as_csv(runs)),
        ("answer.tex", as_latex(answer)),
    ):
        write_whole(folder / file, text.encode())
        written.append(folder / file)
    return written


def as_csv(table: Table) -> str:
    """Every digit; an empty field where a target was not reached."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(column.key for column in table.columns)
    writer.writerows(["" if cell.value is None else cell.value for cell in row] for row in table.rows)
    return file.getvalue()


def as_latex(table: Table) -> str:
    """A booktabs table with the digits that the page shows."""
    head = " & ".join(latex(column.heading) for column in table.columns)
    rows = [" & ".join(latex(cell.text) for cell in row) + r" \\" for row in table.rows]
    lines = [
        "% needs \\usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


_LATEX = {letter: "\\" + letter for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def _plots(groups: Sequence[Group]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    for key in AXES:
        yield f"accuracy-{key.replace('_', '-')}", partial(_accuracy, groups=groups, key=key)
    yield "latency-by-part", partial(_parts, groups=groups)
    yield "sizes", partial(draw_sizes, groups=groups)


def _accuracy(axes: Any, groups: Sequence[Group], key: str) -> None:
    for index, group in enumerate(groups):
        across, values = group.column(key).mean(axis=0), group.column(objective_of(groups).goal)
        style = _style(index)
        axes.plot(across, values.mean(axis=0), label=group.label, **style)
        if len(group.runs) > 1:
            low, high = values.min(axis=0), values.max(axis=0)
            axes.fill_between(across, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.set(xlabel=AXES[key], ylabel=f"test {objective_of(groups).aim.title}")
    axes.set_xlim(left=0)
    axes.legend()


def _parts(axes: Any, groups: Sequence[Group]) -> None:
    compute, uplink = ([part_seconds(group, part) for group in groups] for part in ("compute", "uplink"))
    places = range(len(groups))
    axes.barh(places, compute, color=COLOURS[0], label="compute")
    axes.barh(places, uplink, left=compute, color=COLOURS[1], hatch="///", edgecolor="white", label="uplink")
    axes.set_yticks(places, [group.label for group in groups])
    axes.invert_yaxis()
    axes.set_xlabel("simulated seconds a round")
    axes.legend()


def draw_sizes(axes: Any, groups: Sequence[Group]) -> None:
    """Parameters of every cell's submodel over the rounds; a band where cells are many."""
    for index, group in enumerate(groups):
        shown, style = size_lines(group), _style(index)
        for place, line in enumerate(shown.lines):
            axes.plot(shown.rounds, line, label=group.label if place == 0 else None, **style)
        if shown.band is not None:
            axes.fill_between(shown.rounds, *shown.band, color=style["color"], alpha=0.2, linewidth=0)
    axes.set(xlabel=AXES["round"], ylabel="parameters of a cell's submodel")
    axes.set_ylim(bottom=0)
    axes.legend()


def _style(index: int) -> dict[str, Any]:
    count = len(LINE_COLOURS)
    return {"color": LINE_COLOURS[index % count], "linestyle": LINE_STYLES[index // count % len(LINE_STYLES)]}
