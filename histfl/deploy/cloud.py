"""The cloud of a deployment: an engine whose cells are edges on machines of their own.

Algorithm 1, checkpoints, records and reports are those of a simulation; only the engine is another one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from histfl.arrays import Floats, Ints
from histfl.data import Split, TensorData
from histfl.deploy.dispatcher import Answer, Dispatcher
from histfl.deploy.kits import client_name, edge_name
from histfl.deploy.messages import BadMessage, Message
from histfl.deploy.protocol import (
    RunInfo,
    Terms,
    cell_result,
    cell_work,
    evaluation_of,
    evaluation_work,
    structure_of,
    tables_of,
)
from histfl.deploy.refused import check_deployable, check_noise
from histfl.errors import DivergedError, UsageError
from histfl.network import Network
from histfl.runs.build import Experiment, Ingredients, build, check, load_model
from histfl.runs.config import Config
from histfl.runs.jobs import Execution
from histfl.runs.named import load_data, num_outputs
from histfl.runs.sizes import size_policy
from histfl.settings import GIVEN
from histfl.training import CellJob, CellResult, CellSchedule, Hist
from histfl.training.evaluation import Evaluation
from histfl.training.jobs import CellLink, Measured, RoundJobs
from histfl.training.methods import METHODS
from histfl.training.objective import Objective
from histfl.wireless.clock import Clock
from histfl.wireless.costs import AffineCost, AnyCost

NEWEST = 0.5  # the weight of the last round among all before it


class DeployedEngine:
    """A job is asked of the edge of its cell; who does not answer keeps its units' old values for that round."""

    name = "deployed"

    def __init__(
        self, dispatcher: Dispatcher, terms: Terms, estimates: Estimates, say: Callable[[str], None]
    ) -> None:
        self._dispatcher, self._terms, self._estimates, self._say = dispatcher, terms, estimates, say

    def run(self, jobs: Sequence[CellJob]) -> Iterator[CellResult]:
        if len(jobs) == 0:
            return
        places = {
            edge_name(schedule.cell): place for place, schedule in enumerate(RoundJobs.of(jobs).schedules)
        }
        found: dict[int, CellResult] = {}
        least = min(self._terms.min_cells, len(jobs))
        bad: set[int] = set()
        while len(found) + len(bad) < least:
            self._dispatcher.gather(
                lambda there: len(places.keys() & there.keys()) >= least,
                lambda missed: self._say(f"{missed}; a round takes {least} at least (--min-cells)"),
            )
            asked = {name: place for name, place in places.items() if place not in found and place not in bad}
            work = {name: cell_work(jobs[place]) for name, place in asked.items()}
            began = time.monotonic()
            for name, came in self._dispatcher.ask(
                work, lambda name, message: cell_result(message, jobs[places[name]])
            ):
                place = places[name]
                if isinstance(came, Answer):
                    job = jobs[place]
                    found[place] = _with_link(cell_result(came.message, job), came)
                    self._estimates.add(job, found[place])
                    continue
                if came.bad:
                    bad.add(place)
        _check_heard(found.values(), jobs[0].round)
        for place in range(len(jobs)):
            if place in found:
                yield found.pop(place)
            else:
                yield _kept(jobs[place], time.monotonic() - began)

    def evaluate(self, model: nn.Module, objective: Objective) -> list[Evaluation]:
        """What the model comes to on the data of every client that is there, by their numbers."""
        work = evaluation_work(model)
        found: dict[int, Evaluation] = {}
        asked = dict.fromkeys(self._dispatcher.joined(), work)
        cells = self._dispatcher.kit.about

        def told(name: str, message: Message) -> dict[int, Evaluation]:
            return _evaluations(message, cells.clients_of(int(name.removeprefix("edge"))), objective)

        for name, came in self._dispatcher.ask(asked, told):
            if isinstance(came, Answer):
                found |= told(name, came.message)
        return [found[client] for client in sorted(found)]

    def close(self) -> None:
        """The dispatcher is its owner's."""


