"""Algorithm 1 of HIST: hierarchical independent submodel training.

Methods differ by the partition plan and the sizes alone: with every unit in every cell this is
hierarchical FedAvg, with one cell and one edge round it is FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from histfl import arguments
from histfl.arrays import Floats, Ints
from histfl.errors import DivergedError
from histfl.network import Network
from histfl.partition import Plan, State, Submodel, extract, merge, tensor_sizes
from histfl.training.cloud import CloudStep, stepped
from histfl.training.codecs import Encoding
from histfl.training.dealers import Dealer, dealt
from histfl.training.jobs import (
    CellJob,
    CellLink,
    CellResult,
    Clock,
    Engine,
    RoundCost,
    RoundJobs,
    Task,
    after_merge,
    drawn,
)
from histfl.training.memory import Carried, Memory
from histfl.training.participation import CellSchedule, Participation
from histfl.training.scaling import Scaling


@dataclass(frozen=True)
class SizeChoice:
    """The units [cell, group] of a round's submodels, the seconds that the choice promises, and the cap it
    kept: none of the n cells of the round holds more than cap / n of a group (None: it looked at no cap)."""

    counts: Ints
    predicted_seconds: float | None = None
    cap: float | None = None


SizePolicy = Callable[[Sequence[CellSchedule], Sequence[CellLink]], SizeChoice]


@dataclass(frozen=True)
class Hist:
    """One training run, before it starts. `sizes` chooses how many units a round's submodels have, `dealer` which
    ones; `cloud` makes the new model of the merged one; `encoding` says what an update takes on its way."""

    task: Task
    network: Network
    plan: Plan
    sizes: SizePolicy
    participation: Participation
    edge_rounds: int
    dealer: Dealer
    cloud: CloudStep
    clock: Clock
    encoding: Encoding
    scaling: Scaling = field(default_factory=Scaling)


@dataclass(frozen=True)
class RoundOutcome:
    """What one global round did: the new model and how it came about.

    `parameters` are the trained numbers [cell] of the submodels, `bits` [cell] what one update of a client takes.
    Cells are those that took part, in the order of `schedules`, which name them; of their `results` the states have
    gone into the model.
    """

    round: int
    state: State
    choice: SizeChoice
    parameters: Ints
    bits: Floats
    submodels: tuple[Submodel, ...]
    schedules: tuple[CellSchedule, ...]
    results: tuple[CellResult, ...]
    cost: RoundCost
    carried: Carried


@dataclass(frozen=True)
class _Round:
    """A global round whose cells are about to train; `state` is the model that they cut."""

    run: Hist
    number: int
    state: State
    submodels: Sequence[Submodel]
    schedules: Sequence[CellSchedule]
    links: Sequence[CellLink]
    carried: Carried

    def job(self, place: int) -> CellJob:
        """What the cell at this place among the round's is asked to do."""
        schedule = self.schedules[place]
        return CellJob(
            self.run.task,
            self.run.network.cell(schedule.cell),
            self.number,
            *_compact(self.run, self.state, self.submodels[place]),
            schedule,
            self.links[place],
            self._memory(place),
            self.submodels[place].kept,
        )

    def _memory(self, place: int) -> Memory:
        schedule = self.schedules[place]
        first_client = self.run.network.cell(schedule.cell).first_client
        clients = np.unique(np.concatenate(schedule.arrived)) + first_client
        return self.carried.memory(schedule.cell, clients, self.submodels[place])

    def weights(self) -> Iterator[float]:
        """The cells' weights in the merge."""
        network, task = self.run.network, self.run.task
        return (task.weight(network.cell(schedule.cell), schedule) for schedule in self.schedules)

    def parts(
        self, found: Iterable[CellResult], results: list[CellResult]
    ) -> Iterator[tuple[Submodel, State]]:
        """The cells' parts of the new model as they come in; what else is found goes into `results`."""
        for submodel, schedule, result in zip(self.submodels, self.schedules, found, strict=True):
            if result.loss is not None and not math.isfinite(result.loss):
                raise DivergedError(
                    f"training diverged in round {self.number + 1}, cell {schedule.cell}: the loss is {result.loss}",
                    "training.proximal" if self.run.task.local.proximal else "",
                )
            whose = f"the error of the uplink {type(self.run.task.uplink).__name__}"
            if not math.isfinite(result.edge_error):  # of updates too large to be squared, if not of its own
                raise DivergedError(
                    f"training diverged in round {self.number + 1}, cell {schedule.cell}: {whose} is {result.edge_error}"
                )
            arguments.not_negative(f"{whose} in round {self.number + 1}", result.edge_error)
            results.append(result if self._corrects else replace(result, state={}))
            yield submodel, result.state

    def kept(self, results: Sequence[CellResult], merged: State) -> list[Memory]:
        """What the cells and their clients keep of the round, whose end the model `merged` is."""
        if not self._corrects:
            return [result.memory for result in results]
        return [
            after_merge(self.job(place), result, merged, self.submodels[place])
            for place, result in enumerate(results)
        ]

    @property
    def _corrects(self) -> bool:
        return self.run.task.local.correction is not None


def hist(
    run: Hist,
    state: State,
    engine: Engine,
    *,
    first_round: int,
    rounds: int,
    carried: Carried | None = None,
) -> Iterator[RoundOutcome]:
    """Train from `state` (all parameters) and yield after every global round (Algorithm 1, lines 2-13).

    Where the cloud samples cells, a round is Algorithm 1 on the network of the sampled ones. A run that goes on
    is given what the round before `carried`.
    """
    task, network, seeds = run.task, run.network, run.task.seeds
    carried = carried or Carried()
    for t in range(first_round, rounds):
        schedules = run.participation.schedules(network, run.edge_rounds, t, seeds)
        cells = [schedule.cell for schedule in schedules]
        links = drawn(task.uplink, network, schedules, t, seeds)
        choice = run.sizes(schedules, links)
        submodels = dealt(run.dealer, run.plan, choice.counts, cells, t, seeds)
        this = _Round(run, t, state, submodels, schedules, links, carried)
        results: list[CellResult] = []
        found = engine.run(RoundJobs(task, schedules, this.job))
        merged = merge(state, this.parts(found, results), this.weights())
        state, memory = stepped(run.cloud, state, merged, carried.cloud)
        kept = this.kept(results, merged)
        carried = carried.after(memory, zip(cells, submodels, kept, strict=True), state)
        sizes = [tensor_sizes(submodel) for submodel in submodels]
        parameters, bits = np.array([*map(sum, sizes)]), np.array([*map(run.encoding.bits, sizes)])
        coded = run.encoding.coded(parameters, bits)
        cost = run.clock.cost(network, schedules, links, parameters, coded=coded)
        ends = tuple(replace(result, state={}) for result in results)
        yield RoundOutcome(t, state, choice, parameters, bits, submodels, schedules, ends, cost, carried)


def _compact(run: Hist, state: State, submodel: Submodel) -> tuple[State, State]:
    """The submodel's trained tensors, and its constants: frozen ones that are cut with them, and scales."""
    trainable = run.plan.trainable
    trained = {name: value for name, value in state.items() if name in trainable}
    frozen = {name: state[name] for name in submodel.positions if name not in trainable}
    scales = run.scaling.constants(submodel, run.task.data.device)
    return extract(trained, submodel), extract(frozen, submodel) | scales
