"""What is kept of an arm's run, and the arms of one setting read together over their seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from histfl.arrays import Floats

COLUMNS = ("round", "accuracy", "loss", "megabytes_per_client", "simulated_seconds")
LAST = 3  # rounds that make an end's accuracy


@dataclass(frozen=True)
class Result:
    """One arm's run: `columns` of COLUMNS at the rounds that are kept, and the cost to each target.

    `finished` says that the run did all that its arm asks for; `about` has its origin (configuration, seed,
    versions, commit, machine, command, seconds) as it is written to the file.
    """

    arm: str
    labels: Mapping[str, Any]
    columns: Mapping[str, Floats]
    to_target: Mapping[str, Mapping[str, float] | None]
    finished: bool
    about: Mapping[str, Any]

    @property
    def rounds_done(self) -> int:
        return int(self.columns["round"].max(initial=0))

    @property
    def begun(self) -> bool:
        """Whether it has a round: not where it broke down in its first one."""
        return len(self.columns["round"]) > 0

    @property
    def diverged(self) -> bool:
        """Whether the run broke down before its end."""
        return bool(self.about.get("diverged"))

    def cost_to(self, target: float, key: str) -> float | None:
        """`key` of COLUMNS in the first round that came to `target`; None where none has.

        Of a target that the run did not count itself, the first of the rounds that are kept.
        """
        if (counted := f"{target:g}") in self.to_target:
            reached = self.to_target[counted]
            return None if reached is None else float(reached[key])
        there = np.flatnonzero(self.columns["accuracy"] >= target)
        return float(self.columns[key][there[0]]) if len(there) else None

    def at(self, key: str, value: float) -> float | None:
        """The accuracy where the column `key` reaches `value`, between rounds on a line; None beyond the end."""
        across, accuracy = self.columns[key], self.columns["accuracy"]
        if value > across.max(initial=-np.inf):
            return None
        return float(np.interp(value, across, accuracy))

    def mean_accuracy(self, rounds: int) -> float | None:
        """The mean of the accuracy over the first `rounds` rounds: the area below the learning curve."""
        if self.rounds_done < rounds:
            return None
        grid = np.arange(1, rounds + 1)
        return float(np.interp(grid, self.columns["round"], self.columns["accuracy"]).mean())


@dataclass(frozen=True)
class Spread:
    """One quantity over the seeds: a value a run, None where the run ended without it, which counts as `lost`.

    A cost that no run came to is infinite; of an accuracy the lost one is the lowest. Runs that have not come so far
    have no value yet; while there are such `waiting` runs, the others alone would be a choice of the fast ones.
    """

    by_seed: Mapping[int, float | None]
    asked: int
    waiting: int = 0
    lost: float = math.inf

    @property
    def values(self) -> tuple[float | None, ...]:
        return tuple(self.by_seed.values())

    @property
    def known(self) -> bool:
        """Whether any seed has run to its end."""
        return bool(self.by_seed)

    def of(self, seed: int) -> float:
        """The seed's value, the lost one where its run ended without."""
        value = self.by_seed[seed]
        return self.lost if value is None else value

    @property
    def mean(self) -> float:
        """The mean over the seeds; the lost value where one of them ended without its own, nan where none ran."""
        return float(np.mean([self.of(seed) for seed in self.by_seed])) if self.known else float("nan")

    @property
    def number(self) -> float | None:
        """The mean where it is one, for files."""
        return self.mean if np.isfinite(self.mean) else None

    def text(self, digits: str = ".3g") -> str:
        """Mean (lowest to highest), and what is missing."""
        if not self.known:
            return "unfinished" if self.waiting else "not yet run"
        found = [value for value in self.values if value is not None]
        missing = "" if len(self.values) == self.asked else f", {len(self.values)} of {self.asked} seeds"
        if not found:
            return f"not reached{missing}"
        mean, low, high = (f"{value:{digits}}" for value in (np.mean(found), min(found), max(found)))
        spread = f" ({low} to {high})" if low != high else ""
        lost = len(self.values) - len(found)
        return f"{mean}{spread}{missing}" + (f", not reached by {lost}" if lost else "")