def _evaluations(message: Message, clients: Collection[int], objective: Objective) -> dict[int, Evaluation]:
    """What an edge's `clients` came to, by their numbers; a BadMessage where that is not understood."""
    numbers = {client_name(client): client for client in clients}
    match message.about.get("found"):
        case dict(told) if told.keys() <= numbers.keys():
            return {numbers[name]: evaluation_of(about, objective) for name, about in told.items()}
    raise BadMessage("its clients' evaluations are not understood")


def _check_heard(found: Collection[CellResult], round: int) -> None:
    """A DivergedError where all that clients sent were no numbers: nobody else can tell."""
    bad = [result.measured.bad for result in found if result.measured is not None]
    if sum(bad) and not any(result.client_steps for result in found):
        raise DivergedError(f"training diverged in round {round + 1}: no client sent finite numbers")


def _with_link(result: CellResult, answer: Answer) -> CellResult:
    """With what the cloud saw of it."""
    assert result.measured is not None
    own = {"seconds": answer.seconds, "bytes_from_cloud": answer.bytes_out, "bytes_to_cloud": answer.bytes_in}
    return dataclasses.replace(result, measured=dataclasses.replace(result.measured, **own))  # type: ignore[arg-type]


def _kept(job: CellJob, seconds: float) -> CellResult:
    """Of a cell that did not answer: its submodel as it was."""
    missed = tuple(
        int(client) for edge_round in range(len(job.schedule.arrived)) for client in job.clients(edge_round)
    )
    return CellResult(job.start, None, 0, 0.0, job.memory, Measured(seconds, missed=missed, lost=True))


# What cells really take, by the size of their submodels: a moving estimate, by which the next ones are sized.


@dataclass
class Estimates:
    """Seconds of a global round a parameter, by cell.

    A cell's seconds are taken to go in proportion to its parameters. What does not, such as the delay of a link, makes
    a small submodel's estimate larger; the sizes at which no estimate changes any more are those of equal seconds.
    """

    slopes: dict[int, float] = field(default_factory=dict)

    def add(self, job: CellJob, result: CellResult) -> None:
        measured = result.measured
        if measured is None or measured.lost or result.client_steps == 0:
            return
        slope = measured.seconds / sum(tensor.numel() for tensor in job.start.values())
        before = self.slopes.get(job.cell.index, slope)
        self.slopes[job.cell.index] = (1 - NEWEST) * before + NEWEST * slope


@dataclass(frozen=True)
class MeasuredClock(Clock):
    """A clock that sizes submodels by what was measured, as soon as all cells of a round were; the seconds that are
    counted are those of the network as it is described."""

    estimates: Estimates = field(default_factory=Estimates)

    @classmethod
    def of(cls, run: Hist, estimates: Estimates) -> MeasuredClock:
        """That of a run which is built already."""
        assert isinstance(run.clock, Clock)
        return cls(run.clock.computing, run.clock.uplink, estimates)

    def cost_by_size(
        self, network: Network, schedules: Sequence[CellSchedule], links: Sequence[CellLink]
    ) -> AnyCost:
        if not self._knows(schedules):
            return super().cost_by_size(network, schedules, links)
        slopes = [self.estimates.slopes[schedule.cell] for schedule in schedules]
        return AffineCost(np.zeros(len(slopes)), np.array(slopes, dtype=float))

    def foretold(
        self,
        cost: AnyCost,
        network: Network,
        schedules: Sequence[CellSchedule],
        links: Sequence[CellLink],
        parameters: Ints,
        coded: Floats,
    ) -> float:
        if not self._knows(schedules):
            return super().foretold(cost, network, schedules, links, parameters, coded)
        return float(cost.seconds(parameters).max())  # of updates as they were written

    def _knows(self, schedules: Sequence[CellSchedule]) -> bool:
        return all(schedule.cell in self.estimates.slopes for schedule in schedules)


