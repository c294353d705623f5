"""`histfl bound`: a run's theorem, term by term, on the constants that the run recorded (HIST Sec. III, V-C).

From estimates at recorded rounds to the constants of a theorem: sigma^2, delta1^2, delta2^2 and ||x||^2 are
means over the rounds, since the proofs sum them over rounds and unbiased estimates want averaging; sigma^2
and delta2^2 are then the largest of the cells' means, as Assumptions 4 and 6 ask; L is the largest of all
rounds, since the step sizes must suit every one. f* is 0, or the lowest recorded loss if that is negative.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from histfl.errors import CheckpointError, UsageError
from histfl.network import spread_evenly
from histfl.runs.config import Config
from histfl.runs.records import Record
from histfl.runs.run import Run, read_run
from histfl.runs.store import RunFolder
from histfl.theory import (
    Condition,
    Constants,
    Duration,
    Largest,
    StepSizes,
    Terms,
    theorem_1,
    theorem_2,
    theorem_3,
)
from histfl.training.corrections import NO_CORRECTION
from histfl.training.methods import METHODS, has_theorems
from histfl.wireless.uplinks import UPLINKS, kind_of

VACUOUS = 100.0  # times the measured gradient: two orders of magnitude tell nothing about training


@dataclass(frozen=True)
class Setting:
    """What the theorems read of a run's settings. `participants` [cell] are the clients of an edge round."""

    config: Config
    clients_per_cell: tuple[int, ...]

    @property
    def edge_rounds(self) -> int:
        return self.config.training.edge_rounds

    @property
    def local_steps(self) -> int:
        return self.config.training.local_steps

    @property
    def learning_rate(self) -> float:
        return self.config.training.learning_rate

    @property
    def over_the_air(self) -> bool:
        return kind_of(self.config.uplink.name).noisy

    @property
    def participants(self) -> tuple[int, ...]:
        """n'_j; where updates are lost, those that arrive on average, rounded down."""
        network = self.config.network
        most = math.inf if network.participants == "all" else network.participants
        arriving = (min(count, most) * (1 - network.dropout) for count in self.clients_per_cell)
        return tuple(max(1, math.floor(round(count, 9))) for count in arriving)

    @property
    def partial(self) -> bool:
        return self.config.network.dropout > 0 or self.participants != self.clients_per_cell

    @property
    def theorem(self) -> int:
        """1: all clients; 2: some of them; 3: over the air."""
        return 3 if self.over_the_air else 2 if self.partial else 1


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

    run: Run
    setting: Setting
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
        return StepSizes(
            self.final.constants.smoothness, self.setting.participants, partial=self.setting.partial
        )

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.steps.conditions(
            edge_rounds=self.setting.edge_rounds, local_steps=self.setting.local_steps
        )

    @property
    def binding(self) -> Condition:
        return self.steps.binding(edge_rounds=self.setting.edge_rounds, local_steps=self.setting.local_steps)

    @property
    def holds(self) -> bool:
        """Whether the run's learning rate meets the theorem's conditions."""
        return self.setting.learning_rate <= self.binding.limit

    @cached_property
    def largest_local_steps(self) -> Largest:
        return self.steps.largest_local_steps(
            self.setting.learning_rate, edge_rounds=self.setting.edge_rounds
        )

    @cached_property
    def largest_edge_rounds(self) -> Largest:
        return self.steps.largest_edge_rounds(
            self.setting.learning_rate, local_steps=self.setting.local_steps
        )

    def as_json(self) -> dict[str, Any]:
        final = self.final
        return {
            "run": self.run.place,
            "theorem": self.setting.theorem,
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
                "learning_rate": self.setting.learning_rate,
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


def bound_in(path: Path) -> Bound:
    """The bound of the run in folder `path`; a folder that holds none says what to do."""
    folder = RunFolder(path)
    if not folder.config_path.is_file():
        inside = sorted(each.parent.name for each in path.glob(f"*/{folder.config_path.name}"))
        hint = f"it holds the runs {', '.join(inside)}; give one of them" if inside else "give a run's folder"
        raise UsageError(f"{path} holds no run ({folder.config_path.name} is missing); {hint}")
    return bound_of(read_run(path, path.name))


def bound_of(run: Run) -> Bound:
    """The bound of a run of HIST with recorded constants, from its configuration and records alone."""
    setting = _setting(run)
    recorded = [position for position, record in enumerate(run.records) if "theory" in record]
    try:
        history = tuple(_point(setting, run.records[: position + 1]) for position in recorded)
        return Bound(run, setting, _point(setting, run.records), history, tuple(_caveats(setting, run)))
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise CheckpointError(
            f"the records of {run.place} are damaged or of another version ({error!r}); train the run again"
        ) from None


def _setting(run: Run) -> Setting:
    """A UsageError where the theorems say nothing about the run."""
    config = run.config
    if not has_theorems(config.method.name):
        known = " or ".join(repr(name) for name in METHODS if has_theorems(name))
        raise UsageError(
            f"{run.place} is a run of method {config.method.name!r}; the theorems are about disjoint submodels "
            f"that cover the model, so give a run of method {known}"
        )
    if config.method.scale:
        raise UsageError(
            f"{run.place} is a run with method.scale = {config.method.scale:g}; the theorems are about submodels that are "
            "not scaled, so give a run without it"
        )
    if config.uplink.name not in UPLINKS:
        raise UsageError(
            f"{run.place} is a run with uplink.name = {config.uplink.name!r}; the theorems are about the clients' mean, exact "
            f"or with the noise of the air, so give a run over {', '.join(UPLINKS)}"
        )
    if config.network.active_cells != "all":
        raise UsageError(
            f"{run.place} is a run with network.active_cells = {config.network.active_cells}; the theorems are about "
            "networks in which every cell trains in every round, so give a run without it"
        )
    if not any("theory" in record for record in run.records):
        raise UsageError(
            f"{run.place} has no recorded constants; train again with --set theory.every=5 and another --out"
        )
    return Setting(config, _clients_per_cell(run))


def _clients_per_cell(run: Run) -> tuple[int, ...]:
    network, counts = run.config.network, run.summary.get("clients_per_cell")
    if network.profile in ("uniform", "paper"):
        return tuple(spread_evenly(network.clients, network.cells).tolist())
    if not run.finished:
        raise UsageError(
            f"{run.place} is not finished, and its clients per cell are told by summary.json alone; finish the run with "
            "--resume"
        )
    if (
        not isinstance(counts, list)
        or not all(type(count) is int and count > 0 for count in counts)
        or (len(counts), sum(counts)) != (network.cells, network.clients)
    ):
        raise CheckpointError(
            f"summary.json of {run.place}: clients_per_cell = {counts} is not of {network.cells} cells and "
            f"{network.clients} clients; train the run again"
        )
    return tuple(counts)


def _point(setting: Setting, records: Sequence[Record]) -> Point:
    """The theorem of the run as if it had ended with the last of `records`."""
    estimates = [record["theory"] for record in records if "theory" in record]
    units = [np.array(record["units"], dtype=float) for record in records]
    constants = _constants(estimates, records)
    imbalance = float(np.mean([len(counts) * (counts / counts.sum(axis=0)).max() for counts in units]))
    error = (
        float(np.mean([record["aggregation_error"] for record in records])) if setting.over_the_air else 0.0
    )
    norms = [estimate["gradient_norm"] for estimate in estimates]
    duration = Duration(len(records), setting.edge_rounds, setting.local_steps)
    return Point(
        rounds=len(records),
        gradient_norm=norms[-1],
        measured=float(np.mean(norms)),
        constants=constants,
        imbalance=imbalance,
        aggregation_error=error,
        terms=_terms(setting, constants, duration, imbalance, error),
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
    setting: Setting, constants: Constants, duration: Duration, imbalance: float, aggregation_error: float
) -> Terms:
    rate, clients = setting.learning_rate, setting.participants
    partial = theorem_2(constants, duration, rate, participants_per_cell=clients, imbalance=imbalance)
    if not setting.over_the_air:
        full = theorem_1(constants, duration, rate, clients_per_cell=clients, imbalance=imbalance)
        return partial if setting.partial else full
    air = theorem_3(
        constants,
        duration,
        rate,
        clients_per_cell=clients,
        aggregation_error=aggregation_error,
        imbalance=imbalance,
    )
    if not setting.partial:
        return air
    # The paper has no theorem for both at once; the error's term does not depend on who takes part.
    return (*partial[:-2], air[-3], *partial[-2:])


def _caveats(setting: Setting, run: Run) -> Iterator[str]:
    """Where the run departs from the theorems' assumptions, a sentence each."""
    training = run.config.training
    if training.optimiser != "sgd":
        yield f"The theorems are about plain SGD; this run has optimiser = {training.optimiser!r}."
    for name in ("momentum", "weight_decay", "clip_norm", "proximal"):
        if value := getattr(training, name):
            yield f"The theorems are about plain SGD; this run has {name} = {value:g}."
    if training.correction != NO_CORRECTION:
        yield f"The theorems are about plain gradients; this run has correction = {training.correction!r}."
    if training.schedule != "constant" or training.warmup_rounds:
        yield (
            f"The theorems are about one learning rate; this run's follows schedule = {training.schedule!r} with "
            f"warmup_rounds = {training.warmup_rounds}, and the bound is of the highest."
        )
    if run.config.network.dropout > 0:
        yield "Updates were lost; the bound counts the clients whose updates arrive on average, rounded down."
    if setting.over_the_air and setting.partial:
        yield (
            "No theorem of the paper covers partial participation over the air: these are Theorem 2's "
            "conditions and terms, and Theorem 3's term of the aggregation error."
        )
    cells, sizes = len(setting.clients_per_cell), run.records[-1]["submodel_parameters"]
    parameters = next(record["theory"] for record in run.records if "theory" in record)["parameters"]
    everywhere = round((sum(sizes) - parameters) / (cells - 1)) if cells > 1 else 0
    if everywhere > 0:
        yield (
            f"{everywhere:,} of {parameters:,} parameters are held by every cell and averaged; the theorems "
            "assume that none is."
        )
