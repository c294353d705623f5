"""`histfl bound`: a run's theorem, term by term, on the constants that the run recorded (HIST Sec. III, V-C).

From estimates at recorded rounds to the constants of a theorem: sigma^2, delta1^2, delta2^2 and ||x||^2 are
means over the rounds, since the proofs sum them over rounds and unbiased estimates want averaging; sigma^2
and delta2^2 are then the largest of the cells' means, as Assumptions 4 and 6 ask; L is the largest of all
rounds, since the step sizes must suit every one. f* is 0, or the lowest recorded loss if that is negative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from histfl.errors import CheckpointError, UsageError
from histfl.reports.bound_run import BoundRun, caveats, read_run
from histfl.runs.records import Record
from histfl.theory import (
    Condition,
    Constants,
    Largest,
    Schedule,
    StepSizes,
    Terms,
    theorem_1,
    theorem_2,
    theorem_3,
)

VACUOUS = 100.0  # times the measured gradient: two orders of magnitude tell nothing about training


@dataclass(frozen=True)
class Point:
    """The bound of the first `rounds` global rounds, and what was measured in them.

    `gradient_norm` is ||grad f||^2 at the last recorded model, `measured` its mean over the recorded ones.
    """

    rounds: int
    gradient_norm: float
    measured: float
    constants: Constants
    imbalance: float
    aggregation_error: float
    terms: Terms

    @property
    def bound(self) -> float:
        return sum(term.value for term in self.terms)

    @property
    def ratio(self) -> float | None:
        """The bound over what was measured; None where noise hides the gradient."""
        return self.bound / self.measured if self.measured > 0 else None


@dataclass(frozen=True)
class Bound:
    """A run's theorem after all its rounds, and after each recorded one."""

    run: BoundRun
    final: Point
    history: tuple[Point, ...]
    caveats: tuple[str, ...]

    @property
    def vacuous(self) -> bool:
        """Whether the bound is larger than the measured gradient by orders of magnitude."""
        return self.final.ratio is None or self.final.ratio >= VACUOUS

    @property
    def dominant(self) -> str:
        return max(self.final.terms, key=lambda term: term.value).name

    @cached_property
    def steps(self) -> StepSizes:
        return StepSizes(self.final.constants.smoothness, self.run.participants, partial=self.run.partial)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.steps.conditions(edge_rounds=self.run.edge_rounds, local_steps=self.run.local_steps)

    @property
    def binding(self) -> Condition:
        return self.steps.binding(edge_rounds=self.run.edge_rounds, local_steps=self.run.local_steps)

    @property
    def holds(self) -> bool:
        """Whether the run's learning rate meets the theorem's conditions."""
        return self.run.learning_rate <= self.binding.limit

    @cached_property
    def largest_local_steps(self) -> Largest:
        return self.steps.largest_local_steps(self.run.learning_rate, edge_rounds=self.run.edge_rounds)

    @cached_property
    def largest_edge_rounds(self) -> Largest:
        return self.steps.largest_edge_rounds(self.run.learning_rate, local_steps=self.run.local_steps)

    def as_json(self) -> dict[str, Any]:
        final = self.final
        return {
            "run": str(self.run.folder),
            "theorem": self.run.theorem,
            "rounds": final.rounds,
            "recorded_rounds": [point.rounds for point in self.history],
            "constants": dataclasses.asdict(final.constants),
            "imbalance": final.imbalance,
            "aggregation_error": final.aggregation_error,
            "terms": [
                {**dataclasses.asdict(term), "share": term.value / final.bound if final.bound else 0.0}
                for term in final.terms
            ],
            "bound": final.bound,
            "dominant": self.dominant,
            "measured": final.measured,
            "ratio": final.ratio,
            "vacuous": self.vacuous,
            "step_size": {
                "learning_rate": self.run.learning_rate,
                "holds": self.holds,
                "binding": self.binding.formula,
                "limit": self.binding.limit,
                "conditions": [dataclasses.asdict(condition) for condition in self.conditions],
                "largest_local_steps": dataclasses.asdict(self.largest_local_steps),
                "largest_edge_rounds": dataclasses.asdict(self.largest_edge_rounds),
            },
            "caveats": list(self.caveats),
            "history": [
                {
                    "round": point.rounds,
                    "gradient_norm": point.gradient_norm,
                    "measured": point.measured,
                    "bound": point.bound,
                    "terms": {term.name: term.value for term in point.terms},
                }
                for point in self.history
            ],
        }


def bound_of(path: Path) -> Bound:
    """The bound of the run in folder `path`, from its configuration and records alone."""
    run = read_run(path)
    recorded = [position for position, record in enumerate(run.records) if "theory" in record]
    try:
        history = tuple(_point(run, run.records[: position + 1]) for position in recorded)
        return Bound(run, _point(run, run.records), history, caveats(run))
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise CheckpointError(
            f"the records of {path} are damaged or of another version ({error!r}); train the run again"
        ) from None


def _point(run: BoundRun, records: Sequence[Record]) -> Point:
    """The theorem of the run as if it had ended with the last of `records`."""
    estimates = [record["theory"] for record in records if "theory" in record]
    units = [np.array(record["units"], dtype=float) for record in records]
    constants = _constants(estimates, records)
    imbalance = float(np.mean([len(counts) * (counts / counts.sum(axis=0)).max() for counts in units]))
    error = float(np.mean([record["aggregation_error"] for record in records])) if run.over_the_air else 0.0
    norms = [estimate["gradient_norm"] for estimate in estimates]
    schedule = Schedule(len(records), run.edge_rounds, run.local_steps)
    return Point(
        rounds=len(records),
        gradient_norm=norms[-1],
        measured=float(np.mean(norms)),
        constants=constants,
        imbalance=imbalance,
        aggregation_error=error,
        terms=_terms(run, constants, schedule, imbalance, error),
    )


def _constants(estimates: Sequence[Record], records: Sequence[Record]) -> Constants:
    def mean(name: str) -> float:
        return max(0.0, float(np.mean([estimate[name] for estimate in estimates])))

    def largest_cell(name: str) -> float:
        return max(0.0, float(np.mean([estimate[name] for estimate in estimates], axis=0).max()))

    lowest = min([record["loss"] for record in records] + [estimate["loss"] for estimate in estimates])
    smoothness = max(estimate["smoothness"] for estimate in estimates)
    if smoothness <= 0:
        raise UsageError(
            "the run's loss has no curvature (L = 0); the theorems say nothing about linear losses"
        )
    return Constants(
        smoothness=smoothness,
        gradient_variance=largest_cell("gradient_variance"),
        cell_divergence=mean("cell_divergence"),
        client_divergence=largest_cell("client_divergence"),
        model_norm=mean("model_norm"),
        initial_gap=estimates[0]["loss"] - min(0.0, lowest),
    )


def _terms(
    run: BoundRun, constants: Constants, schedule: Schedule, imbalance: float, aggregation_error: float
) -> Terms:
    rate, clients = run.learning_rate, run.participants
    partial = theorem_2(constants, schedule, rate, participants_per_cell=clients, imbalance=imbalance)
    if not run.over_the_air:
        full = theorem_1(constants, schedule, rate, clients_per_cell=clients, imbalance=imbalance)
        return partial if run.partial else full
    air = theorem_3(
        constants,
        schedule,
        rate,
        clients_per_cell=clients,
        aggregation_error=aggregation_error,
        imbalance=imbalance,
    )
    if not run.partial:
        return air
    # The paper has no theorem for both at once; the error's term does not depend on who takes part.
    return (*partial[:-2], air[-3], *partial[-2:])
