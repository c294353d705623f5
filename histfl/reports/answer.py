"""The answer in words and numbers: a sentence, what each group's accuracy cost, and every run's totals.

One table serves the page, the terminal, CSV and LaTeX, so that all of them say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np

from histfl.errors import capitalised
from histfl.reports.gather import Group, baseline_of, groups_of, objective_of, pairs_of, same_task
from histfl.reports.tables import Cell, Column, OverSeeds, Table
from histfl.reports.targets import (
    best_first,
    common_level,
    compared_target,
    cost_to,
    hardest_reached,
    over_seeds_to,
    shown_target,
    target_in_words,
    targets_of,
    value_in_words,
)
from histfl.runs.records import in_megabytes, shown_goal, significant
from histfl.runs.run import Run
from histfl.training.objective import Objective

FEW_ROWS = 4  # more of them are read as a list, the best first
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


def in_order(groups: Sequence[Group]) -> list[Group]:
    """The groups as the answer's rows have them."""
    return best_first(groups) if len(groups) > FEW_ROWS else list(groups)


def answer_table(groups: Sequence[Group]) -> Table:
    """A row a group: how good it is at its end, what all rounds cost, and what every target took, with the ratio to
    HFedAvg. Of many groups the best come first."""
    targets, objective = targets_of(groups), objective_of(groups)
    told = {hardest_reached(groups), compared_target(groups)} - {None}
    totals = (("megabytes_per_client", "MB"), ("simulated_seconds", ".3g"), ("energy_joules", ".3g"))
    columns = [
        Column("run", "run"),
        Column(f"final_{objective.goal}", objective.aim.title, over_seeds=True),
        Column("megabytes_per_client", "MB a client", over_seeds=True, telling=not told),
        Column("simulated_seconds", "simulated s", over_seeds=True, telling=not told),
        Column("energy_joules", "joules", over_seeds=True, telling=False),
    ]
    for target in targets:
        columns += _target_columns(target, objective, over_seeds=True, telling=target in told)
    rows = []
    for group in in_order(groups):
        base = baseline_of(group, groups)
        goal = OverSeeds(tuple(run.summary[f"final_{objective.goal}"] for run in group.runs), len(group.runs))
        row = [Cell(group.label, group.label), _mean(goal, lambda value: shown_goal(value, objective))]
        for key, digits in totals:
            over = OverSeeds(tuple(run.summary[key] for run in group.runs), len(group.runs))
            row.append(_mean(over, _writer(digits)))
        for target in targets:
            for key, _, digits in COSTS:
                row.append(_to_target(group, base, target, key, digits))
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows))


def runs_table(runs: Sequence[Run]) -> Table:
    """A row a run, its totals as summary.json has them."""
    targets = targets_of(groups_of(runs))
    objective = runs[0].objective
    totals = (("rounds", "rounds", "d"), ("seed", "seed", "d"), *TOTALS)
    goals = ((f"final_{objective.goal}", "final"), (f"best_{objective.goal}", "best"))
    columns = [
        Column("run", "run"),
        Column("method", "method"),
        *(Column(key, title) for key, title, _ in totals[:2]),
        *(Column(key, f"{title} {objective.aim.title}") for key, title in goals),
        *(Column(key, title) for key, title, _ in totals[2:]),
    ]
    for target in targets:
        columns += _target_columns(target, objective)
    rows = []
    for run in runs:
        summary = run.summary
        row = [Cell(run.name, run.name), Cell(str(summary["method"]), str(summary["method"]))]
        row += [_cell(summary[key], _writer(digits)) for key, _, digits in totals[:2]]
        row += [_cell(summary[key], lambda value: shown_goal(value, objective)) for key, _ in goals]
        row += [_cell(summary[key], _writer(digits)) for key, _, digits in totals[2:]]
        for target in targets:
            reached = run.to_target(target)
            row += [_cell(reached[key] if reached else None, _writer(digits)) for key, _, digits in COSTS]
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows))


