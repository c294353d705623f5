"""An artefact's answer as a table, as a page of its own and, with all others, as a page of the documentation."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from histfl.errors import UsageError
from histfl.files import storage_errors, write_whole
from histfl.reports.html import escape, page, plots_html, table_html
from histfl.reports.paper import as_svg
from histfl.reports.plots import Plot
from histfl.reports.tables import Cell, Column, Table
from histfl.reproduce.artefact import Artefact, Row, Verdict
from histfl.reproduce.commands import left
from histfl.reproduce.files import kept_findings, kept_results, parts
from histfl.reproduce.results import Result, Results
from histfl.reproduce.summary import COLUMNS, Answered, counts, in_total, markdown, summary

HEADINGS = ("what", "paper", "ours", "holds?")
INTRODUCTION = """# The paper, reproduced

Every figure and table of HIST's evaluation, as far as it has been run again with this package: what the paper
says, what came out (the mean over the seeds, and in brackets the lowest and highest), and whether the claim
holds. Verdicts are computed from the numbers: *yes* if a claim is true of the means and of every seed's own numbers;
*of the means alone* if not of every seed's; *from 0 dB on*, say, if it is true at those of its points; *no, but seeds
differ* if it is not true of the means, and at each point or step that it loses some seed says otherwise; else *no*.
Rows of what the paper does not have stand beside its claims and are not counted. `histfl reproduce NAME` runs an
artefact, `--quick` a small version of it in two minutes at most; `histfl reproduce page` writes this page from the
files in `results`, which `histfl reproduce collect` makes from runs.

As in the paper, N is the number of cells and n_j that of a cell's clients; an edge averages its clients every H local
steps, and the cloud merges the cells after E such edge rounds, a global round. OMA stands for orthogonal uplinks,
AirComp for over-the-air aggregation.
"""


def rows_table(rows: Sequence[Row]) -> Table:
    """The rows as the report's kind of table."""
    columns = tuple(Column(heading.rstrip("?"), heading) for heading in HEADINGS)
    cells = (tuple(Cell(text, text) for text in (row.what, row.paper, row.ours, row.holds)) for row in rows)
    return Table(columns, tuple(cells))


def answer_json(artefact: Artefact, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "title": artefact.title,
        "smaller": artefact.smaller,
        "rows": [
            {
                "what": row.what,
                "paper": row.paper,
                "ours": row.ours,
                "holds": row.verdict or None,
                "note": row.note or None,
                "why": row.why or None,
                "values": dict(row.values),
            }
            for row in rows
        ],
    }


def answer_page(artefact: Artefact, rows: Sequence[Row], panels: Sequence[Plot]) -> str:
    """One self-contained page: the figure, the table, and the choices that the paper leaves open."""
    remarks = "".join(
        f"<h2>{heading}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
        for heading, lines in _remarks(rows)
    )
    choices = "".join(f"<li>{escape(choice.in_words({}))}</li>" for choice in artefact.choices)
    smaller = f"<p>Made smaller: {escape(artefact.smaller)}</p>" if artefact.smaller else ""
    body = (
        f"<p>The paper: {escape(artefact.paper)}</p>{smaller}"
        f"{plots_html(panels, 'figure') if panels else ''}"
        f"{table_html(rows_table(rows), 'The paper and ours.', 'answer')}"
        f"{remarks}<h2>Choices{', but for what was made smaller' if artefact.smaller else ''}</h2><ul>{choices}</ul>"
    )
    return page(artefact.title, verdict_sentence(rows), body)


def verdict_sentence(rows: Sequence[Row]) -> str:
    """How many of the paper's claims hold."""
    claims = [row for row in rows if row.verdict and not row.beside]
    return in_total(claims) if claims else "The paper makes no claim here that is checked."


