"""Carrying out arms: each a run folder, resumed where it was left, shared where two artefacts ask for it.

A budget of minutes ends everything at a round boundary with all of it kept, so that long reproductions can
be done in pieces on borrowed machines.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from histfl.errors import DivergedError, HistflError
from histfl.files import write_whole
from histfl.reproduce.files import DIVERGED, add_origin, is_done, origin, run_folder
from histfl.runs.arms import Arm
from histfl.runs.build import prepare
from histfl.runs.config import Config
from histfl.runs.execute import OnRound, execute
from histfl.runs.progress import progress
from histfl.runs.records import Record
from histfl.runs.store import RunFolder

Outcome = Literal["done", "left", "diverged"]


@dataclass(frozen=True)
class How:
    """How arms are carried out; nothing of it changes their numbers, but for a device's rounding."""

    runs: Path
    data_dir: Path | None = None
    device: str = "auto"
    engine: str = "auto"
    memory_gb: float | None = None
    parallel: int = 1
    minutes: float | None = None
    keep_models: bool = False


@dataclass(frozen=True)
class Work:
    """One run folder and the ends that arms ask of it (rounds, targets); all else they have in common."""

    folder: Path
    configs: tuple[Config, ...]

    @property
    def is_done(self) -> bool:
        return all(is_done(self.folder, config) for config in self.configs)


@dataclass(frozen=True)
class Tally:
    """What became of the runs: names of folders."""

    done: tuple[str, ...]
    left: tuple[str, ...]
    diverged: tuple[str, ...]


class BrokenRun(HistflError):
    """A process that carried out a run was ended from outside."""


class _OutOfTime(Exception):
    """Raised between rounds; the round before is on the disk."""


def work_of(arms: Iterable[Arm], runs: Path) -> list[Work]:
    """The folders that the arms need, those of the first seed first: pieces of a reproduction tell something."""
    found: dict[Path, dict[str, Config]] = {}
    for arm in sorted(arms, key=lambda arm: arm.config.training.seed):
        ends = arm.config.training
        key = f"{ends.rounds} {ends.targets} {ends.stop_at_targets}"
        found.setdefault(run_folder(runs, arm.config), {})[key] = arm.config
    return [Work(folder, tuple(configs.values())) for folder, configs in found.items()]


def ending_at(arm: Arm, accuracy: float) -> Arm:
    """The arm, its run ended at `accuracy` where it asks for more: a piece that a later command goes on with."""
    training = arm.config.training
    if training.stop_at_targets and max(training.targets, default=1.0) <= accuracy:
        return arm
    targets = [target for target in training.targets if target < accuracy]
    training = training.model_copy(update={"targets": (*targets, accuracy), "stop_at_targets": True})
    return dataclasses.replace(arm, config=arm.config.model_copy(update={"training": training}))


def carry_out(works: Sequence[Work], how: How, console: Console) -> Tally:
    """Run what is not done yet, several folders at a time with `how.parallel`, until the minutes are over."""
    deadline = None if how.minutes is None else time.time() + 60 * how.minutes
    outcomes: dict[str, Outcome] = {
        work.folder.name: "diverged" if (work.folder / DIVERGED).exists() else "done" for work in works
    }
    to_do = [work for work in works if not work.is_done]
    console.print(
        f"{len(works)} runs, {len(works) - len(to_do)} of them done before", highlight=False, soft_wrap=True
    )
    together = _one_by_one if how.parallel == 1 else _side_by_side
    together(to_do, how, deadline, console, outcomes)
    return Tally(
        *(
            tuple(name for name, came in outcomes.items() if came == kind)
            for kind in ("done", "left", "diverged")
        )
    )


def _one_by_one(
    works: Sequence[Work], how: How, deadline: float | None, console: Console, outcomes: dict[str, Outcome]
) -> None:
    for number, work in enumerate(works, start=1):
        title = f"{number}/{len(works)} {work.folder.name}"
        with progress(title, max(config.training.rounds for config in work.configs), console) as show:
            outcomes[work.folder.name] = _finish(work, how, lambda: _late(deadline), show)


def _side_by_side(
    works: Sequence[Work], how: How, deadline: float | None, console: Console, outcomes: dict[str, Outcome]
) -> None:
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    stop = context.Event()
    pool = ProcessPoolExecutor(how.parallel, context, _start_process, (how.parallel, stop))
    try:
        futures = {pool.submit(_in_process, work, how, deadline): work for work in works}
        for number, future in enumerate(as_completed(futures), start=1):
            name = futures[future].folder.name
            try:
                outcomes[name] = future.result()
            except BrokenProcessPool:
                raise BrokenRun(
                    f"a process died in one of the runs (memory?); all whole rounds are kept: go on with fewer "
                    f"than --parallel {how.parallel}"
                ) from None
            console.print(f"{number}/{len(works)} {name}: {outcomes[name]}", highlight=False, soft_wrap=True)
    finally:
        stop.set()  # the runs that go on end after their round
        pool.shutdown(cancel_futures=True)


_stop: Event


def _start_process(parallel: int, stop: Event) -> None:
    global _stop
    _stop = stop
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes; the first one tells the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // parallel))


def _end_with_parent() -> None:
    """Ends this process where its parent is gone, killed too: nobody would hear of its run, which is kept."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _in_process(work: Work, how: How, deadline: float | None) -> Outcome:
    return _finish(work, how, lambda: _late(deadline) or _stop.is_set(), lambda record: None)


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.time() >= deadline


def _finish(work: Work, how: How, late: Callable[[], bool], show: OnRound) -> Outcome:
    """All rounds that the arms of one folder ask for."""

    told = False

    def on_round(record: Record) -> None:
        nonlocal told
        if not told:  # not before: a run that another process holds is refused
            add_origin(work.folder, origin(experiment.device.type))
            told = True
        show(record)
        if late():
            raise _OutOfTime

    folder = RunFolder(work.folder)
    for config in work.configs:
        if is_done(work.folder, config):
            continue
        if late():
            return "left"
        experiment = prepare(
            config,
            data_dir=how.data_dir,
            device=how.device,
            engine=how.engine,
            memory_gb=how.memory_gb,
        )
        try:
            execute(experiment, folder, resume=True, on_round=on_round)
        except _OutOfTime:
            return "left"
        except DivergedError as error:
            write_whole(work.folder / DIVERGED, json.dumps({"reason": str(error)}).encode())
            return "diverged"
    if not how.keep_models:  # the records are wanted, and a checkpoint, from which a longer arm may go on
        folder.model_path.unlink(missing_ok=True)
    return "done"
