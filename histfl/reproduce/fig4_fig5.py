"""Figures 4 and 5: the communication load of HIST against hierarchical FedAvg (HIST Sec. VI-B)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from histfl.reports.plots import Plot
from histfl.reproduce.artefact import (
    BYTES,
    HFEDAVG_LAST,
    LAST_CELL,
    LOAD,
    METHODS,
    MLP,
    SPLITS,
    Artefact,
    Choice,
    Row,
    Scale,
    arm,
    curves_of,
    figure_artefact,
    of,
    optimiser,
    panel,
    quick_mlp,
    quick_words,
)
from histfl.reproduce.claims import CHEAPER, GAINS, LOSES, TOO_SMALL, told, trend, versus
from histfl.reproduce.cost_table import HFEDAVG, HIST, cost_panels, last_cell_alone
from histfl.reproduce.results import Results, Spread
from histfl.runs.arms import Arm

UNIT, WHOLE, HIDDEN = 795, 10, 300  # parameters of a hidden neuron, of the output's bias; hidden neurons


def rounds_for(megabytes: float, method: str, cells: int) -> int:
    """Global rounds of five edge rounds after which a client of the MLP has sent at least `megabytes`."""
    held = HIDDEN if method == "hfedavg" else HIDDEN / cells
    return math.ceil(megabytes / (5 * (held * UNIT + WHOLE) * 4 / 2**20) - 1e-9)


@dataclass(frozen=True)
class _Load:
    """Figure 4 at one scale: every arm runs to the last of `loads`, megabytes a client; HFedAvg of the last
    cell is run under the splits in `last_cell`."""

    base: dict[str, Any]
    cell_numbers: Sequence[int]
    splits: Sequence[str]
    loads: Sequence[int]
    last_cell: Sequence[str]

    def at(self, results: Results, load: float, method: str, split: str, cells: int) -> Spread:
        return of(results, method, (split, cells)).accuracy_at(LOAD, load)

    def over_cells(self, results: Results, load: float, method: str, split: str) -> dict[str, Spread]:
        return {f"N={n}": self.at(results, load, method, split, n) for n in self.cell_numbers}

    def last_cell_over_cells(self, results: Results, load: float, split: str) -> dict[str, Spread]:
        """After as many rounds as those in which a client of HFedAvg sends `load`."""
        return {
            f"N={n}": last_cell_alone(n)
            .of(results, (split, n))
            .accuracy_at("round", rounds_for(load, "hfedavg", n))
            for n in self.cell_numbers
        }

    def rows(self, results: Results) -> Iterator[Row]:
        for split in self.splits:
            for cells in self.cell_numbers:
                hist, whole = (
                    {f"{load} MB": self.at(results, load, method, split, cells) for load in self.loads}
                    for method in METHODS
                )
                what = f"{SPLITS[split]}, N = {cells}: accuracy at equal load"
                yield versus(what, "higher", hist, whole, digits=".1%", point=CHEAPER)
            for load in (self.loads[-3:][0], self.loads[-1]):  # early and late
                yield from self.trends(results, load, split)

    def trends(self, results: Results, load: float, split: str) -> Iterator[Row]:
        def words(name: str) -> str:
            return f"{SPLITS[split]}: accuracy of {name} at {load} MB over N"

        hist, whole = (self.over_cells(results, load, method, split) for method in METHODS)
        yield trend(words(METHODS["hist"]), hist, "rises", digits=".1%", point=GAINS)
        name = words(METHODS["hfedavg"])
        if split == "shards":
            yield trend(name, whole, "falls", digits=".1%", point=LOSES)
        else:
            yield told(name, whole, digits=".1%")
        if split in self.last_cell:
            last = self.last_cell_over_cells(results, load, split)
            yield replace(trend(words(HFEDAVG_LAST), last, "falls", digits=".1%"), beside=True)

    def arms(self, seed: int) -> Iterator[Arm]:
        for split in self.splits:
            for cells in self.cell_numbers:
                beside = [last_cell_alone(cells)] if split in self.last_cell else []
                for contender in (HIST, HFEDAVG, *beside):
                    rounds = rounds_for(self.loads[-1], contender.labels["method"], cells)
                    yield contender.arm(self.base, rounds=rounds, setting=(split, cells), seed=seed)

    def panels(self, results: Results) -> list[Plot]:
        return cost_panels(results, [(split, cells) for split in self.splits for cells in self.cell_numbers])


def fig4(scale: Scale) -> Artefact:
    """Test accuracy against megabytes a client, N in {2, 4, 6}, both splits."""
    figure, smaller = _Load(MLP, [2, 4, 6], list(SPLITS), [25, 50, 100, 200], last_cell=["shards"]), ""
    if scale.quick:
        figure = _Load(quick_mlp(scale), [2, 4], ["shards"], [9, 18], last_cell=[])
        smaller = quick_words(scale, "N in {2, 4}", "fully non-i.i.d. alone", "18 MB")
    return figure_artefact(
        "fig4",
        figure,
        scale,
        smaller,
        paper="At the same number of megabytes a client HIST is more accurate than hierarchical FedAvg (HFedAvg) under "
        "both splits; HIST gains as N, the number of cells, goes from 2 to 6, while HFedAvg loses when the data are "
        "fully non-i.i.d.",
        choices=(
            optimiser(scale),
            LAST_CELL,
            BYTES,
            Choice(
                f"every arm runs until a client has sent {figure.loads[-1]} MB",
                "the figure's axis cannot be read from the paper's source",
            ),
        ),
    )


@dataclass(frozen=True)
class _Cost:
    """Figure 5 at one scale: `most_rounds` by method, to the target."""

    base: dict[str, Any]
    cell_numbers: Sequence[int]
    splits: Sequence[str]
    target: float
    most_rounds: dict[str, int]

    def costs(
        self, results: Results, method: str, split: str, cells: Sequence[int] = ()
    ) -> dict[str, Spread]:
        """By number of cells, all of the figure's or those given."""
        return {
            f"N={n}": results.of(method=method, cells=n, split=split).to_target(self.target, LOAD)
            for n in cells or self.cell_numbers
        }

    def rows(self, results: Results) -> Iterator[Row]:
        few = [cells for cells in self.cell_numbers if cells <= 6]
        for split, words in ((split, SPLITS[split]) for split in self.splits):
            hist, whole = (self.costs(results, method, split) for method in METHODS)
            yield versus(f"{words}: MB a client to {self.target:.0%}", "lower", hist, whole, point=CHEAPER)
            what = f"{words}: HIST's cost from N = {few[0]} to {few[-1]}"
            why = "More cells cost more rounds than their smaller submodels save."
            yield trend(what, self.costs(results, "hist", split, few), "falls", why=why, point=GAINS)
            what = f"{words}: HFedAvg's cost from N = {few[0]} to {few[-1]}"
            whole = self.costs(results, "hfedavg", split, few)
            fully = split == "shards"
            yield trend(what, whole, "rises", point=LOSES) if fully else told(what, whole)
            small = 8 if fully else 10
            pair = self.cell_numbers[self.cell_numbers.index(small) - 1], small
            what = f"{words}: HIST's cost from N = {pair[0]} to {small}, where submodels become too small"
            why = f"No loss is seen with {HIDDEN // small} neurons a cell."
            yield trend(what, self.costs(results, "hist", split, pair), "rises", why=why, point=TOO_SMALL)

    def arms(self, seed: int) -> Iterator[Arm]:
        ends = {"training.targets": (self.target,), "training.stop_at_targets": True}
        for split in self.splits:
            for cells in self.cell_numbers:
                for method in METHODS:
                    settings = self.base | ends | {"training.rounds": self.most_rounds[method]}
                    yield arm(settings, method=method, cells=cells, split=split, seed=seed)

    def panels(self, results: Results) -> list[Plot]:
        return [self.panel(results, split) for split in self.splits]

    def panel(self, results: Results, split: str) -> Plot:
        costs = {name: self.costs(results, method, split) for method, name in METHODS.items()}
        curves = curves_of(self.cell_numbers, costs, lambda name: name == METHODS["hfedavg"])
        return panel(SPLITS[split], "number of cells N", f"MB a client to {self.target:.0%}", curves)


