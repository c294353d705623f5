"""Small pieces of a page: escaped text, tables, figures, and the frame that holds them.

Everything that comes from a file or a name goes through `escape`. The frame's content policy allows the
page's own two scripts by their hashes and nothing else, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from histfl.files import write_whole
from histfl.reports.factors import Looks
from histfl.reports.plots import Plot, figure_json, on_screen
from histfl.reports.style import DASHES
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


# In a notebook, too, which has not the page's styles, a remark stands below its number; at the least beside it.
SMALL = ' <small style="display: block"'


def escape(text: object) -> str:
    return html.escape(str(text))


def breakable(name: str) -> str:
    """Escaped; a long name takes another line between its settings and folders before it does within a word."""
    return re.sub(r"([+/])", r"\1<wbr>", escape(name))


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


def page(title: str, answer: str, body: str, *, refresh_seconds: int | None = None) -> str:
    """The frame of every page: its title, the answer in words, and what it rests on."""
    header = f'<header><h1>{escape(title)}</h1><p class="answer">{escape(answer)}</p></header>'
    return frame(title, f"{header}<main>{body}</main>", refresh_seconds=refresh_seconds)


def write_page(path: Path, title: str, answer: str, body: str) -> None:
    """A self-contained page, whole or not at all."""
    write_whole(path, page(title, answer, body).encode(errors="backslashreplace"))


def plots_html(plots: Sequence[Plot], key: str) -> str:
    """The plots side by side where there is room; `key` tells them from the page's other plots."""
    return f'<div class="grid">{"".join(_plot(plot, f"{key}-{n}") for n, plot in enumerate(plots))}</div>'


def _plot(plot: Plot, key: str) -> str:
    # A plot with a key of its own has it in the page's controls.
    figure, title, about = (
        on_screen(replace(plot, key=()), template="none"),
        escape(plot.title),
        escape(plot.about),
    )
    if plot.key:
        margin = {**figure.layout.margin.to_plotly_json(), "b": 55}
        figure.update_layout(showlegend=False, height=plot.height, margin=margin)
    return (
        f"<figure><figcaption><b>{title}</b>{about}</figcaption>"
        f'<div class="plot" id="plot-{key}" data-figure="data-{key}" role="img" '
        f'style="min-height:{figure.layout.height}px" aria-label="{title}. {about}"></div>'
        f'<script type="application/json" id="data-{key}">{script_json(figure_json(figure))}</script></figure>'
    )


def sentences_html(sentences: Sequence[str]) -> str:
    return (
        f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>" if sentences else ""
    )


def controls_html(looks: Looks) -> str:
    """Chips that filter and are the plots' legend, and the choice of what is shown by colour and what by dash; nothing
    where a legend tells the groups apart."""
    if not looks.factors:
        return ""
    dashed = [place for place, factor in enumerate(looks.factors) if len(factor.values) <= len(DASHES)]
    chosen = (
        ("colour", "Colour by", range(len(looks.factors)), looks.colour),
        ("dash", "Dash by", dashed, looks.dash),
    )
    selects = "".join(
        f'<label>{words} <select data-look="{look}">{_options(looks, places, now, none=look == "dash")}</select></label>'
        for look, words, places, now in chosen
    )
    chips = "".join(
        f'<div class="chips" role="group" aria-label="{escape(factor.title)}"><b>{escape(factor.title)}</b>'
        + "".join(
            f'<button type="button" aria-pressed="false" data-factor="{number}" data-value="{place}">'
            f'<svg width="22" height="8" aria-hidden="true"><line x1="0" y1="4" x2="22" y2="4"></line></svg>'
            f"{escape(value)}</button>"
            for place, value in enumerate(factor.values)
        )
        + "</div>"
        for number, factor in enumerate(looks.factors)
    )
    return (
        f'<div class="controls" id="controls"><div class="chips">{selects}<span class="quiet" id="shown" role="status">'
        f'{looks.groups} of {looks.groups} shown</span><button type="button" id="all">Show all</button></div>{chips}'
        f'<script type="application/json" id="looks">{script_json(looks.as_json())}</script></div>'
    )


def _options(looks: Looks, places: Iterable[int], now: int | None, *, none: bool) -> str:
    entries = [(-1, "nothing")] if none else []
    entries += [(place, looks.factors[place].title) for place in places]
    return "".join(
        f'<option value="{place}"{" selected" if place == (-1 if now is None else now) else ""}>{escape(title)}</option>'
        for place, title in entries
    )


def script_json(text: str) -> str:
    """JSON that cannot end the script element it lies in."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def table_html(
    table: Table, caption: str, key: str, *, groups: Sequence[int] = (), reach: bool = True
) -> str:
    """A table that scrolls by itself on a small screen, and that the page's script sorts; numbers carry their unrounded
    value, and rows the place of their group in `groups`, by which they are filtered. Without `reach` the lowest and
    the highest of the seeds are left to another table."""
    words = [_of_words(table, place) for place in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{mark}>{escape(column.title)}</th>'
        for column, mark in zip(table.columns, words, strict=True)
    )
    if any(column.group for column in table.columns):
        runs = [
            (name, len(list(run)))
            for name, run in itertools.groupby(column.group for column in table.columns)
        ]
        headings = "".join(
            f'<th scope="colgroup" colspan="{width}">{escape(name)}</th>' if name else "<td></td>" * width
            for name, width in runs
        )
        head = f"{headings}</tr><tr>{head}"
    marks = [f' data-group="{group}"' for group in groups] or [""] * len(table.rows)
    body = "".join(
        f"<tr{mark}>{_row(row, words, reach)}</tr>" for mark, row in zip(marks, table.rows, strict=True)
    )
    return (
        f'<p class="caption" id="{key}-caption">{escape(caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{key}-caption">'
        f'<table id="{key}" aria-labelledby="{key}-caption"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _of_words(table: Table, place: int) -> str:
    """The mark of a column without numbers."""
    cells = [row[place] for row in table.rows]
    return ' class="words"' if cells and all(isinstance(cell.value, str) for cell in cells) else ""


def _row(row: Sequence[Cell], words: Sequence[str], reach: bool) -> str:
    rest = zip(row[1:], words[1:], strict=True)
    return f'<th scope="row">{breakable(row[0].text)}</th>' + "".join(
        _cell(cell, mark, reach) for cell, mark in rest
    )


def _cell(cell: Cell, mark: str, reach: bool) -> str:
    value = "" if cell.value is None else f' data-value="{escape(cell.value)}"'
    remarks = [cell.deviation, cell.reach if reach else ""]
    small = "".join(f"{SMALL}>{escape(text)}</small>" for text in remarks if text)
    if cell.note:
        better = ' class="better"' if cell.note.endswith("less") else ""
        small += f"{SMALL}{better}>{escape(cell.note)}</small>"
    return f"<td{mark}{value}>{escape(cell.text)}{small}</td>"


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
