"""Rows that judge a claim: every verdict is computed from the numbers, none is typed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Literal

from histfl.reproduce.artefact import Row, Verdict
from histfl.reproduce.results import Spread

Direction = Literal["rises", "falls"]


def judged(condition: bool, *needed: Spread) -> Verdict:
    """The claim's verdict; not yet run while a quantity that it needs has no value, or a run goes on to it."""
    if not all(spread.known and not spread.waiting for spread in needed):
        return "not yet run"
    return "yes" if condition else "no"


def trend(
    what: str, points: Mapping[str, Spread], direction: Direction, *, digits: str = ".3g", why: str = ""
) -> Row:
    """The claim that the means rise or fall from each point to the next.

    Where they do not, the row tells which steps, whether the seeds tell their points apart, and `why`; where they
    do, the steps whose points the seeds do not tell apart.
    """
    if len(points) < 2:
        raise ValueError(f"{what}: a trend needs two points, not {list(points)}")
    steps = list(itertools.pairwise(points.items()))
    close = [f"{first} to {second}" for (first, a), (second, b) in steps if _overlap(a, b)]
    failing = [
        f"{first} to {second}" + (" (the seeds' ranges overlap)" if _overlap(a, b) else "")
        for (first, a), (second, b) in steps
        if not (b.mean > a.mean if direction == "rises" else b.mean < a.mean)
    ]
    verdict = judged(not failing, *points.values())
    reason = ""
    if verdict == "no":
        reason = f"Not from {', nor from '.join(failing)}. {why}".strip()
    elif verdict == "yes" and close:
        reason = f"The seeds' ranges overlap from {' and from '.join(close)}."
    return Row(what, direction, in_words(points, digits), verdict, reason, numbers(points))


def _overlap(one: Spread, other: Spread) -> bool:
    """Whether the ranges of several seeds have values in common."""
    ranges = [[value for value in spread.values if value is not None] for spread in (one, other)]
    if any(len(values) < 2 for values in ranges):
        return False
    return max(map(min, ranges)) <= min(map(max, ranges))


def versus(
    what: str,
    claim: Literal["lower", "higher"],
    ours: Mapping[str, Spread],
    theirs: Mapping[str, Spread],
    *,
    names: tuple[str, str] = ("HIST", "HFedAvg"),
    digits: str = ".3g",
    why: str = "",
) -> Row:
    """The claim that the first of `names` is lower (higher) than the second at every point."""
    lost = [
        f"{point} (not reached by all seeds)" if math.isinf(mine.mean) else point
        for point, mine in ours.items()
        if not (mine.mean < theirs[point].mean if claim == "lower" else mine.mean > theirs[point].mean)
    ]
    verdict = judged(not lost, *ours.values(), *theirs.values())
    text = "; ".join(
        f"{point}: {mine.text(digits)} against {theirs[point].text(digits)}" for point, mine in ours.items()
    )
    if not any(spread.known for spread in (*ours.values(), *theirs.values())):
        text = "not yet run"
    reason = f"Not {claim}: {', '.join(lost)}. {why}".strip()
    return Row(
        f"{what}, {names[0]} against {names[1]}",
        f"{names[0]} {claim}",
        text,
        verdict,
        reason if verdict == "no" else "",
        {f"{names[0]}, {key}": value for key, value in numbers(ours).items()}
        | {f"{names[1]}, {key}": value for key, value in numbers(theirs).items()},
    )


def told(what: str, points: Mapping[str, Spread], *, digits: str = ".3g", paper: str = "no claim") -> Row:
    """Numbers that the paper makes no claim about."""
    return Row(what, paper, in_words(points, digits), values=numbers(points))


def in_words(points: Mapping[str, Spread], digits: str = ".3g") -> str:
    """`N=2: 103 (99 to 108); N=4: 74`"""
    if not any(spread.known for spread in points.values()):
        return "not yet run"
    return "; ".join(f"{name}: {spread.text(digits)}" for name, spread in points.items())


def numbers(points: Mapping[str, Spread]) -> dict[str, float | None]:
    return {name: spread.number for name, spread in points.items()}
