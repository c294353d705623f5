"""An edge server: it averages what the clients of its cell send, and keeps nothing but a round's models in memory.

It is started before or after the cloud and the clients, and may be killed at any time: a round that it did not end is
asked of it again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from histfl.arrays import Ints
from histfl.data import Split, TensorData
from histfl.deploy.caller import Caller, JoinAnew, Over
from histfl.deploy.dispatcher import Answer, Dispatcher, Missed, listed
from histfl.deploy.kits import Kit, client_name
from histfl.deploy.messages import Message
from histfl.deploy.protocol import (
    RunInfo,
    Update,
    cell_answer,
    cell_job,
    client_update,
    client_work,
    evaluation_of,
    is_evaluation,
    network_of,
)
from histfl.devices import one_torch_thread
from histfl.engines.reference import Heard, run_cell
from histfl.partition import State
from histfl.runs.build import build_local
from histfl.seeds import Seeds
from histfl.training import CellJob, CellResult, Task
from histfl.training.corrections import Correction, added
from histfl.training.jobs import Measured
from histfl.training.memory import CellMemory
from histfl.training.privacy import unseeded
from histfl.wireless.uplinks import Ideal

Say = Callable[[str], None]


def serve_edge(kit: Kit, say: Say) -> None:
    """Until the cloud says that all is done."""
    caller = Caller(kit, say)
    before: Message | None = None
    patient_until = 0.0
    with Dispatcher(kit, timeout_s=60.0) as dispatcher:
        say(f"{kit.name}: listening on {dispatcher.place}, calling {kit.parent.name}")
        while True:
            try:
                info = RunInfo.of(caller.join())
                dispatcher.timeout_s = info.terms.timeout_s
                dispatcher.deadline_s = info.terms.deadline_s or math.inf
                if (message := info.message()) != before:
                    dispatcher.welcome(message)
                    before = message
                    patient_until = time.monotonic() + info.terms.timeout_s
                _serve(_Edge(kit, info, dispatcher, say, patient_until), caller)
            except JoinAnew:
                continue
            except Over:
                say(f"{kit.name}: the cloud says that all is done")
                dispatcher.end()
                return
            finally:
                caller.close()


def _serve(edge: _Edge, caller: Caller) -> None:
    while True:
        work = caller.next_work({"samples": edge.samples()})
        if work is None:
            continue
        with caller.alive(), one_torch_thread():
            answer = edge.answer(work)
        caller.answer(Message({**answer.about, "work": work.about["work"]}, answer.tensors))


class _Edge:
    """One cell of a run, whose clients were told of it, and have until `patient_until` to join."""

    def __init__(
        self, kit: Kit, info: RunInfo, dispatcher: Dispatcher, say: Say, patient_until: float
    ) -> None:
        assert kit.about.cell is not None
        self._patient_until = patient_until
        self._dispatcher, self._say, self._info = dispatcher, say, info
        self._config = info.config(f"the run of {kit.parent.name}")
        self._clients = sum(kit.about.cells)
        self._cell = network_of(kit.about.cells).cell(kit.about.cell)
        self._last: tuple[str, Message] | None = None
        self._known: dict[str, int] = {}  # also of those that are away just now

    def samples(self) -> dict[str, int]:
        """Of the clients that are there, how many samples each holds."""
        there = {name: about["samples"] for name, about in self._dispatcher.joined().items()}
        self._known |= there
        return there

    def evaluations(self, work: Message) -> Message:
        """What each of the clients that are there comes to."""
        objective = self._config.objective.made()

        def check(name: str, message: Message) -> None:
            evaluation_of(message.about, objective)

        asked = self._dispatcher.ask(dict.fromkeys(self.samples(), work), check)
        found = {name: came.message.about for name, came in asked if isinstance(came, Answer)}
        return Message(
            {
                "found": {
                    name: {key: about[key] for key in ("loss", "metrics")} for name, about in found.items()
                }
            }
        )

    def answer(self, work: Message) -> Message:
        """The cell's global round; of one that was just done, what came of it: the cloud may ask again."""
        if is_evaluation(work):
            return self.evaluations(work)
        which = _digest(work)
        if self._last is None or self._last[0] != which:
            self._gather()
            job = cell_job(work, self._task(), self._cell)
            began, rounds = (
                time.monotonic(),
                _EdgeRounds(self._dispatcher, self._info.terms.min_clients, self._say),
            )
            result = run_cell(job, rounds.hear)
            took = time.monotonic() - began
            self._last = which, cell_answer(rounds.measured(result, took))
            self._say(_sentence(job, rounds, took))
        return self._last[1]

    def _gather(self) -> None:
        """Wait for all clients: after a restart of the edge they are at work, but have not called it yet."""
        everybody = len(self._dispatcher.kit.children)
        self._dispatcher.gather(
            lambda there: len(there) == everybody or time.monotonic() > self._patient_until, self._say
        )

    def _task(self) -> Task:
        """What an edge has to know of the run: neither the model nor data."""
        config, sizes = self._config, np.zeros(self._clients, dtype=np.int64)
        self.samples()
        for name, samples in self._known.items():
            sizes[_number(name)] = samples
        return Task(
            model=nn.Module(),
            data=TensorData(torch.zeros(1, 1), torch.zeros(1)),
            split=Split.kept_elsewhere(sizes),
            local=build_local(config),
            objective=config.objective.made(),
            uplink=Ideal(),
            seeds=Seeds(config.training.seed),
            codec=config.codec.made(),
            weighted=config.training.weights == "samples",
            privacy=unseeded(config.privacy.made()),
        )


