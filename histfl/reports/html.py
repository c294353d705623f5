"""Small pieces of a page: escaped text, tables, figures, and the frame that holds them.

Everything that comes from a file or a name goes through `escape`. The frame's content policy allows the
page's own two scripts by their hashes and nothing else, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import plotly.graph_objects as go
import plotly.io
from plotly.offline import get_plotlyjs

from histfl.reports.answer import Cell, Table
from histfl.runs.store import write_whole

FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'">
{refresh}<title>{title}</title>
<style>{css}</style></head><body>
{body}
<script>{plotly}</script><script>{script}</script>
</body></html>
"""


@dataclass(frozen=True)
class Plot:
    """A figure with its title and, for those who do not see it, what it shows."""

    title: str
    description: str
    figure: go.Figure


def escape(text: object) -> str:
    return html.escape(str(text))


def frame(title: str, body: str, *, refresh_seconds: int | None = None) -> str:
    """The whole page, with everything it needs inside."""
    files = resources.files("histfl.reports")
    plotly_js, script = get_plotlyjs(), (files / "page.js").read_text("utf-8")
    return FRAME.format(
        hashes=" ".join(f"'sha256-{_hash(text)}'" for text in (plotly_js, script)),
        refresh=f'<meta http-equiv="refresh" content="{refresh_seconds}">\n' if refresh_seconds else "",
        title=escape(title),
        css=(files / "page.css").read_text("utf-8"),
        body=body,
        plotly=plotly_js,
        script=script,
    )


def write_figure(path: Path, figure: go.Figure) -> None:
    """One figure as a self-contained page, whole or not at all."""
    write_whole(path, figure.to_html(include_plotlyjs=True).encode(errors="backslashreplace"))


def plots_html(plots: Sequence[Plot], key: str) -> str:
    """The plots side by side where there is room; `key` tells them from the page's other plots."""
    return f'<div class="grid">{"".join(_plot(plot, f"{key}-{n}") for n, plot in enumerate(plots))}</div>'


def _plot(plot: Plot, key: str) -> str:
    figure = plot.figure.to_dict()
    figure["layout"].pop("template", None)  # the page brings its own
    return (
        f"<figure><figcaption><b>{escape(plot.title)}</b>{escape(plot.description)}</figcaption>"
        f'<div class="plot" id="plot-{key}" data-figure="data-{key}" role="img" '
        f'style="min-height:{plot.figure.layout.height or 450}px" '
        f'aria-label="{escape(plot.title)}. {escape(plot.description)}"></div>'
        f'<script type="application/json" id="data-{key}">{script_json(plotly.io.to_json(figure, validate=False))}</script></figure>'
    )


def script_json(text: str) -> str:
    """JSON that cannot end the script element it lies in."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def table_html(table: Table, caption: str, key: str) -> str:
    """A table that scrolls by itself on a small screen; numbers carry their unrounded value."""
    head = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in table.columns)
    if any(column.group for column in table.columns):
        runs = [
            (name, len(list(run)))
            for name, run in itertools.groupby(column.group for column in table.columns)
        ]
        groups = "".join(
            f'<th scope="colgroup" colspan="{width}">{escape(name)}</th>' if name else "<td></td>" * width
            for name, width in runs
        )
        head = f"{groups}</tr><tr>{head}"
    body = "".join(f"<tr>{_row(row)}</tr>" for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table id="{key}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Iterable[Cell]) -> str:
    first, *rest = row
    return f'<th scope="row">{escape(first.text)}</th>' + "".join(_cell(cell) for cell in rest)


def _cell(cell: Cell) -> str:
    value = "" if cell.value is None else f' data-value="{escape(cell.value)}"'
    better = ' class="better"' if cell.note.endswith("less") else ""
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    return f"<td{value}{better}>{escape(cell.text)}{note}</td>"


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
