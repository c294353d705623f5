"""A table with the numbers behind its words, and as files for papers: CSV with every digit, LaTeX with the shown ones."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """What is written and the number behind it, unrounded (None: there is none); `note` is a remark on it."""

    text: str
    value: float | str | None
    note: str = ""


@dataclass(frozen=True)
class Column:
    """`key` names the column in files, `title` for readers; columns of one `group` share a heading."""

    key: str
    title: str
    group: str = ""

    @property
    def heading(self) -> str:
        return f"{self.title} {self.group}".strip()


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


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
