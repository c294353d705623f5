"""An artefact's answer as a table, as a page of its own and, with all others, as a page of the documentation."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from histfl.errors import UsageError
from histfl.files import storage_errors, write_whole
from histfl.reports.html import escape, frame, plots_html, table_html
from histfl.reports.plots import Plot, as_svg
from histfl.reports.tables import Cell, Column, Table
from histfl.reproduce.artefact import Artefact, Row, Verdict
from histfl.reproduce.files import kept_findings, kept_results, parts
from histfl.reproduce.results import Result, Results

HEADINGS = ("what", "paper", "ours", "holds?")
VERDICTS: tuple[Verdict, ...] = ("yes", "no", "not yet run")
INTRODUCTION = """# The paper, reproduced

Every figure and table of HIST's evaluation, as far as it has been run again with this package: what the paper
says, what came out (the mean over the seeds, and in brackets the lowest and highest), and whether the claim
holds. Verdicts are computed from the numbers; rows of what the paper does not have stand beside its claims and
are not counted here. `histfl reproduce NAME` runs an artefact, `--quick` a small version of it in two minutes at
most; `histfl reproduce page` writes this page from the files in `results/reproduction`, which
`histfl reproduce collect` makes from runs.
"""


def rows_table(rows: Sequence[Row]) -> Table:
    """The rows as the report's kind of table."""
    columns = tuple(Column(heading.rstrip("?"), heading) for heading in HEADINGS)
    cells = (tuple(Cell(text, text) for text in (row.what, row.paper, row.ours, row.verdict)) for row in rows)
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
        f"<header><h1>{escape(artefact.title)}</h1><p>{escape(artefact.paper)}</p></header><main>{smaller}"
        f"{plots_html(panels, 'figure')}{table_html(rows_table(rows), 'The paper and ours.', 'answer')}"
        f"{remarks}<h2>Choices</h2><ul>{choices}</ul></main>"
    )
    return frame(artefact.title, body)


def write_documentation(artefacts: Sequence[Artefact], results: Path, docs: Path) -> Path:
    """docs/reproduction.md and its figures from the files in `results`."""
    if not any((results / artefact.name).is_dir() for artefact in artefacts):
        raise UsageError(f"{results} has no results; histfl reproduce collect keeps those of runs there")
    figures = docs / "figures" / "reproduction"
    with storage_errors(figures):
        figures.mkdir(parents=True, exist_ok=True)
    findings = kept_findings(results)
    sections, overview = [], []
    for artefact in artefacts:
        found, stale = kept_results(artefact, results)
        rows, panels = artefact.rows(found), artefact.panels(found)
        drawn = any(panel.marks for panel in panels)
        if drawn:
            write_whole(figures / f"{artefact.name}.svg", as_svg(panels, "drawing the page"))
        picture = f"![{artefact.title}](figures/reproduction/{artefact.name}.svg)\n" if drawn else ""
        sections.append(_section(artefact, rows, picture, found, stale, findings))
        counts = Counter(row.verdict for row in rows if not row.beside)
        overview.append((f"[{artefact.title}](#{artefact.name})", *(counts[verdict] for verdict in VERDICTS)))
    table = _markdown(("artefact", "claims that hold", "that do not", "not yet run"), overview)
    page = docs / "reproduction.md"
    write_whole(page, "\n".join([INTRODUCTION, table, *sections]).encode(errors="backslashreplace"))
    return page


def _section(
    artefact: Artefact,
    rows: Sequence[Row],
    picture: str,
    results: Results,
    stale: Sequence[str],
    findings: Mapping[str, str],
) -> str:
    parts = [f"## {artefact.title} {{ #{artefact.name} }}\n", f"{artefact.paper}\n", picture]
    parts.append(_markdown(HEADINGS, [(row.what, row.paper, row.ours, row.verdict) for row in rows]))
    for heading, lines in _remarks(rows):
        parts.append("\n".join([f"{heading}:\n", *(f"- {line}" for line in lines)]) + "\n")
    parts.append("\n".join(["Choices:\n", *(f"- {c.in_words(findings)}." for c in artefact.choices)]) + "\n")
    if stale:
        parts.append(f"Not shown, run with other settings: {', '.join(stale)}.\n")
    parts.append(_origin(results.all))
    return "\n".join(part for part in parts if part)


def _remarks(rows: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    """What is to be said of the verdicts: a heading and its lines."""
    for heading, verdict in (("What does not hold", "no"), ("What holds of the means alone", "yes")):
        if lines := [f"{row.what}: {row.why}" for row in rows if row.why and row.verdict == verdict]:
            yield heading, lines


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


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [" | ".join(headings), " | ".join("---" for _ in headings)]
    lines += [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"
