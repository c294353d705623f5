"""The paper's points by topic, and rows that judge a claim: every verdict is computed from the numbers, none is typed."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from histfl.reproduce.artefact import HOLDS, Row, Verdict
from histfl.reproduce.results import Spread

# Every claim is a case of one of these points, which read on with `in 3 of 4`.
CHEAPER = "HIST sends less to a target, or at an equal load is more accurate,"
AS_MUCH = "its saving is within 25 % of the paper's"
GAINS = "HIST gains as cells are added"
LOSES = "HFedAvg loses by that, where all is non-i.i.d.,"
TOO_SMALL = "submodels become too small at 8 or 10 cells"

FEW_ROUNDS = "optimised sizes take hardly more rounds"
LESS_TIME = "they take less time than uniform sizes and than HFedAvg"
FASTER = "latencies fall up to 6 cells"
SLOWER = "they rise from 6 to 8"

TRAINS = "AirComp trains as orthogonal uplinks do above -10 dB and breaks at -20 dB"
FASTEST = "HIST over the air is the fastest of the schemes"
SNR = "latencies fall as the SNR grows"
CLIENTS = "more clients a cell slow orthogonal uplinks down and AirComp as the paper says"

PARTICIPANTS = "more participants train faster"
MATTERS = "that matters more where all is non-i.i.d."
EDGE_ROUNDS = "more edge rounds a global round train faster"
LOCAL_STEPS = "more local steps help as far as the paper says"

TOPICS = {
    "HIST costs less than HFedAvg at equal accuracy": (CHEAPER, AS_MUCH),
    "The gain grows with N": (GAINS, LOSES, TOO_SMALL),
    "Sizing": (FEW_ROUNDS, LESS_TIME, FASTER, SLOWER),
    "AirComp": (TRAINS, FASTEST, SNR, CLIENTS),
    "Participation and periods": (PARTICIPANTS, MATTERS, EDGE_ROUNDS, LOCAL_STEPS),
}

Direction = Literal["rises", "falls"]
Better = Literal["lower", "higher"]
# Of from and to; of ours and theirs.
GOES: dict[Direction, Callable[[float, float], bool]] = {"rises": operator.lt, "falls": operator.gt}
IS: dict[Better, Callable[[float, float], bool]] = {"lower": operator.lt, "higher": operator.gt}
WORST_FIRST: tuple[Verdict, ...] = ("not yet run", "no", "no, but seeds differ", "of the means alone", "yes")


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict, and the seeds of which it is true; `where` it holds, if at some of its points alone."""

    verdict: Verdict
    agree: int = 0
    seeds: int = 0
    where: str = ""

    @property
    def note(self) -> str:
        """How far the verdict goes."""
        return self.where or ("one seed" if self.seeds == 1 and self.verdict != "not yet run" else "")

    @property
    def share(self) -> str:
        return f"in {self.agree} of {self.seeds} seeds"


def judged(claim: Callable[..., bool], *needed: Spread) -> Judgement:
    """Whether `claim`, of a number for each of `needed`, is true of their means, and of every seed's own numbers.

    Not yet run while a quantity that it needs has no value, or a run goes on to it.
    """
    if not all(spread.known and not spread.waiting for spread in needed):
        return Judgement("not yet run")
    seeds = set.intersection(*(set(spread.by_seed) for spread in needed))
    agree = sum(claim(*(spread.of(seed) for spread in needed)) for seed in seeds)
    verdict: Verdict
    if claim(*(spread.mean for spread in needed)):
        verdict = "yes" if agree == len(seeds) else "of the means alone"
    else:
        verdict = "no, but seeds differ" if agree else "no"
    return Judgement(verdict, agree, len(seeds))


def in_all(parts: Iterable[Judgement]) -> Judgement:
    """Of a claim that is made of several: as its worst part."""
    return min(parts, key=lambda part: (WORST_FIRST.index(part.verdict), part.seeds))


