"""Targets of the objective's goal: which ones a comparison speaks of, what they cost, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from histfl.errors import article
from histfl.reports.gather import Group, objective_of, pairs_of
from histfl.reports.tables import OverSeeds
from histfl.training.objective import Objective

SHARE_STEP = 1e-3  # to which a level of accuracy is rounded


def targets_of(groups: Sequence[Group]) -> list[str]:
    """Of all runs, the one that is hardest to reach last. Where none is reached by both of any pair that is compared,
    the highest level that both of one reach is there too."""
    objective = objective_of(groups)
    found = {target for group in groups for run in group.runs for target in run.summary["to_target"]}
    if (level := common_level(groups, found)) is not None:
        found.add(level)
    return sorted(found, key=float, reverse=not objective.aim.higher_is_better)


def common_level(groups: Sequence[Group], targets: set[str]) -> str | None:
    """The best value of the goal that a run and its baseline both reach, rounded to what is easier; None where
    nothing is compared, or a target serves."""
    pairs, objective = pairs_of(groups), objective_of(groups)
    if not pairs or any(_reached(group, t) and _reached(base, t) for t in targets for group, base in pairs):
        return None
    worst = min if objective.aim.higher_is_better else max
    best = f"best_{objective.goal}"
    levels = [worst(run.summary[best] for group in pair for run in group.runs) for pair in pairs]
    return f"{_eased(objective.best(levels), objective):g}"


def _reached(group: Group, target: str) -> bool:
    return all(run.to_target(target) is not None for run in group.runs)


def _eased(value: float, objective: Objective) -> float:
    if objective.aim.is_share or value == 0:
        step = SHARE_STEP
    else:
        step = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    down = objective.aim.higher_is_better
    return (math.floor(value / step) if down else math.ceil(value / step)) * step


def over_seeds_to(group: Group, target: str, key: str) -> OverSeeds | None:
    """What the seeds that came to `target` spent until then; None where none did."""
    reached = [entry for run in group.runs if (entry := run.to_target(target)) is not None]
    return OverSeeds(tuple(entry[key] for entry in reached), len(group.runs)) if reached else None


def cost_to(group: Group, target: str, key: str) -> float | None:
    """What the group spent to `target`, the mean over its seeds; None unless every seed reached it."""
    over = over_seeds_to(group, target, key)
    return over.mean if over is not None and over.complete else None


def hardest_reached(groups: Sequence[Group]) -> str | None:
    """The hardest target that all seeds of some group reach."""
    reached = (t for t in reversed(targets_of(groups)) if any(_reached(group, t) for group in groups))
    return next(reached, None)


def compared_target(groups: Sequence[Group]) -> str | None:
    """The hardest target that a group and the baseline it is compared with reach with all their seeds."""
    pairs = pairs_of(groups)
    reached = (
        t for t in reversed(targets_of(groups)) if any(_reached(a, t) and _reached(b, t) for a, b in pairs)
    )
    return next(reached, None)


def best_first(groups: Sequence[Group]) -> list[Group]:
    """In the order of the megabytes to the hardest target; those that do not reach it by the next one, and last by the
    goal itself."""
    objective, targets = objective_of(groups), targets_of(groups)
    sign = -1.0 if objective.aim.higher_is_better else 1.0

    def place(group: Group) -> tuple[float, ...]:
        costs = (cost_to(group, target, "megabytes_per_client") for target in reversed(targets))
        ends = [run.summary[f"final_{objective.goal}"] for run in group.runs]
        return (*(math.inf if cost is None else cost for cost in costs), sign * sum(ends) / len(ends))

    return sorted(groups, key=place)


def shown_target(target: str, objective: Objective) -> str:
    """A target as a number: 80%, or 2.1."""
    return f"{100 * float(target):.4g}%" if objective.aim.is_share else f"{float(target):.4g}"


def target_in_words(target: str, objective: Objective) -> str:
    """80% accuracy, 0.7 mIoU, or a loss of 2.1."""
    return value_in_words(shown_target(target, objective), objective)


def value_in_words(number: str, objective: Objective) -> str:
    """A value of the goal that is written as `number`."""
    title = objective.aim.title
    return f"{number} {title}" if objective.aim.higher_is_better else f"{article(title)} of {number}"