def fig5(scale: Scale) -> Artefact:
    """Megabytes a client to 80 %, N in {2, 4, 6, 8, 10}, both splits."""
    figure, smaller = _Cost(MLP, [2, 4, 6, 8, 10], list(SPLITS), 0.8, {"hist": 600, "hfedavg": 200}), ""
    if scale.quick:
        figure = _Cost(quick_mlp(scale), [2, 4, 8], ["shards"], 0.7, {"hist": 30, "hfedavg": 8})
        smaller = quick_words(scale, "N in {2, 4, 8}", "fully non-i.i.d. alone", "to 70 %")
    most = figure.most_rounds
    return figure_artefact(
        "fig5",
        figure,
        scale,
        smaller,
        paper="To 80 % HIST needs fewer megabytes a client than HFedAvg. Its cost falls from N = 2 to 6, where HFedAvg's "
        "rises (fully non-i.i.d.); at N = 8 (10 when cells are i.i.d.) submodels become too small and it rises again.",
        choices=(
            optimiser(scale),
            BYTES,
            Choice(
                "60 clients in 8 cells: four cells of 8 clients, four of 7",
                "the paper wants equal cells, but 60 does not divide by 8; 300 neurons are spread as evenly",
            ),
            Choice(
                f"runs end at the target, or after {most['hist']} (HIST) and {most['hfedavg']} (HFedAvg) rounds",
                "only the cost to the target is asked for",
            ),
        ),
    )
