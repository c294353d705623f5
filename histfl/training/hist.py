"""Algorithm 1 of HIST: hierarchical independent submodel training.

Methods differ by the partition plan and the sizes alone: with every unit in every cell this is
hierarchical FedAvg, with one cell and one edge round it is FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from histfl.arrays import Ints
from histfl.errors import DivergedError
from histfl.network import Network
from histfl.partition import Plan, State, Submodel, extract, merge
from histfl.training.cloud import CloudStep
from histfl.training.jobs import CellJob, CellLink, CellResult, Clock, Engine, RoundCost, Task
from histfl.training.methods import Dealer
from histfl.training.participation import CellSchedule, Participation


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
    ones; `cloud` makes the new model of the merged one."""

    task: Task
    network: Network
    plan: Plan
    sizes: SizePolicy
    participation: Participation
    edge_rounds: int
    dealer: Dealer
    cloud: CloudStep
    clock: Clock


@dataclass(frozen=True)
class Carried:
    """What outlives a round besides the model: the cloud's memory, and by number that of the cells that took part."""

    cloud: State = field(default_factory=dict)
    cells: Mapping[int, State] = field(default_factory=dict)

    def tensors(self) -> State:
        """All of it by name, `cloud/NAME` and `cells/NUMBER/NAME`."""
        cloud = {f"cloud/{name}": tensor for name, tensor in self.cloud.items()}
        return cloud | {
            f"cells/{cell}/{name}": tensor for cell, own in self.cells.items() for name, tensor in own.items()
        }

    @classmethod
    def of(cls, tensors: State) -> Carried:
        """What has these `tensors`; a ValueError where a name is none of ours."""
        cloud: State = {}
        cells: dict[int, State] = {}
        for path, tensor in tensors.items():
            place, _, name = path.partition("/")
            if place == "cloud":
                cloud[name] = tensor
            elif place == "cells":
                number, _, name = name.partition("/")
                cells.setdefault(int(number), {})[name] = tensor
            else:
                raise ValueError(f"{path!r} is nothing that a run carries")
        return cls(cloud, cells)

    def after(self, cloud: State, cells: Mapping[int, State]) -> Carried:
        """With the round's own; cells with nothing to keep take no room."""
        return Carried(cloud, {**self.cells, **{cell: own for cell, own in cells.items() if own}})


@dataclass(frozen=True)
class RoundOutcome:
    """What one global round did: the new model and how it came about.

    `parameters` are the trained numbers [cell] of the submodels. Cells are those that took part, in the
    order of `schedules`, which name them.
    """

    round: int
    state: State
    choice: SizeChoice
    parameters: Ints
    submodels: tuple[Submodel, ...]
    schedules: tuple[CellSchedule, ...]
    results: tuple[CellResult, ...]
    cost: RoundCost
    carried: Carried


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
        links = task.uplink.draw(network, schedules, t, seeds)
        choice = run.sizes(schedules, links)
        submodels = run.dealer.deal(run.plan, choice.counts, cells, t, seeds)
        jobs = [
            CellJob(
                task,
                network.cell(schedule.cell),
                t,
                *_compact(run.plan, state, submodel),
                schedule,
                link,
                carried.cells.get(schedule.cell, {}),
            )
            for submodel, schedule, link in zip(submodels, schedules, links, strict=True)
        ]
        results = tuple(engine.run(jobs))
        _check_finite(jobs, results)
        merged = merge(state, ((s, r.state) for s, r in zip(submodels, results, strict=True)))
        state, memory = run.cloud.step(state, merged, carried.cloud)
        carried = carried.after(memory, {cell: r.carried for cell, r in zip(cells, results, strict=True)})
        parameters = np.array([sum(x.numel() for x in job.start.values()) for job in jobs])
        cost = run.clock.cost(network, schedules, links, parameters)
        yield RoundOutcome(t, state, choice, parameters, submodels, schedules, results, cost, carried)


def _compact(plan: Plan, state: State, submodel: Submodel) -> tuple[State, State]:
    """The submodel's trained tensors, and the frozen ones that are cut with them."""
    trained = {name: value for name, value in state.items() if name in plan.trainable}
    frozen = {name: state[name] for name in submodel.positions if name not in plan.trainable}
    return extract(trained, submodel), extract(frozen, submodel)


def _check_finite(jobs: Sequence[CellJob], results: Sequence[CellResult]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if result.loss is not None and not math.isfinite(result.loss):
            raise DivergedError(
                f"training diverged in round {job.round + 1}, cell {job.cell.index}: the loss is {result.loss}"
            )
