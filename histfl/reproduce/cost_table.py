"""A table of what a client sends until two target accuracies: what it is made of, its arms, rows and curves.

The paper's entries divided by the cost of a round are whole numbers of rounds, so rounds and cost ratios are
compared; its megabytes count bytes differently from table to table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from histfl.reports.plots import Plot
from histfl.reproduce.artefact import (
    ACCURACY,
    HFEDAVG_LAST,
    LABELS,
    LOAD,
    LOAD_LABEL,
    METHODS,
    SPLITS,
    Artefact,
    Choice,
    Row,
    Scale,
    Setting,
    arm,
    learning_curve,
    learning_panel,
    of,
    panel,
)
from histfl.reproduce.claims import AS_MUCH, CHEAPER, GAINS, claim, judged, numbers, told, trend, versus
from histfl.reproduce.results import LAST, Repeats, Results, Spread, seed_by_seed
from histfl.runs.arms import Arm

WITHIN = 0.25  # of the paper's cost ratio
# N = 4 first: of a table that is run in pieces, these are the columns to have.
SETTINGS = (("shards", 4), ("cell-iid", 4), ("shards", 2), ("cell-iid", 2))
CLOSE_ENOUGH = Choice(
    f"a cost ratio within {WITHIN:.0%} of the paper's counts as the same",
    "the paper gives no spread over seeds; whole rounds alone leave as much open where few are needed",
)


@dataclass(frozen=True)
class Contender:
    """What is compared in a table: its labels, and its cost as so many `times` what its records have."""

    name: str
    labels: Mapping[str, Any]
    times: float = 1

    @property
    def beside(self) -> bool:
        """Whether the paper does not have it."""
        return self.name not in METHODS.values()

    def of(self, results: Results, setting: Setting) -> Repeats:
        return of(results, setting=setting, **self.labels)

    def arm(self, settings: Mapping[str, Any], *, rounds: int, setting: Setting, seed: int) -> Arm:
        split, cells = setting
        given = {**self.labels, "cells": cells, "split": split, "seed": seed}
        in_order = {label: given[label] for label in LABELS if label in given}  # as names have them
        return arm({**settings, "training.rounds": rounds}, **in_order)


HIST, HFEDAVG = (Contender(name, {"method": method}) for method, name in METHODS.items())


def last_cell_alone(cells: int) -> Contender:
    """HFedAvg of the last cell; records have the mean load of all clients, 1/N of that of this cell's."""
    return Contender(HFEDAVG_LAST, {"method": "hfedavg", "active_cells": [cells - 1]}, times=cells)


def scaled(power: float) -> Contender:
    """HIST with what its cut units give multiplied in training by their share's inverse to a power."""
    return Contender(f"HIST at power {power:g}", {"method": "hist", "scale": power})


@dataclass(frozen=True)
class CostTable:
    """A table's settings and the paper's entries.

    `rounds` has the paper's numbers of `unit` by (method, split, cells), one a target; `ratios` its cost of HFedAvg
    over HIST's at the higher target by (split, cells). A global round is `units` of them. `further` gives the
    contenders beside HIST and HFedAvg by the number of cells, and `powers` those of HIST's activations that are run beside
    it, in a table that the paper does not have; `lower` targets are looked at where the paper's are
    not reached, and `why_missed` tells why they are not, where that is known. Targets are accuracies, or with `shares`
    those of HFedAvg's last rounds in the same setting.
    """

    name: str
    base: dict[str, Any]
    targets: tuple[float, float]
    most_rounds: Mapping[str, int]
    paper: str
    choices: tuple[Choice, ...]
    settings: Sequence[Setting]
    rounds: Mapping[tuple[str, str, int], tuple[int, int]]
    ratios: Mapping[Setting, float]
    further: Callable[[int], Sequence[Contender]] = lambda cells: ()
    lower: tuple[float, ...] = ()
    why_missed: str = ""
    shares: bool = False
    again: bool = False
    powers: tuple[float, ...] = ()
    unit: str = "global rounds"
    units: int = 1
    smaller: str = ""

    @property
    def names(self) -> list[str]:
        """Of the targets, one by one."""
        return [f"{target:.0%}{self.of_what}" for target in self.targets]

    @property
    def both(self) -> str:
        """The two targets, in words."""
        low, high = self.targets
        return f"{low:.0%} and {high:.0%}{self.of_what}"

    @property
    def of_what(self) -> str:
        return " of HFedAvg's end" if self.shares else ""

    @property
    def hists(self) -> tuple[Contender, ...]:
        return HIST, *map(scaled, self.powers)

    def rivals(self, cells: int) -> tuple[Contender, ...]:
        return HFEDAVG, *self.further(cells)

    def contenders(self, cells: int) -> tuple[Contender, ...]:
        return *self.hists, *self.rivals(cells)

    def ends(self, results: Results) -> dict[str, Spread]:
        """HFedAvg's accuracy in its last rounds, by setting."""
        return {
            words(setting): HFEDAVG.of(results, setting).last_accuracies(LAST) for setting in self.settings
        }

    def target(self, place: int, results: Results, setting: Setting) -> float | None:
        """The accuracy to come to; None while the runs that it is a share of have not ended."""
        if not self.shares:
            return self.targets[place]
        end = HFEDAVG.of(results, setting).last_accuracies(LAST).number
        return None if end is None else self.targets[place] * end

    def paper_cost(self, setting: Setting) -> PaperCost | None:
        """The paper's in a setting; None where it has no number."""
        if setting not in self.ratios:
            return None
        theirs, ours = (self.rounds[method, *setting][1] for method in ("hfedavg", "hist"))
        return PaperCost(self.ratios[setting], ours / theirs)


