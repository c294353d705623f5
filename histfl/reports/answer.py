"""The answer in words and numbers: a sentence, what each group's accuracy cost, and every run's totals.

One table serves the page, the terminal, CSV and LaTeX, so that all of them say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from histfl.errors import article
from histfl.reports.gather import Group, baseline_of, objective_of
from histfl.reports.tables import Cell, Column, Table
from histfl.runs.records import in_megabytes
from histfl.runs.run import Run
from histfl.training.methods import is_baseline
from histfl.training.objective import Objective

COSTS = (
    ("round", "rounds", "d"),
    ("megabytes_per_client", "MB a client", "MB"),
    ("simulated_seconds", "simulated s", ".3g"),
)
TOTALS = (
    ("megabytes_per_client", "MB a client", "MB"),
    ("edge_cloud_megabytes", "MB edge to cloud", "MB"),
    ("simulated_seconds", "simulated s", ".4g"),
    ("energy_joules", "joules", ".4g"),
)


def answer_table(groups: Sequence[Group]) -> Table:
    """A row a group: how good it is at its end, what all rounds cost, and what every target took, with the ratio to
    HFedAvg."""
    targets, objective = targets_of(groups), objective_of(groups)
    columns = [
        Column("run", "run"),
        Column(f"final_{objective.goal}", objective.aim.title),
        Column("megabytes_per_client", "MB a client"),
        Column("simulated_seconds", "simulated s"),
        Column("energy_joules", "joules"),
    ]
    for target in targets:
        columns += _target_columns(target, objective)
    rows = []
    for group in groups:
        base = baseline_of(group, groups)
        row = [
            Cell(group.label, group.label),
            _mean(group, lambda run: run.summary[f"final_{objective.goal}"], ".3f"),
            _mean(group, lambda run: run.summary["megabytes_per_client"], "MB"),
            _mean(group, lambda run: run.summary["simulated_seconds"], ".3g"),
            _mean(group, lambda run: run.summary["energy_joules"], ".3g"),
        ]
        for target in targets:
            for key, _, digits in COSTS:
                row.append(_to_target(group, base, target, key, digits))
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows))


def runs_table(runs: Sequence[Run]) -> Table:
    """A row a run, its totals as summary.json has them."""
    groups = [Group(run.name, (run,)) for run in runs]
    targets, objective = targets_of(groups), objective_of(groups)
    totals = (
        ("rounds", "rounds", "d"),
        ("seed", "seed", "d"),
        (f"final_{objective.goal}", f"final {objective.aim.title}", ".4f"),
        (f"best_{objective.goal}", f"best {objective.aim.title}", ".4f"),
        *TOTALS,
    )
    columns = [
        Column("run", "run"),
        Column("method", "method"),
        *(Column(key, title) for key, title, _ in totals),
    ]
    for target in targets:
        columns += _target_columns(target, objective)
    rows = []
    for run in runs:
        summary = run.summary
        row = [Cell(run.name, run.name), Cell(str(summary["method"]), str(summary["method"]))]
        row += [_cell(summary[key], digits) for key, _, digits in totals]
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
        if not is_baseline(group.method) and (base := baseline_of(group, groups))
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
                f"To {target_in_words(target, objective_of(groups))}, {group.name} sends {in_megabytes(mine)} MB a client where hierarchical FedAvg "
                f"sends {in_megabytes(theirs)} MB: {_times(mine, theirs)}.{also}"
            )
    return (
        f"No target {objective_of(groups).aim.title} was reached by both hierarchical FedAvg and another run."
    )


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


def targets_of(groups: Sequence[Group]) -> list[str]:
    """Of all runs, the one that is hardest to reach last."""
    found = {target for group in groups for run in group.runs for target in run.summary["to_target"]}
    return sorted(found, key=float, reverse=not objective_of(groups).aim.higher_is_better)


def cost_to(group: Group, target: str, key: str) -> float | None:
    """What the group spent to `target`, the mean over its seeds; None unless every seed reached it."""
    reached = [entry for run in group.runs if (entry := run.to_target(target)) is not None]
    return float(np.mean([entry[key] for entry in reached])) if len(reached) == len(group.runs) else None


def shown_target(target: str, objective: Objective) -> str:
    """A target as a number: 80%, or 2.1."""
    return f"{100 * float(target):.4g}%" if objective.aim.is_share else f"{float(target):.4g}"


def target_in_words(target: str, objective: Objective) -> str:
    """80% accuracy, or a loss of 2.1."""
    number, title = shown_target(target, objective), objective.aim.title
    return f"{number} {title}" if objective.aim.is_share else f"{article(title)} of {number}"


def _alone(groups: Sequence[Group]) -> str:
    if len(groups) != 1:
        return (
            f"{objective_of(groups).aim.title.capitalize()} against what it cost. There is no hierarchical FedAvg run of the same model, data and "
            "network to compare with."
        )
    group, objective = groups[0], objective_of(groups)
    mean = {
        key: np.mean([run.summary[key] for run in group.runs])
        for key in (f"final_{objective.goal}", "megabytes_per_client", "simulated_seconds")
    }
    end = float(mean[f"final_{objective.goal}"])
    reached = (
        f"{end:.1%} {objective.aim.title}"
        if objective.aim.is_share
        else f"{article(objective.aim.title)} of {end:.4g}"
    )
    return (
        f"{group.label} is at {reached} after {_rounds(group.num_rounds)}, "
        f"{in_megabytes(mean['megabytes_per_client'])} MB a client and {mean['simulated_seconds']:.3g} simulated seconds."
    )


def _times(mine: float, theirs: float) -> str:
    ratio = theirs / mine
    if f"{ratio:.2g}" == "1":
        return "about the same"
    return f"{ratio:.1f} times less" if ratio > 1 else f"{1 / ratio:.1f} times more"


def _target_columns(target: str, objective: Objective) -> list[Column]:
    to = f"to {shown_target(target, objective)}"
    return [Column(f"to_{target}_{key}", title, to) for key, title, _ in COSTS]


def _mean(group: Group, read: Callable[[Run], float], digits: str) -> Cell:
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
