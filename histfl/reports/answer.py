"""The answer in words and numbers: a sentence, what each group's accuracy cost, and every run's totals.

One table serves the page, the terminal, CSV and LaTeX, so that all of them say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from histfl.reports.gather import ShownRun
from histfl.reports.groups import Group, baseline_of
from histfl.runs.records import in_megabytes

COSTS = (
    ("round", "rounds", "d"),
    ("megabytes_per_client", "MB a client", "MB"),
    ("simulated_seconds", "simulated s", ".3g"),
)
TOTALS = (
    ("rounds", "rounds", "d"),
    ("seed", "seed", "d"),
    ("final_accuracy", "final accuracy", ".4f"),
    ("best_accuracy", "best accuracy", ".4f"),
    ("megabytes_per_client", "MB a client", "MB"),
    ("edge_cloud_megabytes", "MB edge to cloud", "MB"),
    ("simulated_seconds", "simulated s", ".4g"),
    ("energy_joules", "joules", ".4g"),
)


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


def answer_table(groups: Sequence[Group]) -> Table:
    """A row a group: final accuracy, what all rounds cost, and what every target took, with the ratio to HFedAvg."""
    targets = targets_of(groups)
    columns = [
        Column("run", "run"),
        Column("final_accuracy", "accuracy"),
        Column("megabytes_per_client", "MB a client"),
        Column("simulated_seconds", "simulated s"),
        Column("energy_joules", "joules"),
    ]
    for target in targets:
        columns += _target_columns(target)
    rows = []
    for group in groups:
        base = baseline_of(group, groups)
        row = [
            Cell(group.label, group.label),
            _mean(group, lambda run: run.summary["final_accuracy"], ".3f"),
            _mean(group, lambda run: run.summary["megabytes_per_client"], "MB"),
            _mean(group, lambda run: run.summary["simulated_seconds"], ".3g"),
            _mean(group, lambda run: run.summary["energy_joules"], ".3g"),
        ]
        for target in targets:
            for key, _, digits in COSTS:
                row.append(_to_target(group, base, target, key, digits))
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows))


def runs_table(runs: Sequence[ShownRun]) -> Table:
    """A row a run, its totals as summary.json has them."""
    targets = targets_of([Group(run.name, (run,)) for run in runs])
    columns = [
        Column("run", "run"),
        Column("method", "method"),
        *(Column(key, title) for key, title, _ in TOTALS),
    ]
    for target in targets:
        columns += _target_columns(target)
    rows = []
    for run in runs:
        summary = run.summary
        row = [Cell(run.name, run.name), Cell(str(summary["method"]), str(summary["method"]))]
        row += [_cell(summary[key], digits) for key, _, digits in TOTALS]
        for target in targets:
            reached = run.to_target(target)
            row += [_cell(reached[key] if reached else None, digits) for key, _, digits in COSTS]
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows))


def answer_sentence(groups: Sequence[Group]) -> str:
    """The comparison in a sentence: the cheapest group against hierarchical FedAvg at the highest target."""
    pairs = [
        (group, base)
        for group in groups
        if group.method != "hfedavg" and (base := baseline_of(group, groups))
    ]
    if not pairs:
        return _alone(groups)
    for target in reversed(targets_of(groups)):
        both = []
        for group, base in pairs:
            mine, theirs = (cost_to(a, target, "megabytes_per_client") for a in (group, base))
            if mine and theirs:
                both.append((theirs / mine, mine, theirs, group, base))
        if both:
            _, mine, theirs, group, base = max(both, key=lambda entry: entry[0])
            seconds = [cost_to(a, target, "simulated_seconds") or 0.0 for a in (group, base)]
            also = f" It takes {_times(*seconds)} simulated time." if all(seconds) else ""
            return (
                f"To {percent(target)} accuracy, {group.name} sends {in_megabytes(mine)} MB a client where hierarchical FedAvg "
                f"sends {in_megabytes(theirs)} MB: {_times(mine, theirs)}.{also}"
            )
    return "No target accuracy was reached by both hierarchical FedAvg and another run."


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


def targets_of(groups: Sequence[Group]) -> list[str]:
    return sorted(
        {target for group in groups for run in group.runs for target in run.summary["to_target"]}, key=float
    )


def cost_to(group: Group, target: str, key: str) -> float | None:
    """What the group spent to `target`, the mean over its seeds; None unless every seed reached it."""
    reached = [entry for run in group.runs if (entry := run.to_target(target)) is not None]
    return float(np.mean([entry[key] for entry in reached])) if len(reached) == len(group.runs) else None


def percent(target: str) -> str:
    return f"{100 * float(target):.4g}%"


def _alone(groups: Sequence[Group]) -> str:
    if len(groups) != 1:
        return (
            "Accuracy against what it cost. There is no hierarchical FedAvg run of the same model, data and "
            "network to compare with."
        )
    group = groups[0]
    mean = {
        key: np.mean([run.summary[key] for run in group.runs])
        for key in ("final_accuracy", "megabytes_per_client", "simulated_seconds")
    }
    return (
        f"{group.label} is at {mean['final_accuracy']:.1%} accuracy after {_rounds(group.num_rounds)}, "
        f"{in_megabytes(mean['megabytes_per_client'])} MB a client and {mean['simulated_seconds']:.3g} simulated seconds."
    )


def _times(mine: float, theirs: float) -> str:
    ratio = theirs / mine
    if f"{ratio:.2g}" == "1":
        return "about the same"
    return f"{ratio:.1f} times less" if ratio > 1 else f"{1 / ratio:.1f} times more"


def _target_columns(target: str) -> list[Column]:
    return [Column(f"to_{target}_{key}", title, f"to {percent(target)}") for key, title, _ in COSTS]


def _mean(group: Group, read: Callable[[ShownRun], float], digits: str) -> Cell:
    values = [read(run) for run in group.runs]
    low, high = _written(min(values), digits), _written(max(values), digits)
    spread = f"{low} to {high}" if low != high else ""
    mean = float(np.mean(values)) if len(values) > 1 else values[0]
    return Cell(_written(mean, digits), mean, spread)


def _written(value: float, digits: str) -> str:
    return in_megabytes(value) if digits == "MB" else f"{value:{digits}}"


def _to_target(group: Group, base: Group | None, target: str, key: str, digits: str) -> Cell:
    cost = cost_to(group, target, key)
    if cost is None:
        reached = sum(run.to_target(target) is not None for run in group.runs)
        return Cell(f"{reached} of {len(group.runs)} seeds" if reached else "not reached", None)
    theirs = cost_to(base, target, key) if base is not None and base is not group else None
    note = _ratio(cost, theirs) if cost and theirs else ""
    if digits == "d":
        return Cell(f"{cost:.4g}", int(cost) if cost == int(cost) else cost, note)
    return Cell(_written(cost, digits), cost, note)


def _ratio(mine: float, theirs: float) -> str:
    text = f"{max(theirs / mine, mine / theirs):.1f}"
    return "equal" if text == "1.0" else f"{text}× {'less' if mine < theirs else 'more'}"


def _cell(value: float | None, digits: str) -> Cell:
    if value is None:
        return Cell("not reached", None)
    return Cell(_written(value, digits), value)
