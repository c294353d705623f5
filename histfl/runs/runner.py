"""Carrying out runs: one after another or side by side in processes, until all are done or the time is over.

What follows a run is told in the process that asks for it, wherever the run is carried out: progress, trackers and
pages have one place and one voice. The time ends everything at a round boundary with all of it kept, so that many
runs can be done in pieces on borrowed machines.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol

import torch
from rich.console import Console

from histfl.errors import DivergedError, HistflError, UsageError, in_one_line
from histfl.runs.build import check
from histfl.runs.config import Config
from histfl.runs.jobs import Begun, Execution, Job, Message, Outcome, as_sent, finish, late
from histfl.runs.on_ray import on_ray
from histfl.runs.progress import View, progress
from histfl.runs.records import Record
from histfl.runs.run import Run
from histfl.terminal import StillAt


class Watcher(Protocol):
    """Follows one run. Rounds come in order, those of this time alone; each is on the disk when it is told."""

    def on_start(self, begun: Begun) -> None:
        """Nothing is left that could refuse the run."""

    def on_round(self, record: Record) -> None: ...

    def on_end(self, run: Run) -> None:
        """The run is done; its model is in its folder."""

    def on_diverged(self, error: DivergedError) -> None: ...

    def close(self, *, finished: bool) -> None:
        """Always called, last."""


class BrokenRun(HistflError):
    """A process that carried out a run was ended from outside."""


def check_all(configs: Mapping[str, Config], console: Console) -> None:
    """A UsageError, which names the run, where settings do not fit together: before the first one trains, which may
    take long."""
    with StillAt(f"checking {len(configs)} runs", console) as still:
        for name, config in configs.items():
            still.at(f"checking the settings of {name}")
            with _naming(name if len(configs) > 1 else None):
                check(config)


def carry_out(
    jobs: Sequence[Job],
    execution: Execution,
    console: Console,
    watch: Callable[[Job], Watcher],
    *,
    done_before: int = 0,
) -> dict[str, Outcome]:
    """Carry out the runs, as many at a time and as long as `execution` has it; what became of each, by its name.

    `watch` makes what follows a run as it is taken up. A run that diverges is told, and the others go on; any other
    error ends all of them, with their whole rounds kept, and names the run where there are several. On Ray the others
    go on then, too, and those with errors are named at the end.
    """
    deadline = None if execution.minutes is None else time.time() + 60 * execution.minutes
    with progress({job.name: job.rounds for job in jobs}, console, done_before=done_before) as view:
        dispatcher = _Dispatcher(watch, view, named=len(jobs) + done_before > 1)
        try:
            if execution.parallel == "ray":
                _on_ray(jobs, execution, deadline, dispatcher)
            elif (parallel := min(execution.parallel, len(jobs))) > 1:
                _side_by_side(jobs, execution, deadline, dispatcher, parallel)
            else:
                _one_by_one(jobs, execution, deadline, dispatcher)
        finally:
            dispatcher.close()
    return {job.name: dispatcher.outcomes.get(job.name, "left") for job in jobs}


@contextmanager
def _naming(name: str | None) -> Iterator[None]:
    """An error of the user's, or of a run, names the run that it is about."""
    try:
        yield
    except HistflError as error:
        if name is not None:
            error.args = (f"{name}: {error}",)
        raise


class _Dispatcher:
    """Gives what runs tell on to the view and to their watchers; what became of them is in `outcomes`."""

    def __init__(self, watch: Callable[[Job], Watcher], view: View, *, named: bool) -> None:
        self._watch, self._view, self._named = watch, view, named
        self._watchers: dict[str, Watcher] = {}
        self.outcomes: dict[str, Outcome] = {}

    def begin(self, job: Job) -> None:
        self._watchers[job.name] = self._watch(job)
        self._view.begin(job.name, job.configs[-1].objective.made())

    def hear(self, job: Job, message: Message) -> None:
        watcher = self._watchers[job.name]
        match message:
            case Begun():
                self._view.at_work(job.name, message.work)
                watcher.on_start(message)
            case Run():
                watcher.on_end(message)
            case DivergedError():
                watcher.on_diverged(message)
            case _:
                self._view.on_round(job.name, message)
                watcher.on_round(message)

    def end(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job.name] = outcome
        self._view.end(job.name, outcome)
        self._watchers.pop(job.name).close(finished=outcome == "done")

    def fail(self, job: Job) -> None:
        """An error ends the run; there is no word for what became of it."""
        self._view.end(job.name, "failed")
        self._watchers.pop(job.name).close(finished=False)

    def naming(self, job: Job) -> Any:
        return _naming(job.name if self._named else None)

    def close(self) -> None:
        """Runs that were interrupted have no end."""
        while self._watchers:
            self._watchers.popitem()[1].close(finished=False)