def at_points(points: Mapping[str, Judgement], *, ordered: bool = True) -> Judgement:
    """Of a claim at several points, which holds in part where it is lost at some of them alone."""
    whole, names = in_all(points.values()), list(points)
    held = [name for name in names if points[name].verdict in HOLDS]
    if whole.verdict != "no" or not held:
        return whole
    where = f"not for {', '.join(name for name in names if name not in held)}"
    if ordered and held == names[-len(held) :]:
        where = f"from {held[0]} on"
    elif ordered and held == names[: len(held)]:
        where = f"up to {held[-1]}"
    if in_all(points[name] for name in held).verdict != "yes":
        where = f"{where}, of the means alone"
    return Judgement("in part", whole.agree, whole.seeds, where)


def claim(
    what: str,
    paper: str,
    judgement: Judgement,
    points: Mapping[str, Spread],
    *,
    digits: str = ".3g",
    ours: str = "",
    why: str = "",
    point: str = "",
) -> Row:
    """The row of a judged claim: its numbers, in words as `ours` where they are told otherwise, and `why` it does not hold."""
    reason = ""
    if judgement.verdict in ("of the means alone", "no, but seeds differ"):
        reason = f"True {judgement.share}. "
    if judgement.verdict not in (*HOLDS, "not yet run"):
        reason += why
    text, values = ours or in_words(points, digits), numbers(points)
    return Row(what, paper, text, judgement.verdict, reason.strip(), values, point, judgement.note)


def trend(
    what: str,
    points: Mapping[str, Spread],
    direction: Direction,
    *,
    digits: str = ".3g",
    why: str = "",
    point: str = "",
) -> Row:
    """The claim that the means rise or fall from each point to the next.

    Where they do not, the row tells which steps, how many seeds go another way than the means, and `why`.
    """
    if len(points) < 2:
        raise ValueError(f"{what}: a trend needs two points, not {list(points)}")
    steps = {
        f"from {first} to {second}": judged(GOES[direction], a, b)
        for (first, a), (second, b) in itertools.pairwise(points.items())
    }
    row = claim(what, direction, in_all(steps.values()), points, digits=digits, point=point)
    return replace(row, why=_of_points(row.verdict, steps, "Not", why, between=", nor "))


def versus(
    what: str,
    better: Better,
    ours: Mapping[str, Spread],
    theirs: Mapping[str, Spread],
    *,
    names: tuple[str, str] = ("HIST", "HFedAvg"),
    digits: str = ".3g",
    why: str = "",
    ordered: bool = True,
    point: str = "",
) -> Row:
    """The claim that the first of `names` is lower (higher) than the second at every point."""
    points = {point: judged(IS[better], mine, theirs[point]) for point, mine in ours.items()}
    text = "; ".join(
        f"{point}: {mine.text(digits)} against {theirs[point].text(digits)}" for point, mine in ours.items()
    )
    if not any(spread.known for spread in (*ours.values(), *theirs.values())):
        text = "not yet run"
    values = {f"{names[0]}, {key}": spread for key, spread in ours.items()}
    values |= {f"{names[1]}, {key}": spread for key, spread in theirs.items()}
    what, paper = f"{what}, {names[0]} against {names[1]}", f"{names[0]} {better}"
    row = claim(what, paper, at_points(points, ordered=ordered), values, ours=text, point=point)
    named = {
        f"{point} (not reached by all seeds)" if math.isinf(ours[point].mean) else point: each
        for point, each in points.items()
    }
    return replace(row, why=_of_points(row.verdict, named, f"Not {better}:", why))


def _of_points(
    verdict: Verdict, points: Mapping[str, Judgement], no: str, why: str, *, between: str = ", "
) -> str:
    """What a verdict hides of single points: those that are lost, or those that some seeds lose."""
    if verdict in ("yes", "not yet run"):
        return ""
    if verdict == "of the means alone":
        unsure = (f"{each.share} ({name})" for name, each in points.items() if each.verdict == verdict)
        return f"True {' and '.join(unsure)}."
    lost = [
        f"{name}, but {each.share}" if each.agree else name
        for name, each in points.items()
        if each.verdict not in HOLDS
    ]
    return f"{no} {between.join(lost)}. {why}".strip()


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
