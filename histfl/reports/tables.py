"""A table with the numbers behind its words, and as files for papers: CSV with every digit, LaTeX with the shown ones."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich import table as terminal
from rich.text import Text

CONFIDENCE = 0.95


@dataclass(frozen=True)
class OverSeeds:
    """One number over several seeds: its mean, how far it scatters, and how well the mean is known.

    `values` are those of the seeds that have one, out of `seeds` in all.
    """

    values: tuple[float, ...]
    seeds: int

    @property
    def complete(self) -> bool:
        return len(self.values) == self.seeds

    @property
    def mean(self) -> float:
        # of one value itself, to the last bit and as the whole number that it may be
        return float(np.mean(self.values)) if len(self.values) > 1 else self.values[0]

    @property
    def lowest(self) -> float:
        return min(self.values)

    @property
    def highest(self) -> float:
        return max(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of a sample, sqrt(sum (x - mean)^2 / (n - 1)); None of a single value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def interval(self) -> float | None:
        """Half the width of the mean's 95 % interval by Student's t, with n - 1 degrees of freedom."""
        n = len(self.values)
        if (deviation := self.deviation) is None:
            return None
        from scipy.special import stdtrit  # takes a while, and a run needs none of it

        return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(n)


@dataclass(frozen=True)
class Cell:
    """What is written and the number behind it, unrounded (None: there is none); `note` is a remark on it.

    A number over several seeds is their mean: `over` has them all, `deviation` and `reach` say in words their
    standard deviation and the lowest and highest ("" where all are equal).
    """

    text: str
    value: float | str | None
    note: str = ""
    over: OverSeeds | None = None
    deviation: str = ""
    reach: str = ""

    @property
    def with_deviation(self) -> str:
        return f"{self.text} {self.deviation}".strip()

    @property
    def in_full(self) -> str:
        return f"{self.with_deviation} ({self.reach})" if self.reach else self.with_deviation


@dataclass(frozen=True)
class Column:
    """`key` names the column in files, `title` for readers; columns of one `group` share a heading. One that is
    `over_seeds` has further columns in files, and a `brief` table does without those that are not `telling`."""

    key: str
    title: str
    group: str = ""
    over_seeds: bool = False
    telling: bool = True

    @property
    def heading(self) -> str:
        return f"{self.title} {self.group}".strip()


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def brief(self) -> Table:
        """The telling columns alone."""
        kept = [place for place, column in enumerate(self.columns) if column.telling]
        return Table(
            tuple(self.columns[place] for place in kept),
            tuple(tuple(row[place] for place in kept) for row in self.rows),
        )


SEED_COLUMNS = ("sd", "interval95", "lowest", "highest", "seeds")


def as_csv(table: Table) -> str:
    """Every digit. A quantity over seeds has its standard deviation, half the 95 % interval, the lowest, the highest
    and the number of seeds beside it, of those that came to a target where not all did; without any, all are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    head: list[str] = []
    for column in table.columns:
        head += [column.key, *(f"{column.key}_{name}" for name in SEED_COLUMNS if column.over_seeds)]
    writer.writerow(head)
    for row in table.rows:
        line: list[object] = []
        for column, cell in zip(table.columns, row, strict=True):
            line += _over_seeds(cell) if column.over_seeds else [cell.value]
        writer.writerow("" if value is None else value for value in line)
    return file.getvalue()


def _over_seeds(cell: Cell) -> list[object]:
    over = cell.over
    if over is None:
        return [cell.value, *[None] * (len(SEED_COLUMNS) - 1), 0]
    mean = over.mean if cell.value is None else cell.value
    return [mean, over.deviation, over.interval, over.lowest, over.highest, len(over.values)]


def as_latex(table: Table) -> str:
    """A booktabs table of the telling columns with the digits that the page shows, no wider than a column of text.
    Below a mean over seeds stand the lowest and the highest."""
    brief = table.brief
    several = any(cell.reach for row in brief.rows for cell in row)
    lines = [
        "% needs \\usepackage{booktabs,graphicx}",
        *(["% mean and standard deviation over seeds; below, the lowest and the highest"] if several else []),
        r"\resizebox{\ifdim\width>\columnwidth\columnwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(brief.columns) - 1)}}}",
        r"\toprule",
        _line([latex(column.heading) for column in brief.columns]),
        r"\midrule",
    ]
    for row in brief.rows:
        lines.append(_line([latex(cell.with_deviation) for cell in row]))
        if any(cell.reach for cell in row):
            lines.append(_line([rf"\scriptsize {latex(cell.reach)}" if cell.reach else "" for cell in row]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}"]) + "\n"


def in_terminal(table: Table) -> terminal.Table:
    """The shown words, a row a line."""
    drawn = terminal.Table(*(column.heading for column in table.columns), box=None)
    for row in table.rows:
        drawn.add_row(*(Text(cell.in_full) for cell in row))
    return drawn


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def latex(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


_LATEX = {letter: "\\" + letter for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
}
