"""report.html: the answer first, then what it rests on; opens from disk and asks nothing of the network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from histfl.errors import HistflError
from histfl.files import write_whole
from histfl.reports.answer import answer_sentence, answer_table, runs_table
from histfl.reports.bound import bound_of
from histfl.reports.bound_page import bound_plot, sentences
from histfl.reports.figures import AXES, accuracy_plot, cell_plot, error_plot, part_plot, size_plot
from histfl.reports.gather import Gathered, Group, baseline_of, groups_of, objective_of, settings_in_words
from histfl.reports.html import escape, frame, plots_html, table_html
from histfl.reports.pictures import label_plot, label_table, partition_plot, partition_table
from histfl.runs.run import Run
from histfl.training.methods import has_theorems

PARTITIONS, LABEL_MIXES, THEORIES = 6, 3, 4  # pictures on one page; the rest is a report of their own


COUNTED = (
    "MB a client: what it sends to its edge, in 2^20 bytes. Simulated seconds: computing and uplink of the slowest "
    "clients; the downlink and the link to the cloud are not counted."
)


def write_report(path: Path, title: str, gathered: Gathered, *, refresh_seconds: int | None = None) -> None:
    """Write the page, whole or not at all; while runs go on an open page reloads itself."""
    write_whole(
        path, report_page(title, gathered, refresh_seconds=refresh_seconds).encode(errors="backslashreplace")
    )


def report_page(title: str, gathered: Gathered, *, refresh_seconds: int | None = None) -> str:
    groups = groups_of(gathered.runs)
    sections = [section for section in _sections(groups, gathered.runs) if section[2]]
    contents = "".join(f'<li><a href="#{key}">{escape(name)}</a></li>' for key, name, _ in sections)
    body = "\n".join(
        [
            f"<header><h1>{escape(title)}</h1>",
            f'<p class="answer">{escape(answer_sentence(groups) if groups else "No run can be shown.")}</p></header><main>',
            _state(gathered, refresh_seconds),
            _answer(groups),
            f'<nav aria-label="Contents"><ul>{contents}</ul></nav>',
            *(
                f'<section aria-labelledby="{key}"><h2 id="{key}">{escape(name)}</h2>{html}</section>'
                for key, name, html in sections
            ),
            "</main>",
        ]
    )
    return frame(title, body, refresh_seconds=refresh_seconds)


def _state(gathered: Gathered, refresh_seconds: int | None) -> str:
    """What is not there: broken runs, and rounds still to come."""
    running = [
        f"{run.name}: {len(run.records)} of {run.planned_rounds} rounds"
        for run in gathered.runs
        if not run.finished
    ]
    parts = []
    if running:
        reload = f" This page reloads itself every {refresh_seconds} seconds." if refresh_seconds else ""
        parts.append(f"<p>Not finished: {escape('; '.join(running))}.{reload}</p>")
    if gathered.broken:
        items = "".join(
            f"<li><b>{escape(name)}</b>: {escape(reason)}</li>" for name, reason in gathered.broken
        )
        parts.append(f'<p>Not shown:</p><ul id="broken">{items}</ul>')
    return f'<div class="warning" role="note">{"".join(parts)}</div>' if parts else ""


def _answer(groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    seeds = any(len(group.runs) > 1 for group in groups)
    caption = f"What {objective_of(groups).aim.title} cost" + (
        "; several seeds: their mean, and the range below it" if seeds else ""
    )
    if any(baseline_of(group, groups) not in (None, group) for group in groups):
        caption += "; below a cost its ratio to hierarchical FedAvg"
    return table_html(answer_table(groups), f"{caption}. {COUNTED}", "answer")


def _sections(groups: Sequence[Group], runs: Sequence[Run]) -> Iterator[tuple[str, str, str]]:
    """Anchor, title and body; a section without a body is left out."""
    if not groups:
        return
    yield (
        "accuracy",
        f"{objective_of(groups).aim.title.capitalize()} against its cost",
        plots_html([accuracy_plot(groups, key) for key in AXES], "accuracy"),
    )
    yield "latency", "Where the time goes", plots_html([part_plot(groups), cell_plot(groups)], "latency")
    yield "sizes", "Submodel sizes", plots_html([size_plot(groups)], "sizes")
    yield "partition", "The partition of the last round", _partition(groups)
    yield "labels", "Who holds which labels", _labels(runs)
    yield "error", "Over-the-air error", _error(groups)
    yield "theory", "The convergence bound", _theory(runs)
    yield (
        "runs",
        "Every run",
        table_html(runs_table(runs), "Totals of every run, as its summary.json has them.", "every"),
    )
    yield "configuration", "Configuration, versions and command", "".join(map(_configuration, runs))


def _partition(groups: Sequence[Group]) -> str:
    drawn = []
    for group in groups:
        partition = group.runs[0].pictures.get("partition")
        if partition is None:
            continue
        if not partition["layers"]:
            drawn.append(f"<p>{escape(group.name)}: every cell holds the whole model.</p>")
            continue
        number = f"partition-{len(drawn)}"
        cut = max(layer["units"] - len(layer["owner"]) for layer in partition["layers"])
        more = " Of long layers the first units are drawn." if cut else ""
        if hidden := partition["groups"] - len(partition["layers"]):
            more += f" {hidden} more layers are not drawn."
        text = f"A stripe is a unit, its colour the cell that holds it in round {partition['round']}.{more}"
        table = table_html(partition_table(partition), "Units drawn, by layer and cell.", f"table-{number}")
        plot = plots_html([partition_plot(partition, group.name, text)], number)
        drawn.append(f"{plot}<details><summary>The numbers</summary>{table}</details>")
    more_groups = (
        f"<p>{len(drawn) - PARTITIONS} more runs are not drawn.</p>" if len(drawn) > PARTITIONS else ""
    )
    return "".join(drawn[:PARTITIONS]) + more_groups


def _labels(runs: Sequence[Run]) -> str:
    """Runs on the same data have the same mix, which is drawn once."""
    mixes: dict[str, list[Run]] = {}
    for run in runs:
        if labels := run.pictures.get("labels"):
            mixes.setdefault(repr(labels), []).append(run)
    drawn = []
    for number, same in enumerate(list(mixes.values())[:LABEL_MIXES]):
        labels = same[0].pictures["labels"]
        names = "; ".join(settings_in_words(run.name) for run in same[:3])
        names += f" and {len(same) - 3} more" if len(same) > 3 else ""
        text = "A column is a client, a row a class; lines part the cells."
        if labels["clients"] > len(labels["shown_clients"]):
            text += f" {len(labels['shown_clients'])} of {labels['clients']} clients are drawn."
        title = f"Samples by client and label: {names}"
        plot = plots_html([label_plot(labels, title, text)], f"labels-{number}")
        table = table_html(label_table(labels), "Samples by cell and label.", f"table-labels-{number}")
        drawn.append(f"{plot}<details><summary>The numbers by cell</summary>{table}</details>")
    more = f"<p>{len(mixes) - LABEL_MIXES} more mixes are not drawn.</p>" if len(mixes) > LABEL_MIXES else ""
    return "".join(drawn) + more


def _error(groups: Sequence[Group]) -> str:
    noisy = [group for group in groups if (group.column("edge_error") > 0).any()]
    return plots_html([error_plot(noisy)], "error") if noisy else ""


def _theory(runs: Sequence[Run]) -> str:
    # The theorems are about disjoint submodels: other methods record constants that no bound goes with.
    hist = [run for run in runs if has_theorems(run.config.method.name)]
    recorded = [run for run in hist if any("theory" in record for record in run.records)]
    parts = []
    for number, run in enumerate(recorded[:THEORIES]):
        try:
            bound = bound_of(run)
        except HistflError as error:
            parts.append(f"<p>{escape(run.name)}: {escape(error)}</p>")
            continue
        words = " ".join(sentences(bound)[:2])
        title = f"The terms for {settings_in_words(run.name)}"
        parts.append(plots_html([bound_plot(bound, title, words)], f"theory-{number}"))
    if len(recorded) > THEORIES:
        parts.append(f"<p>{len(recorded) - THEORIES} more runs have terms: histfl bound shows them.</p>")
    return "".join(parts)


def _configuration(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.summary.get("versions", {}).items())
    machine = " on ".join(str(run.summary[key]) for key in ("engine", "device") if key in run.summary)
    about = " · ".join(part for part in (versions, machine, str(run.summary.get("computing", ""))) if part)
    return (
        f'<details><summary>{escape(run.name)}</summary><p class="quiet">{escape(about)}</p>'
        f"<h3>To run it again</h3><pre>{escape(rerun_command(run))}</pre>"
        f"<h3>Every setting</h3><pre>{escape(run.config.to_toml())}</pre></details>"
    )


def rerun_command(run: Run) -> str:
    """What to type to get the same numbers again."""
    if run.folder is None or run.config.network.profile == "given":
        return "histfl.train(...) with the same model, data and network, and the settings below"
    parts = ["histfl", "run", str(run.folder / "config.toml"), "--out", f"{run.folder}-again"]
    for option in ("engine", "device"):
        if option in run.summary:
            parts += [f"--{option}", str(run.summary[option])]
    return shlex.join(parts)
