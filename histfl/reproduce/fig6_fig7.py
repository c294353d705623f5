"""Figures 6 and 7: the periods H and E, and how many clients take part (HIST Sec. VI-B)."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from histfl.reports.plots import Plot
from histfl.reproduce.artefact import (
    MLP,
    SPLITS,
    Artefact,
    Choice,
    Row,
    Scale,
    arm,
    figure_artefact,
    learning_panel,
    optimiser,
    quick_mlp,
    quick_words,
)
from histfl.reproduce.claims import (
    EDGE_ROUNDS,
    LOCAL_STEPS,
    MATTERS,
    PARTICIPANTS,
    Direction,
    claim,
    judged,
    told,
    trend,
)
from histfl.reproduce.results import Results, Spread, seed_by_seed
from histfl.runs.arms import Arm

SPEED = Choice(
    "speed is judged by the mean test accuracy over all rounds, the area below the learning curve",
    "the paper speaks of convergence speed and shows curves; the first round to a target depends more on chance",
)
NO_AXIS = "the figure's axis cannot be read from the paper's source; the curves have flattened by then"
LARGER_E = tuple({"edge_rounds": edge_rounds, "local_steps": 20} for edge_rounds in (5, 10, 15))
LARGER_H = tuple({"edge_rounds": 5, "local_steps": local_steps} for local_steps in (20, 40, 60))
PERIODS = (*LARGER_E, *LARGER_H[1:])


@dataclass(frozen=True)
class _Periods:
    """Figure 6 at one scale: learning curves of `rounds` global rounds."""

    base: dict[str, Any]
    splits: Sequence[str]
    rounds: int
    target: float

    def rows(self, results: Results) -> Iterator[Row]:
        for split in self.splits:
            by_edge, by_local = (
                {
                    f"{letter}={period[key]}": results.of(split=split, **period).mean_accuracy(self.rounds)
                    for period in some
                }
                for letter, key, some in (("E", "edge_rounds", LARGER_E), ("H", "local_steps", LARGER_H))
            )
            words = f"{SPLITS[split]}: mean accuracy over {self.rounds} rounds"
            why = "More edge rounds in a global round do not pay here."
            yield trend(
                f"{words} as E grows (H = 20)", by_edge, "rises", digits=".2%", why=why, point=EDGE_ROUNDS
            )
            steps = list(by_local.items())
            points = dict(steps[:2])
            why = "Longer local training already hurts at H = 40 with this step size."
            yield trend(
                f"{words} from H = 20 to 40 (E = 5)",
                points,
                "rises",
                digits=".2%",
                why=why,
                point=LOCAL_STEPS,
            )
            fully = split == "shards"
            why = "No loss is seen at H = 60." if fully else "H = 60 is past its best here too."
            direction: Direction = "falls" if fully else "rises"
            points = dict(steps[1:])
            yield trend(
                f"{words} from H = 40 to 60 (E = 5)",
                points,
                direction,
                digits=".2%",
                why=why,
                point=LOCAL_STEPS,
            )
            reached = {
                _period(period): results.of(split=split, **period).to_target(self.target)
                for period in PERIODS
            }
            yield told(f"{SPLITS[split]}: rounds to {self.target:.0%}", reached)

    def arms(self, seed: int) -> Iterator[Arm]:
        ends = {"network.cells": 3, "training.rounds": self.rounds, "training.targets": (self.target,)}
        for split in self.splits:
            for period in PERIODS:
                yield arm(self.base | ends, **period, split=split, seed=seed)

    def panels(self, results: Results) -> list[Plot]:
        return [
            learning_panel(
                SPLITS[split],
                [
                    (_period(period), results.of(split=split, **period), period["local_steps"] > 20)
                    for period in PERIODS
                ],
            )
            for split in self.splits
        ]


def fig6(scale: Scale) -> Artefact:
    """Test accuracy over global rounds: E in {5, 10, 15} at H = 20, H in {20, 40, 60} at E = 5; N = 3."""
    figure, smaller = _Periods(MLP, list(SPLITS), rounds=100, target=0.8), ""
    if scale.quick:
        figure = _Periods(quick_mlp(scale), ["shards"], rounds=5, target=0.7)
        smaller = quick_words(scale, "fully non-i.i.d. alone", f"{figure.rounds} rounds")
    return figure_artefact(
        "fig6",
        figure,
        scale,
        smaller,
        paper="At N = 3 a larger E converges in fewer global rounds under both splits. As H grows from 20 to 60, "
        "convergence gains and then loses when the data are fully non-i.i.d., and goes on gaining when cells are i.i.d.",
        choices=(optimiser(scale), SPEED, Choice(f"{figure.rounds} global rounds", NO_AXIS)),
    )


def _period(period: Mapping[str, Any]) -> str:
    return f"H={period['local_steps']}, E={period['edge_rounds']}"


@dataclass(frozen=True)
class _Participants:
    """Figure 7 at one scale: `numbers` of clients of a cell that take part, the last one being all of them."""

    base: dict[str, Any]
    rounds: int
    edge_rounds: int
    numbers: dict[str, int | str]

    @property
    def all_clients(self) -> str:
        return list(self.numbers)[-1]

    def rows(self, results: Results) -> Iterator[Row]:
        gains: dict[str, Spread] = {}
        for split in SPLITS:
            speeds = {
                f"{count} of {self.all_clients}": results.of(split=split, participants=value).mean_accuracy(
                    self.rounds
                )
                for count, value in self.numbers.items()
            }
            what = f"{SPLITS[split]}: mean accuracy over {self.rounds} rounds as more clients of a cell take part"
            yield trend(what, speeds, "rises", digits=".2%", point=PARTICIPANTS)
            few, *_, many = speeds.values()
            gains[SPLITS[split]] = seed_by_seed(operator.sub, many, few)
        yield claim(
            "what full participation gains over the fewest",
            "more when fully non-i.i.d.",
            judged(operator.gt, *gains.values()),
            gains,
            digits="+.2%",
            why="Data that are i.i.d. across cells gain no less.",
            point=MATTERS,
        )

    def arms(self, seed: int) -> Iterator[Arm]:
        periods = {"training.edge_rounds": self.edge_rounds, "training.rounds": self.rounds}
        settings = self.base | periods | {"network.cells": 3, "training.targets": (0.8,)}
        for split in SPLITS:
            for value in self.numbers.values():
                yield arm(settings, participants=value, split=split, seed=seed)

    def panels(self, results: Results) -> list[Plot]:
        return [
            learning_panel(
                SPLITS[split],
                [
                    (
                        f"{count} of {self.all_clients} clients",
                        results.of(split=split, participants=value),
                        False,
                    )
                    for count, value in self.numbers.items()
                ],
            )
            for split in SPLITS
        ]


def fig7(scale: Scale) -> Artefact:
    """Test accuracy over global rounds with 5, 10, 15 or all 20 clients of a cell taking part; N = 3."""
    numbers: dict[str, int | str] = {"5": 5, "10": 10, "15": 15, "20": "all"}
    figure, smaller = _Participants(MLP, rounds=100, edge_rounds=15, numbers=numbers), ""
    if scale.quick:
        base = quick_mlp(scale) | {"network.clients": 24}
        figure = _Participants(base, rounds=8, edge_rounds=5, numbers={"2": 2, "4": 4, "8": "all"})
        words = quick_words(scale, "8 clients a cell", "E = 5", f"{figure.rounds} rounds")
        smaller = words.replace("20 clients", "24 clients")
    return figure_artefact(
        "fig7",
        figure,
        scale,
        smaller,
        paper="At N = 3, H = 20, E = 15 and 20 clients a cell, more participating clients train faster, and it matters "
        "more when the data are fully non-i.i.d.",
        choices=(
            optimiser(scale),
            SPEED,
            Choice("participants are drawn anew in every edge round", "as in HIST Sec. III-C, Theorem 2"),
            Choice(f"{figure.rounds} global rounds", NO_AXIS),
        ),
    )
