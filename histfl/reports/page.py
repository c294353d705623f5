"""report.html: the answer first, then what it rests on; opens from disk and asks nothing of the network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from histfl.errors import HistflError, capitalised
from histfl.files import write_whole
from histfl.reports.answer import (
    FEW_ROWS,
    answer_sentence,
    answer_table,
    in_order,
    own_data_table,
    runs_table,
    same_settings,
    seeds_table,
)
from histfl.reports.bound import bound_of
from histfl.reports.bound_page import bound_plot, sentences
from histfl.reports.factors import looks_of
from histfl.reports.figures import (
    AXES,
    accuracy_plot,
    cell_plot,
    error_plot,
    own_data_plot,
    part_plot,
    size_plot,
    told_error,
    told_own_data,
)
from histfl.reports.gather import Gathered, Group, groups_of, objective_of, pairs_of
from histfl.reports.heat import heat_plots
from histfl.reports.html import breakable, controls_html, escape, page, plots_html, table_html
from histfl.reports.measured import CAPTION, deployed, measured_plot, measured_table
from histfl.reports.pictures import label_plot, label_table, partition_plot, partition_table
from histfl.reports.plots import Plot
from histfl.runs.arms import settings_in_words
from histfl.runs.run import Run
from histfl.training.methods import has_theorems

PARTITIONS, LABEL_MIXES, THEORIES, DEPLOYED = (
    6,
    3,
    4,
    4,
)  # pictures on one page; the rest is a report of their own


COUNTED = (
    "MB a client: what it sends to its edge, in 2^20 bytes. Simulated seconds: computing and uplink of the slowest "
    "clients; the downlink and the link to the cloud are not counted."
)

SCATTER = (
    "A mean with its 95% interval (Student's t, n - 1 degrees of freedom), the standard deviation of a seed, and the "
    "lowest and the highest seed."
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
            _state(gathered, refresh_seconds),
            _answer(groups),
            f'<nav aria-label="Contents"><ul>{contents}</ul></nav>',
            controls_html(looks_of(groups)),
            *(
                f'<section aria-labelledby="{key}"><h2 id="{key}">{escape(name)}</h2>{html}</section>'
                for key, name, html in sections
            ),
        ]
    )
    answer = answer_sentence(groups) if groups else "No run can be shown."
    return page(title, answer, body, refresh_seconds=refresh_seconds)


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
    numbers, many = {len(group.runs) for group in groups}, len(groups) > FEW_ROWS
    caption = f"What {objective_of(groups).aim.title} cost"
    if numbers != {1}:
        each = f"{min(numbers)} seeds each" if len(numbers) == 1 else "several seeds"
        caption += f"; {each}: their mean ± the standard deviation"
        caption += (
            " (lowest and highest: Over the seeds)" if many else ", and below it the lowest and the highest"
        )
    if pairs := pairs_of(groups):
        caption += f"; below a cost its ratio to hierarchical FedAvg{same_settings(pairs)}"
    if many:
        caption += "; the best first"
    order = [groups.index(group) for group in in_order(groups)]
    return table_html(answer_table(groups), f"{caption}. {COUNTED}", "answer", groups=order, reach=not many)


def _sections(groups: Sequence[Group], runs: Sequence[Run]) -> Iterator[tuple[str, str, str]]:
    """Anchor, title and body; a section without a body is left out."""
    if not groups:
        return
    yield (
        "accuracy",
        f"{capitalised(objective_of(groups).aim.title)} against its cost",
        plots_html([accuracy_plot(groups, key) for key in AXES], "accuracy"),
    )
    yield "own-data", "On the data of those who train", _own_data(groups)
    yield "heat", "What the settings do", _grid(heat_plots(groups), "heat")
    yield "latency", "Where the time goes", plots_html([part_plot(groups), cell_plot(groups)], "latency")
    yield "measured", "Measured beside simulated", _measured(runs)
    yield "sizes", "Submodel sizes", plots_html([size_plot(groups)], "sizes")
    yield "partition", "The partition of the last round", _partition(groups)
    yield "labels", "Who holds which labels", _labels(runs)
    yield "error", "Over-the-air error", _error(groups)
    yield "theory", "The convergence bound", _theory(runs)
    if any(len(group.runs) > 1 for group in groups):
        order = [groups.index(group) for group in in_order(groups)]
        yield "seeds", "Over the seeds", table_html(seeds_table(groups), SCATTER, "scatter", groups=order)
    of_run = {id(run): place for place, group in enumerate(groups) for run in group.runs}
    caption = "Totals of every run, as its summary.json has them."
    table = table_html(runs_table(runs), caption, "every", groups=[of_run[id(run)] for run in runs])
    yield "runs", "Every run", table
    yield "configuration", "Configuration, versions and command", "".join(map(_configuration, runs))


def _own_data(groups: Sequence[Group]) -> str:
    if not (told := told_own_data(groups)):
        return ""
    table = table_html(own_data_table(told), "After the last round; several seeds: their mean.", "own")
    return plots_html([own_data_plot(groups)], "own") + table


def _measured(runs: Sequence[Run]) -> str:
    if not (told := deployed(runs)):
        return ""
    plots = [measured_plot(run) for run in told[:DEPLOYED]]
    return plots_html(plots, "measured") + table_html(measured_table(told), CAPTION, "measured-table")


def _grid(plots: Sequence[Plot], key: str) -> str:
    return plots_html(plots, key) if plots else ""


def _partition(groups: Sequence[Group]) -> str:
    """Groups that deal their units alike have the same picture, which is drawn once."""
    pictures: dict[str, list[Group]] = {}
    for group in groups:
        if partition := group.runs[0].pictures.get("partition"):
            pictures.setdefault(repr(partition["layers"]), []).append(group)
    drawn, whole = list[str](), ""
    named = [[group.name for group in alike] for alike in pictures.values()]
    for place, alike in enumerate(pictures.values()):
        partition, names = alike[0].runs[0].pictures["partition"], _names(named, place)
        if not partition["layers"]:
            whole = f"<p>{escape(names)}: every cell holds the whole model.</p>"
            continue
        number = f"partition-{len(drawn)}"
        cut = max(layer["units"] - len(layer["owner"]) for layer in partition["layers"])
        more = " Of long layers the first units are drawn." if cut else ""
        if hidden := partition["groups"] - len(partition["layers"]):
            more += f" {_more(hidden, 'layer')} not drawn."
        text = f"A stripe is a unit, its colour the cell that holds it in round {partition['round']}.{more}"
        table = table_html(partition_table(partition), "Units drawn, by layer and cell.", f"table-{number}")
        plot = plots_html([partition_plot(partition, names, text)], number)
        drawn.append(f"{plot}<details><summary>The numbers</summary>{table}</details>")
    left = len(drawn) - PARTITIONS
    more_groups = f"<p>{_more(left, 'partition')} not drawn.</p>" if left > 0 else ""
    return "".join(drawn[:PARTITIONS]) + more_groups + whole


def _names(named: list[list[str]], place: int) -> str:
    """What the names at `place` have in common and none elsewhere has; else the first three, and how many more."""
    names, others = named[place], [name for each in named[:place] + named[place + 1 :] for name in each]
    if len(names) > 3 and not others:
        return f"all {len(names)}"
    settings = [name.split(", ") for name in names]
    common = [setting for setting in settings[0] if all(setting in each for each in settings)]
    if common and not any(set(common) <= set(other.split(", ")) for other in others):
        return ", ".join(common)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more


def _more(number: int, thing: str, things: str = "") -> str:
    return f"1 more {thing} is" if number == 1 else f"{number} more {things or thing + 's'} are"


def _labels(runs: Sequence[Run]) -> str:
    """Runs on the same data have the same mix, which is drawn once."""
    mixes: dict[str, list[Run]] = {}
    for run in runs:
        if labels := run.pictures.get("labels"):
            mixes.setdefault(repr(labels), []).append(run)
    drawn, named = [], [[settings_in_words(run.name) for run in same] for same in mixes.values()]
    for number, same in enumerate(list(mixes.values())[:LABEL_MIXES]):
        labels = same[0].pictures["labels"]
        text = "A column is a client, a row a class; lines part the cells."
        if labels["clients"] > len(labels["shown_clients"]):
            text += f" {len(labels['shown_clients'])} of {labels['clients']} clients are drawn."
        title = f"Samples by client and label: {_names(named, number)}"
        plot = plots_html([label_plot(labels, title, text)], f"labels-{number}")
        table = table_html(label_table(labels), "Samples by cell and label.", f"table-labels-{number}")
        drawn.append(f"{plot}<details><summary>The numbers by cell</summary>{table}</details>")
    left = len(mixes) - LABEL_MIXES
    more = f"<p>{_more(left, 'mix', 'mixes')} not drawn.</p>" if left > 0 else ""
    return "".join(drawn) + more


def _error(groups: Sequence[Group]) -> str:
    return plots_html([error_plot(groups)], "error") if told_error(groups) else ""


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
    if (left := len(recorded) - THEORIES) > 0:
        parts.append(f"<p>{_more(left, 'run')} not drawn: histfl bound shows the terms.</p>")
    return "".join(parts)


def _configuration(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.summary.get("versions", {}).items())
    machine = " on ".join(str(run.summary[key]) for key in ("engine", "device") if key in run.summary)
    promised = run.summary.get("privacy") or {}
    said = (str(table.get(key, "")) for table, key in ((run.summary, "computing"), (promised, "sentence")))
    about = " · ".join(part for part in (versions, machine, *said) if part)
    return (
        f'<details><summary>{breakable(run.name)}</summary><p class="quiet">{escape(about)}</p>'
        f"<h3>To run it again</h3><pre>{escape(rerun_command(run))}</pre>"
        f"<h3>Every setting</h3><pre>{escape(run.config.to_toml())}</pre></details>"
    )


def rerun_command(run: Run) -> str:
    """What to type to get the same numbers again."""
    if run.folder is None or run.config.network.profile == "given":
        return "histfl.train(...) with the same model, data and network, and the settings below"
    config, again = str(run.folder / "config.toml"), f"{run.folder}-again"
    if deployed([run]):
        return shlex.join(["histfl", "cloud", "KIT", config, "--out", again])
    parts = ["histfl", "run", config, "--out", again]
    for option in ("engine", "device"):
        if option in run.summary:
            parts += [f"--{option}", str(run.summary[option])]
    return shlex.join(parts)