@dataclass(frozen=True)
class PaperCost:
    """The paper's cost of HFedAvg over HIST's at the higher target, and HIST's rounds over HFedAvg's there."""

    ratio: float
    rounds: float


def words(setting: Setting) -> str:
    return f"{SPLITS[setting[0]]}, N = {setting[1]}"


def cost_ratio(
    theirs: Repeats, ours: Repeats, target: float | None, key: str = LOAD, times: float = 1
) -> Spread:
    """Their cost (`times` what is recorded) over ours to `target`, seed by seed; None where a run ended without."""
    over, under = (repeats.to_target(target, key) for repeats in (theirs, ours))
    return seed_by_seed(lambda a, b: times * a / b, over, under)


def cost_panels(results: Results, settings: Sequence[Setting]) -> list[Plot]:
    """Accuracy against what a client has sent, a panel a split."""
    return [
        panel(
            SPLITS[split],
            LOAD_LABEL,
            ACCURACY,
            (
                learning_curve(
                    of(results, method, (split, cells)),
                    f"{name}, N = {cells}",
                    LOAD,
                    colour=colour,
                    dashed=method == "hfedavg",
                )
                for colour, cells in enumerate(sorted(cells for other, cells in settings if other == split))
                for method, name in METHODS.items()
            ),
        )
        for split in dict.fromkeys(split for split, _ in settings)
    ]


def cost_table(table: CostTable, scale: Scale) -> Artefact:
    """The artefact of a table: HIST and its rivals in each of the settings."""
    ends: dict[str, Any] = {}
    if not table.shares:
        ends = {"training.targets": (*table.lower, *table.targets), "training.stop_at_targets": True}
    return Artefact(
        name=table.name,
        paper=table.paper,
        choices=(*table.choices, CLOSE_ENOUGH),
        arms=tuple(
            contender.arm(
                table.base | ends,
                rounds=table.most_rounds[contender.labels["method"]],
                setting=setting,
                seed=seed,
            )
            for seed in scale.seeds
            for setting in table.settings
            for contender in table.contenders(setting[1])
        ),
        rows=lambda results: [
            replace(row, beside=row.beside or bool(table.powers)) for row in _rows(table, results)
        ],
        panels=lambda results: _panels(table, results),
        smaller=table.smaller,
        again=table.again,
    )


def _panels(table: CostTable, results: Results) -> list[Plot]:
    if not table.powers:
        return cost_panels(results, table.settings)
    cells = max(cells for _, cells in table.settings)
    return [
        learning_panel(
            f"{SPLITS[split]}, N = {cells}",
            [
                (each.name, each.of(results, (split, cells)), each == HFEDAVG)
                for each in table.contenders(cells)
            ],
            LOAD,
            LOAD_LABEL,
        )
        for split in dict.fromkeys(split for split, _ in table.settings)
    ]


def _rows(table: CostTable, results: Results) -> Iterator[Row]:
    if table.shares:
        yield told(
            f"HFedAvg's accuracy at its end, the mean of the last {LAST} rounds",
            table.ends(results),
            digits=".1%",
        )
    for setting in table.settings:
        rivals = table.contenders(setting[1])
        for contender in rivals:
            yield _rounds_row(table, results, contender, setting)
        for hist in table.hists:
            for rival in table.rivals(setting[1]):
                yield _cost_row(table, results, rival, hist, setting)
        if table.lower:
            highest = {each.name: each.of(results, setting).highest_accuracies() for each in rivals}
            yield told(
                f"{words(setting)}: highest accuracy in the rounds that were run", highest, digits=".1%"
            )
            last = {each.name: each.of(results, setting).last_accuracies(LAST) for each in rivals}
            yield told(
                f"{words(setting)}: accuracy at the end, the mean of the last {LAST} rounds",
                last,
                digits=".1%",
            )
            yield _highest_common_row(table, results, setting)
    for hist in table.hists[1:] or table.hists:  # HIST as it is stands in the paper's table
        for place, name in enumerate(table.names):
            ours, theirs = (
                {
                    words(setting): each.of(results, setting).to_target(
                        table.target(place, results, setting), LOAD
                    )
                    for setting in table.settings
                }
                for each in (hist, HFEDAVG)
            )
            names, what = (hist.name, HFEDAVG.name), f"MB a client to {name}"
            yield versus(what, "lower", ours, theirs, names=names, ordered=False, point=CHEAPER)
        for split in dict.fromkeys(split for split, _ in table.settings):
            every = sorted(cells for other, cells in table.settings if other == split)
            if len(every) > 1:
                yield _advantage_row(table, results, hist, split, every)