def seed_by_seed(combine: Callable[[float, float], float], one: Spread, other: Spread) -> Spread:
    """Both quantities made one, a seed with itself; None where one of the two ended without its own."""
    pairs = {seed: (one.by_seed[seed], other.by_seed[seed]) for seed in one.by_seed if seed in other.by_seed}
    found = {seed: None if a is None or b is None else combine(a, b) for seed, (a, b) in pairs.items()}
    return Spread(found, max(one.asked, other.asked), one.waiting + other.waiting)


@dataclass(frozen=True)
class Repeats:
    """The results of one setting, a seed each; `asked` is how many seeds the artefact has."""

    results: tuple[Result, ...]
    asked: int

    def costs_to(self, target: float | None, key: str = "round") -> dict[int, float | None]:
        """By seed `key` of COLUMNS when the accuracy first reached `target`, None where a run ended without.

        A run that goes on is left out, and every run while the target is not known (None).
        """
        if target is None:
            return {}
        found = {result.labels["seed"]: (result.cost_to(target, key), result) for result in self.results}
        return {seed: cost for seed, (cost, run) in found.items() if cost is not None or run.finished}

    def to_target(self, target: float | None, key: str = "round") -> Spread:
        """The same over the seeds."""
        costs = self.costs_to(target, key)
        return Spread(costs, self.asked, len(self.results) - len(costs))

    def accuracy_at(self, key: str, value: float) -> Spread:
        return self._spread([result.at(key, value) for result in self.results])

    def mean_accuracy(self, rounds: int) -> Spread:
        return self._spread([result.mean_accuracy(rounds) for result in self.results])

    def last_accuracies(self, rounds: int) -> Spread:
        """The mean accuracy of the last `rounds` rounds of the runs that came to their end."""
        found = []
        for result in self.results:
            late = result.columns["round"] > result.rounds_done - rounds
            ended = result.finished and not result.diverged
            found.append(float(result.columns["accuracy"][late].mean()) if ended else None)
        return self._spread(found)

    def highest_accuracies(self) -> Spread:
        """The highest accuracy of a kept round so far."""
        return self._spread(
            [float(run.columns["accuracy"].max()) if run.begun else None for run in self.results]
        )

    def seconds_a_round(self) -> Spread:
        """Simulated seconds of a global round, the mean over the run."""
        return self._spread(
            [
                run.columns["simulated_seconds"][-1] / run.rounds_done if run.begun else None
                for run in self.results
            ],
            lost=math.inf,
        )

    def _spread(self, values: Sequence[float | None], lost: float = -math.inf) -> Spread:
        """Of one value a result; those that broke down ended without, others without a value go on."""
        kept = {
            result.labels["seed"]: value
            for value, result in zip(values, self.results, strict=True)
            if value is not None or result.diverged
        }
        return Spread(kept, self.asked, len(values) - len(kept), lost)

    @cached_property
    def with_rounds(self) -> tuple[Result, ...]:
        """The runs that came past their first round."""
        return tuple(result for result in self.results if result.begun)

    @cached_property
    def common_rounds(self) -> list[int]:
        """The rounds that every one of them keeps."""
        kept = [set(result.columns["round"].astype(int).tolist()) for result in self.with_rounds]
        return sorted(set.intersection(*kept)) if kept else []

    def column(self, key: str) -> Floats:
        """[seed, common round]"""
        rows = []
        for result in self.with_rounds:
            places = np.searchsorted(result.columns["round"], self.common_rounds)
            rows.append(result.columns[key][places])
        return np.array(rows, dtype=np.float64)


@dataclass(frozen=True)
class Results:
    """The results of an artefact's arms, found by their labels; `asked` has the labels of all its arms."""

    all: tuple[Result, ...]
    asked: tuple[Mapping[str, Any], ...]

    def of(self, **labels: Any) -> Repeats:
        """The seeds of the setting that `labels` names."""
        found = tuple(result for result in self.all if _matches(result.labels, labels))
        return Repeats(found, sum(_matches(arm, labels) for arm in self.asked))


def _matches(labels: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())