@dataclass(frozen=True)
class OnMachines(Execution):
    """Runs are carried out by the edges that call `dispatcher`, on `terms`; the cloud evaluates on `test`, or on the test set
    of the data that the configuration names."""

    dispatcher: Dispatcher | None = None
    terms: Terms = field(default_factory=Terms)
    test: TensorData | None = None
    start_s: float = 60.0
    say: Callable[[str], None] = print

    def prepare(self, config: Config) -> Experiment:
        """As soon as all edges and clients are there, or `start_s` is over and enough of them are."""
        assert self.dispatcher is not None
        experiment, told = prepared(
            config, self.dispatcher.kit.about.cells, self.terms, self.test, self.data_dir, self.device
        )
        self.dispatcher.welcome(told.message())
        sizes = self._sizes(experiment.hist.network.num_clients)
        run, estimates = experiment.hist, Estimates()
        policy = size_policy(
            config.method,
            run.plan,
            run.network,
            MeasuredClock.of(run, estimates),
            method=METHODS[config.method.name],
            dealer=run.dealer,
            num_active=run.participation.num_cells(run.network),
            encoding=run.encoding,
        )
        task = dataclasses.replace(run.task, split=Split.kept_elsewhere(sizes))
        engine = DeployedEngine(self.dispatcher, self.terms, estimates, self.say)
        return dataclasses.replace(
            experiment,
            hist=dataclasses.replace(run, task=task, sizes=policy),
            engine=engine,
            on_holders=partial(engine.evaluate, objective=run.task.objective),
        )

    def _sizes(self, num_clients: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """[client]: the samples of those that are there, 0 for the others."""
        assert self.dispatcher is not None
        about, began = self.dispatcher.kit.about, time.monotonic()
        cells = about.cells

        def enough(there: Mapping[str, Mapping[str, Any]]) -> bool:
            present = [len(_samples(there.get(edge_name(cell), {}))) for cell in range(len(cells))]
            if present == list(cells):
                return True
            late = time.monotonic() - began > self.start_s
            ready = sum(
                n >= min(self.terms.min_clients, all_) for n, all_ in zip(present, cells, strict=True)
            )
            return late and ready >= min(self.terms.min_cells, len(cells))

        def missed(there: Mapping[str, Mapping[str, Any]]) -> list[str]:
            """Edges, and of those that are there the clients."""
            names = []
            for cell in range(len(cells)):
                edge = edge_name(cell)
                here = _samples(there.get(edge, {}))
                clients = [client_name(client) for client in about.clients_of(cell) if client not in here]
                names += clients if edge in there else [edge]
            return names

        late = f"; a part of them is enough {self.start_s:g} s after the start (--start, --min-cells, --min-clients)"
        joined = self.dispatcher.gather(enough, lambda waiting: self.say(f"{waiting}{late}"), missed)
        sizes = np.zeros(num_clients, dtype=np.int64)
        for told in joined.values():  # those that were enough: in a moment one may be silent
            for client, samples in _samples(told).items():
                sizes[client] = samples
        there = int((sizes > 0).sum())
        self.say(f"{there} of {num_clients} clients are there, with {int(sizes.sum()):,} samples")
        return sizes


def _samples(about: Mapping[str, Any]) -> dict[int, int]:
    """Of an edge's clients by their numbers."""
    told = about.get("samples")
    return (
        {int(name.removeprefix("c")): int(n) for name, n in told.items()} if isinstance(told, Mapping) else {}
    )


def prepared(
    config: Config,
    cells: tuple[int, ...],
    terms: Terms,
    test: TensorData | None = None,
    data_dir: Path | None = None,
    device: str = "auto",
) -> tuple[Experiment, RunInfo]:
    """The run as the cloud has it, without any client's samples, and what it tells the other machines."""
    check_deployable(config)
    network = check(config)
    if tuple(network.clients_per_cell.tolist()) != cells:
        raise UsageError(
            f"the run has cells of {network.clients_per_cell.tolist()} clients, and the kits cells of {list(cells)}; set "
            f"network.cells and network.clients, or network.profile = the file that the kits were made from"
        )
    check_noise(config, network, terms)
    if test is None:
        if config.data.name == GIVEN:
            raise UsageError(
                "data.name = 'given': the run's test set came from --data of histfl cloud; give it again"
            )
        _, test = load_data(config, data_dir)
    outputs = num_outputs(config, test)
    model = load_model(config, test, outputs, data_dir=data_dir)
    nobody = Split.kept_elsewhere(np.zeros(network.num_clients, dtype=np.int64))
    ingredients = Ingredients(model, test, test, network, split=nobody)
    experiment = build(config, ingredients, device=device, engine="reference")
    told = RunInfo(tables_of(config), terms, outputs, test.class_names, *structure_of(model))
    return experiment, told