@dataclass
class _EdgeRounds:
    """A cell's clients in one global round."""

    dispatcher: Dispatcher
    min_clients: int
    say: Say
    heard: int = 0
    missed: list[int] = field(default_factory=list)
    bad: int = 0
    training_seconds: float = 0.0
    link_seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0

    def hear(
        self, job: CellJob, memory: CellMemory, correction: Correction | None, state: State, edge_round: int
    ) -> Heard:
        """The clients of an edge round that answer, in the order of their numbers."""
        clients = job.clients(edge_round)
        found: dict[int, Update] = {}
        answers: dict[int, Answer] = {}
        bad: set[int] = set()  # once is enough: they train to the same again
        while len(found) + len(bad) < min(self.min_clients, len(clients)):
            self._wait_for_some(clients)
            asked = [client for client in map(int, clients) if client not in found and client not in bad]
            for client, came in self._ask(job, correction, state, edge_round, asked):
                if isinstance(came, Answer):
                    answers[client] = came
                    found[client] = client_update(came.message, job, state, edge_round, client)
                elif came.bad:
                    bad.add(client)
        self._measure(answers, found)
        here = np.array([client for client in map(int, clients) if client in found], dtype=np.int64)
        self.heard += len(here)
        missing = [client for client in map(int, clients) if client not in found]
        self.missed += missing
        self.bad += len(bad)

        def updates() -> Iterator[tuple[State, torch.Tensor]]:
            for client in here:
                update = found[int(client)]
                if correction is not None:
                    correction.trained(np.array([client]), state, update.model)
                yield update.model, update.loss

        return Heard(here, updates())

    def _ask(
        self, job: CellJob, correction: Correction | None, state: State, edge_round: int, clients: list[int]
    ) -> Iterator[tuple[int, Answer | Missed]]:
        work = {}
        for client in clients:
            given = added(correction, np.array([client]), state)
            work[client_name(client)] = client_work(job, state, edge_round, given)

        def check(name: str, message: Message) -> None:
            client_update(message, job, state, edge_round, _number(name))

        for name, came in self.dispatcher.ask(work, check):
            yield _number(name), came

    def _wait_for_some(self, clients: Ints) -> None:
        names = {client_name(int(client)) for client in clients}
        least = min(self.min_clients, len(clients))
        self.dispatcher.gather(
            lambda there: len(names & set(there)) >= least,
            lambda missed: self.say(f"{missed}; a round takes {least} at least (--min-clients)"),
        )

    def _measure(self, answers: dict[int, Answer], found: dict[int, Update]) -> None:
        if not answers:
            return
        slowest = max(answers, key=lambda client: answers[client].seconds)
        training = min(found[slowest].seconds, answers[slowest].seconds)
        self.training_seconds += training
        self.link_seconds += answers[slowest].seconds - training
        self.bytes_in += sum(answer.bytes_in for answer in answers.values())
        self.bytes_out += sum(answer.bytes_out for answer in answers.values())

    def measured(self, result: CellResult, seconds: float) -> CellResult:
        return dataclasses.replace(
            result,
            measured=Measured(
                seconds=seconds,
                training_seconds=self.training_seconds,
                link_seconds=self.link_seconds,
                bytes_from_clients=self.bytes_in,
                bytes_to_clients=self.bytes_out,
                missed=tuple(self.missed),
                bad=self.bad,
            ),
        )


def _number(name: str) -> int:
    """Of a client in the network, by its name."""
    return int(name.removeprefix("c"))


def _sentence(job: CellJob, rounds: _EdgeRounds, seconds: float) -> str:
    without = (
        f", without {listed([client_name(c) for c in sorted(set(rounds.missed))])}" if rounds.missed else ""
    )
    return f"round {job.round + 1}: {rounds.heard} updates in {seconds:.2f} s{without}"


def _digest(work: Message) -> str:
    about = {key: value for key, value in work.about.items() if key != "work"}
    found = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(work.tensors):
        found.update(
            name.encode() + work.tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return found.hexdigest()