def own_data_table(groups: Sequence[Group]) -> Table:
    """A row a group that was evaluated on its clients' or cells' own data: the goal's mean over them, that of the worst
    tenth, and the spread."""
    objective, kinds = objective_of(groups), ("mean", "worst_decile", "spread")
    columns = [Column("run", "run"), Column("per", "on the data of each")]
    columns += [
        Column(kind, title)
        for kind, title in zip(kinds, (f"mean {objective.aim.title}", "worst tenth", "spread"), strict=True)
    ]
    rows = []
    for group in groups:
        lasts = [run.records[-1]["own_data"] for run in group.runs]
        cells = [Cell(group.label, group.label), Cell(lasts[0]["per"], lasts[0]["per"])]
        for kind in kinds:
            value = float(np.mean([last["values"][objective.goal][kind] for last in lasts]))
            cells.append(Cell(shown_goal(value, objective), value))
        rows.append(tuple(cells))
    return Table(tuple(columns), tuple(rows))


def seeds_table(groups: Sequence[Group]) -> Table:
    """How far the seeds scatter: of the goal and of the megabytes to the target that is compared, or else the hardest,
    the mean, its 95 % interval, the standard deviation, the lowest and the highest."""
    objective, target = objective_of(groups), compared_target(groups) or hardest_reached(groups)
    quantities = [(f"final_{objective.goal}", objective.aim.title)]
    if target is not None:
        words = f"MB a client to {shown_target(target, objective)}"
        quantities.append((f"to_{target}_megabytes_per_client", words))
    answer = answer_table(groups)
    keys = [column.key for column in answer.columns]
    titles = ("mean", "standard deviation", "95% interval of the mean", "lowest", "highest", "seeds")
    columns = [Column("run", "run")]
    columns += [Column(f"{key}_{title}", title, words) for key, words in quantities for title in titles]
    rows = []
    for row in answer.rows:
        cells = [row[0]]
        for number, (key, _) in enumerate(quantities):
            write = (lambda value: shown_goal(value, objective)) if number == 0 else in_megabytes
            cells += _scatter(row[keys.index(key)].over, write)
        rows.append(tuple(cells))
    return Table(tuple(columns), tuple(rows))


def _scatter(over: OverSeeds | None, write: Callable[[float], str]) -> list[Cell]:
    if over is None:
        return [*[Cell("", None)] * 5, Cell("0", 0)]
    interval = Cell("", None)
    if over.interval is not None:
        ends = (over.mean - over.interval, over.mean + over.interval)
        interval = Cell(" to ".join(map(write, ends)), over.interval)
    spread = Cell("", None)
    if over.deviation is not None:
        spread = Cell(_deviation(over.deviation, write), over.deviation)
    return [
        Cell(write(over.mean), over.mean),
        spread,
        interval,
        Cell(write(over.lowest), over.lowest),
        Cell(write(over.highest), over.highest),
        Cell(
            f"{len(over.values)} of {over.seeds}" if not over.complete else str(over.seeds), len(over.values)
        ),
    ]


def answer_sentence(groups: Sequence[Group]) -> str:
    """The comparison in a sentence: the cheapest group against hierarchical FedAvg at the hardest target that both
    reach, or else at the best level that they do."""
    objective = objective_of(groups)
    if not (pairs := pairs_of(groups)):
        return _alone(groups)
    none = f"No {objective.aim.title} was reached by both hierarchical FedAvg and another run."
    if (target := compared_target(groups)) is None:
        return none
    costs = []
    for pair in pairs_of(best_first(groups)):  # of equals the first row's
        mine, theirs = (cost_to(a, target, "megabytes_per_client") for a in pair)
        if mine and theirs:
            costs.append((mine, theirs, pair))
    if not costs:
        return none
    mine, theirs, pair = min(costs, key=itemgetter(0))
    seconds = [cost_to(a, target, "simulated_seconds") or 0.0 for a in pair]
    also = f" It takes {_times(*seconds)} simulated time." if all(seconds) else ""
    asked = {target for group in groups for run in group.runs for target in run.summary["to_target"]}
    best = ", the best that both reach" if target == common_level(groups, asked) else ""
    return (
        f"To {target_in_words(target, objective)}{best}, {pair[0].name} sends {in_megabytes(mine)} MB a client "
        f"where hierarchical FedAvg{same_settings(pairs)} sends {in_megabytes(theirs)} MB: {_times(mine, theirs)}.{also}"
    )


