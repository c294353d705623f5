"""What two factors do to the cost of a target: a field a combination, the cheaper the darker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from histfl.reports.factors import FEW_LINES, Factor, factors_of
from histfl.reports.figures import FAR_APART
from histfl.reports.gather import Group, objective_of
from histfl.reports.plots import Axis, HeatMap, Plot
from histfl.reports.targets import cost_to, hardest_reached, target_in_words
from histfl.runs.records import in_megabytes, shown_goal

UNREACHED = "–"  # has room in the narrowest field
MAPS = 4  # beside each other, one for each value of a third factor


def heat_plots(groups: Sequence[Group]) -> list[Plot]:
    """Megabytes a client to the hardest target over the two factors of most values, a map for each value of a third;
    where no target is reached, the goal itself. Nothing where two factors do not vary."""
    factors = [factor for factor in factors_of(groups) if factor.title != "run"]
    if len(groups) <= FEW_LINES or len(factors) < 2:
        return []
    across, down, *others = sorted(factors, key=lambda factor: -len(factor.values))
    third = next((factor for factor in others if len(factor.values) <= MAPS), None)
    what, scores, texts = _scores(groups)
    about = "The darker, the better"
    if UNREACHED in texts:
        about += f"; {UNREACHED}: not reached"
    about += ". Of what else varies, the best." if len(others) > bool(third) else "."
    parts = [(what, list(range(len(groups))))]
    if third is not None:
        parts = [
            (f"{what}: {third.title} {value}", [i for i in parts[0][1] if third.of[i] == place])
            for place, value in enumerate(third.values)
        ]
    known = [score for score in scores if np.isfinite(score)]
    limits = (min(known), max(known)) if known else (0.0, 1.0)
    return [
        _map(title, about, (across, down), [(i, scores[i], texts[i]) for i in shown], limits)
        for title, shown in parts
    ]


def _scores(groups: Sequence[Group]) -> tuple[str, list[float], list[str]]:
    """What is shown, and of every group a number that is lower where it is better (nan: none), and how it reads."""
    objective, target = objective_of(groups), hardest_reached(groups)
    title = objective.aim.title
    if target is None:
        ends = [
            float(np.mean([run.summary[f"final_{objective.goal}"] for run in group.runs])) for group in groups
        ]
        sign = -1.0 if objective.aim.higher_is_better else 1.0
        return (
            f"{title.capitalize()} at the end",
            [sign * end for end in ends],
            [shown_goal(end, objective) for end in ends],
        )
    costs = [cost_to(group, target, "megabytes_per_client") for group in groups]
    known = [cost for cost in costs if cost]
    far = bool(known) and max(known) > FAR_APART * min(known)
    scores = [float("nan") if not cost else float(np.log10(cost)) if far else cost for cost in costs]
    texts = [UNREACHED if cost is None else in_megabytes(cost) for cost in costs]
    return f"MB a client to {target_in_words(target, objective)}", scores, texts


def _map(
    title: str,
    about: str,
    factors: tuple[Factor, Factor],
    shown: Sequence[tuple[int, float, str]],
    limits: tuple[float, float],
) -> Plot:
    across, down = factors
    fields = np.full((len(down.values), len(across.values)), np.nan)
    texts = [["" for _ in across.values] for _ in down.values]
    for index, score, text in shown:
        row, column = down.of[index], across.of[index]
        if not texts[row][column] or score < fields[row, column] or np.isnan(fields[row, column]):
            fields[row, column], texts[row][column] = score, text
    heat = HeatMap(
        fields,
        "Teal_r",
        title="",
        hover="%{text}",
        gaps=(2, 2),
        texts=tuple(map(tuple, texts)),
        limits=limits,
    )
    return Plot(
        title,
        about,
        Axis(across.title, ticks=tuple(enumerate(across.values)), limits=(-0.5, len(across.values) - 0.5)),
        Axis(down.title, ticks=tuple(enumerate(down.values)), downwards=True),
        (heat,),
        height=120 + 44 * len(down.values),
    )