def write_documentation(artefacts: Sequence[Artefact], results: Path, docs: Path) -> Path:
    """docs/reproduction.md and its figures from the files in `results`."""
    if not any((results / artefact.name).is_dir() for artefact in artefacts):
        raise UsageError(f"{results} has no results; histfl reproduce collect keeps those of runs there")
    figures = docs / "figures" / "reproduction"
    with storage_errors(figures):
        figures.mkdir(parents=True, exist_ok=True)
    findings = kept_findings(results)
    sections, answers = [], []
    for artefact in artefacts:
        found, stale = kept_results(artefact, results)
        rows, panels = artefact.rows(found), artefact.panels(found)
        drawn = any(panel.marks for panel in panels)
        if drawn:
            write_whole(figures / f"{artefact.name}.svg", as_svg(panels, "drawing the page"))
        picture = f"![{artefact.title}](figures/reproduction/{artefact.name}.svg)\n" if drawn else ""
        sections.append(_section(artefact, rows, picture, found, stale, findings))
        answers.append(Answered(artefact, found, rows))
    links = {
        f"[{each.artefact.title}](#{each.artefact.name})": each.claims for each in answers if each.claims
    }
    table = markdown(("claims", *COLUMNS), [(link, *counts(claims)) for link, claims in links.items()])
    written = docs / "reproduction.md"
    parts = [INTRODUCTION, summary(answers, results), "By figure and table:\n", table, *sections]
    write_whole(written, "\n".join(parts).encode(errors="backslashreplace"))
    return written


def _section(
    artefact: Artefact,
    rows: Sequence[Row],
    picture: str,
    results: Results,
    stale: Sequence[str],
    findings: Mapping[str, str],
) -> str:
    parts = [f"## {artefact.title} {{ #{artefact.name} }}\n", f"{artefact.paper}\n", picture]
    parts.append(markdown(HEADINGS, [(row.what, row.paper, row.ours, row.holds) for row in rows]))
    for heading, lines in _remarks(rows):
        parts.append("\n".join([f"{heading}:\n", *(f"- {line}" for line in lines)]) + "\n")
    parts.append(_left(artefact, results))
    parts.append("\n".join(["Choices:\n", *(f"- {c.in_words(findings)}." for c in artefact.choices)]) + "\n")
    if stale:
        parts.append(f"Not shown, run with other settings: {', '.join(stale)}.\n")
    parts.append(_origin(results.all))
    return "\n".join(part for part in parts if part)


def _remarks(rows: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    """What is to be said of the verdicts: a heading and its lines."""
    headings: dict[str, tuple[Verdict, ...]] = {
        "What does not hold": ("no", "no, but seeds differ"),
        "What holds in part": ("in part",),
        "What holds of the means alone": ("of the means alone",),
    }
    for heading, verdicts in headings.items():
        if lines := [f"{row.what}: {row.why}" for row in rows if row.why and row.verdict in verdicts]:
            yield heading, lines


def _left(artefact: Artefact, results: Results) -> str:
    """What is not yet run, and the commands that run it."""
    missing, commands = left(artefact, results)
    if not missing:
        return ""
    lines = "\n".join(f"- `{command}`" for command in commands)
    return f"Not yet run are {missing} of {len(artefact.arms)} arms, which take:\n\n{lines}\n"


def _origin(results: Sequence[Result]) -> str:
    """Where the numbers come from: machines, versions, commits, and one of the commands."""
    if not results:
        return "No run yet.\n"
    unfinished = sum(not result.finished for result in results)
    timed = [result.about["wall_seconds"] for result in results if result.about.get("wall_seconds")]
    ended = [result for result in results if result.about.get("device")]  # their commands name the device
    machines = _listed(part for result in results for part in parts(result.about.get("machine")))
    torches = _listed(version for result in results for version in _torches(result.about))
    precisions = _listed(result.about["config"]["training"]["precision"] for result in results)
    commits = _listed(_short(part) for result in results for part in parts(result.about.get("commit")))
    count = "1 run" if len(results) == 1 else f"{len(results)} runs"
    state = f", {unfinished} of them unfinished" if unfinished else ""
    part = f" in {len(timed)} of them" if len(timed) < len(results) else ""
    time = f"; {sum(timed) / 60:.3g} minutes of computing{part}" if timed else ""
    return (
        f"{count}{state}, on {machines}, torch {torches}, {precisions}, commit {commits}{time}. "
        f"To run one again: `{(ended or results)[0].about['command']}`\n"
    )


def _torches(about: Mapping[str, Any]) -> list[str]:
    """The versions of torch that a run took; of one that was cut short its origin knows them."""
    return parts(about.get("torch")) or [(about.get("versions") or {}).get("torch", "")]


def _short(commit: str) -> str:
    """Nine digits, and the note that the code had changes."""
    digits, _, note = commit.partition(" ")
    return f"{digits[:9]} {note}".strip()


def _listed(values: Any) -> str:
    return ", ".join(sorted({html.escape(str(value)) for value in values if value})) or "unknown"