def same_settings(pairs: Sequence[tuple[Group, Group]]) -> str:
    """With which of several baselines groups are compared."""
    if len({id(base) for _, base in pairs}) < 2:
        return ""
    alike = all(group.setting == base.setting for group, base in pairs)
    return " with the same settings" if alike else " of the same model, data and network"


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


def _alone(groups: Sequence[Group]) -> str:
    objective = objective_of(groups)
    if len(groups) != 1:
        return f"{_best_alone(groups)} There is no hierarchical FedAvg run of the same model, data and network to compare with."
    group = groups[0]
    mean = {
        key: np.mean([run.summary[key] for run in group.runs])
        for key in (f"final_{objective.goal}", "megabytes_per_client", "simulated_seconds")
    }
    reached = value_in_words(shown_goal(float(mean[f"final_{objective.goal}"]), objective), objective)
    return (
        f"{group.label} is at {reached} after {_rounds(group.num_rounds)}, "
        f"{in_megabytes(mean['megabytes_per_client'])} MB a client and {significant(mean['simulated_seconds'])} simulated seconds."
    )


def _best_alone(groups: Sequence[Group]) -> str:
    """Of several without a baseline, the cheapest to the hardest target, where they are of one task."""
    objective, target = objective_of(groups), hardest_reached(groups)
    if target is None or not same_task(groups):
        return f"{capitalised(objective.aim.title)} against what it cost."
    best = best_first(groups)[0]
    cost = cost_to(best, target, "megabytes_per_client") or 0.0
    return f"To {target_in_words(target, objective)}, {best.name} sends the least: {in_megabytes(cost)} MB a client."


def _times(mine: float, theirs: float) -> str:
    ratio = theirs / mine
    if f"{ratio:.2g}" == "1":
        return "about the same"
    return f"{ratio:.1f} times less" if ratio > 1 else f"{1 / ratio:.1f} times more"


def _target_columns(
    target: str, objective: Objective, *, over_seeds: bool = False, telling: bool = True
) -> list[Column]:
    to = f"to {shown_target(target, objective)}"
    return [Column(f"to_{target}_{key}", title, to, over_seeds, telling) for key, title, _ in COSTS]


def _writer(digits: str) -> Callable[[float], str]:
    if digits == "MB":
        return in_megabytes
    if digits == "d":  # a mean of whole numbers may have a fraction
        return lambda value: f"{value:.1f}".removesuffix(".0")
    return lambda value: significant(value, int(digits[1]))


def _mean(over: OverSeeds, write: Callable[[float], str], note: str = "") -> Cell:
    low, high = write(over.lowest), write(over.highest)
    if over.deviation is None or low == high:
        return Cell(write(over.mean), over.mean, note, over)
    return Cell(
        write(over.mean), over.mean, note, over, f"± {_deviation(over.deviation, write)}", f"{low} to {high}"
    )


def _deviation(value: float, write: Callable[[float], str]) -> str:
    """A standard deviation to two digits, in the mean's unit; of shares in points of a hundred."""
    if write(0.5).endswith("%"):
        return f"{100 * value:.1f}"
    return f"{value:.0f}" if value >= 100 else significant(value, 2)


def _to_target(group: Group, base: Group | None, target: str, key: str, digits: str) -> Cell:
    over, write = over_seeds_to(group, target, key), _writer(digits)
    if over is None:
        return Cell("not reached", None)
    if not over.complete:
        return Cell(
            f"{len(over.values)} of {over.seeds} seeds",
            None,
            over=over,
            deviation=f"(these: {write(over.mean)})",
        )
    theirs = cost_to(base, target, key) if base is not None and base is not group else None
    cell = _mean(over, write, _ratio(over.mean, theirs) if over.mean and theirs else "")
    return cell


def _ratio(mine: float, theirs: float) -> str:
    text = f"{max(theirs / mine, mine / theirs):.1f}"
    return "equal" if text == "1.0" else f"{text}× {'less' if mine < theirs else 'more'}"


def _cell(value: float | None, write: Callable[[float], str]) -> Cell:
    if value is None:
        return Cell("not reached", None)
    return Cell(write(value), value)
