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
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from histfl.files import write_whole
from histfl.reports.plots import Plot, figure_json, on_page, on_screen
from histfl.reports.tables import Cell, Table

FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'">
{refresh}<title>{title}</title>
<style>{css}</style></head><body>
{body}
<script>{plotly}</script><script>{script}</script>
</body></html>
"""


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


def write_plots(path: Path, title: str, plots: Sequence[Plot], height: int, *, subtitle: str = "") -> None:
    """Plots as a self-contained page of their own, whole or not at all."""
    page = on_page(title, plots, height, subtitle=subtitle).to_html(include_plotlyjs=True)
    write_whole(path, page.encode(errors="backslashreplace"))


def plots_html(plots: Sequence[Plot], key: str) -> str:
    """The plots side by side where there is room; `key` tells them from the page's other plots."""
    return f'<div class="grid">{"".join(_plot(plot, f"{key}-{n}") for n, plot in enumerate(plots))}</div>'


def _plot(plot: Plot, key: str) -> str:
    figure, title, about = on_screen(plot), escape(plot.title), escape(plot.about)
    return (
        f"<figure><figcaption><b>{title}</b>{about}</figcaption>"
        f'<div class="plot" id="plot-{key}" data-figure="data-{key}" role="img" '
        f'style="min-height:{figure.layout.height}px" aria-label="{title}. {about}"></div>'
        f'<script type="application/json" id="data-{key}">{script_json(figure_json(figure))}</script></figure>'
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