def _rounds_row(table: CostTable, results: Results, contender: Contender, setting: Setting) -> Row:
    """How long a contender takes to both targets."""
    runs = contender.of(results, setting)
    reached = [
        _times(runs.to_target(table.target(place, results, setting)), table.units)
        for place in range(len(table.targets))
    ]
    paper = table.rounds.get((contender.labels["method"], *setting))
    return Row(
        f"{words(setting)}: {contender.name}, {table.unit} to {table.both}",
        f"{paper[0]} and {paper[1]}" if paper else "no number",
        " and ".join(spread.text() for spread in reached),
        values={name: spread.number for name, spread in zip(table.names, reached, strict=True)},
        beside=contender.beside,
    )


def _cost_row(
    table: CostTable, results: Results, contender: Contender, of_hist: Contender, setting: Setting
) -> Row:
    """What a contender costs over HIST (or HIST scaled) at the higher target, beside the paper's.

    Where it is not the paper's the rounds tell why: what a round costs is no matter of chance.
    """
    theirs, hist = (each.of(results, setting) for each in (contender, of_hist))
    targets = [table.target(place, results, setting) for place in range(len(table.targets))]
    ratios = [cost_ratio(theirs, hist, target, times=contender.times) for target in targets]
    ours, paper = ratios[-1], table.paper_cost(setting)
    what = f"{words(setting)}: cost of {contender.name} over {of_hist.name}'s to {table.names[-1]}"
    points = dict(zip(table.names, ratios, strict=True))
    if paper is None:
        return Row(what, "no number", ours.text(".3f"), values=numbers(points))
    rounds = cost_ratio(hist, theirs, targets[-1], "round")
    why = f"Not every run of both comes to {table.names[-1]}. {table.why_missed}".strip()
    if math.isfinite(ours.mean):
        why = (
            f"Ours is {ours.mean / paper.ratio:.2f} times the paper's: {of_hist.name} takes {rounds.mean:.2f} times the "
            f"rounds of {contender.name}, in the paper {paper.rounds:.2f} times."
        )
    close = judged(lambda ratio: abs(ratio / paper.ratio - 1) <= WITHIN, ours)
    row = claim(what, f"{paper.ratio}", close, points, ours=ours.text(".3f"), why=why, point=AS_MUCH)
    return replace(row, beside=contender.beside)


def _advantage_row(
    table: CostTable, results: Results, hist: Contender, split: str, cell_numbers: Sequence[int]
) -> Row:
    """The claim that HFedAvg's cost over HIST's rises with N; it does not hold where one of them has no end."""
    ratios = {
        f"N={cells}": cost_ratio(
            HFEDAVG.of(results, (split, cells)),
            hist.of(results, (split, cells)),
            table.target(-1, results, (split, cells)),
        )
        for cells in cell_numbers
    }
    what = f"{SPLITS[split]}: {hist.name}'s advantage to {table.names[-1]} as N grows"
    row = trend(what, ratios, "rises", why="More cells cost HIST more rounds than they save.", point=GAINS)
    if row.verdict != "not yet run" and any(spread.number is None for spread in ratios.values()):
        return replace(row, verdict="no", why=f"Not every run of both comes to {table.names[-1]}.")
    return row


def _highest_common_row(table: CostTable, results: Results, setting: Setting) -> Row:
    """The cost ratio where it can be had: a row without a claim, since the paper has other targets."""
    whole, hist = runs = [contender.of(results, setting) for contender in (HFEDAVG, HIST)]
    targets = (*table.lower, *table.targets)
    reached = [
        target
        for target in targets
        if all((spread := each.to_target(target)).number is not None and not spread.waiting for each in runs)
    ]
    what = f"{words(setting)}: cost of HFedAvg over HIST's to the highest accuracy that both reach"
    paper = f"{table.ratios[setting]} to {table.targets[-1]:.0%}" if setting in table.ratios else "no claim"
    if not reached:
        ended = all(each.to_target(targets[0]).known for each in runs)
        return Row(what, paper, f"none of {targets[0]:.0%} and more" if ended else "not yet run")
    ratio = cost_ratio(whole, hist, reached[-1])
    return Row(
        what, paper, f"{ratio.text('.3f')} to {reached[-1]:.0%}", values={f"{reached[-1]:.0%}": ratio.number}
    )


def _times(spread: Spread, factor: int) -> Spread:
    scaled = {seed: None if value is None else factor * value for seed, value in spread.by_seed.items()}
    return replace(spread, by_seed=scaled)