def _one_by_one(
    jobs: Sequence[Job], execution: Execution, deadline: float | None, dispatcher: _Dispatcher
) -> None:
    for job in jobs:
        if late(deadline):
            return
        dispatcher.begin(job)
        with dispatcher.naming(job):
            outcome = finish(job, execution, deadline, partial(dispatcher.hear, job))
        dispatcher.end(job, outcome)


def _on_ray(
    jobs: Sequence[Job], execution: Execution, deadline: float | None, dispatcher: _Dispatcher
) -> None:
    failed: dict[str, Exception] = {}
    for job, said in on_ray(jobs, execution, deadline):
        if said is None:
            dispatcher.begin(job)
        elif isinstance(said, str):
            dispatcher.end(job, said)
        elif isinstance(said, Exception) and not isinstance(said, DivergedError):
            failed[job.name] = said
            dispatcher.fail(job)
            last = job
        else:
            dispatcher.hear(job, said)
    if len(failed) == 1:
        with dispatcher.naming(last):
            raise failed[last.name]
    if failed:
        usage = all(isinstance(error, UsageError) for error in failed.values())
        reasons = "; ".join(f"{name}: {in_one_line(error)}" for name, error in failed.items())
        raise (UsageError if usage else HistflError)(f"{len(failed)} of {len(jobs)} runs failed: {reasons}")


def _side_by_side(
    jobs: Sequence[Job], execution: Execution, deadline: float | None, dispatcher: _Dispatcher, parallel: int
) -> None:
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    to_do, busy = deque(jobs), dict[Connection, Job]()
    processes: list[SpawnProcess] = []
    connections: list[Connection] = []
    threads = max(1, (os.cpu_count() or 1) // parallel)

    def give(connection: Connection) -> None:
        if to_do and not late(deadline):
            busy[connection] = job = to_do.popleft()
            dispatcher.begin(job)
            connection.send(job)

    def hear(connection: Connection) -> None:
        job = busy[connection]
        try:
            message = connection.recv()
        except (EOFError, OSError):
            raise BrokenRun(
                f"a process died in the run {job.name} (memory?); all whole rounds are kept: go on with fewer than "
                f"--parallel {execution.parallel}"
            ) from None
        if isinstance(message, Exception) and not isinstance(message, DivergedError):
            with dispatcher.naming(job):
                raise message
        if isinstance(message, str):
            del busy[connection]
            dispatcher.end(job, message)  # type: ignore[arg-type]
            give(connection)
        else:
            dispatcher.hear(job, message)

    try:
        for _ in range(0 if late(deadline) else parallel):
            here, there = context.Pipe()
            connections.append(here)
            process = context.Process(target=_work, args=(there, execution, deadline, threads))
            with _without_interrupts():  # Ctrl-C reaches all processes, and this one alone heeds it
                process.start()
            processes.append(process)
            there.close()
            give(here)
        while busy:
            for connection in wait(list(busy)):
                hear(connection)  # type: ignore[arg-type]
    except BaseException:
        for process in processes:
            process.terminate()  # their whole rounds are on the disk
        raise
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            process.join()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C is ignored inside, and for good by a process that is started inside."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(connection: Connection, execution: Execution, deadline: float | None, threads: int) -> None:
    """A process beside others: carries out what it is sent, and sends what is to be told of it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        while True:
            job: Job = connection.recv()
            try:
                connection.send(finish(job, execution, deadline, lambda each: connection.send(as_sent(each))))
            except Exception as error:
                connection.send(as_sent(error))
    except (EOFError, OSError):  # nobody is there any more
        return


def _end_with_parent() -> None:
    """Ends this process where its parent is gone, killed too: nobody would hear of its run, which is kept."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
