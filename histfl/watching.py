"""What goes on around a run of `histfl.train`: progress where a person looks, trackers, the caller's own function."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from histfl.errors import UsageError, in_one_line, shown
from histfl.reports.live import Telling
from histfl.reports.trackers import Trackers
from histfl.runs.build import Experiment
from histfl.runs.config import Config
from histfl.runs.progress import SILENT, View, looked_at, progress
from histfl.runs.records import Record
from histfl.runs.run import Run
from histfl.runs.store import RunFolder
from histfl.runs.work import work_of_a_round
from histfl.terminal import Terminal

STOP = "stop"  # what a function given as on_round returns to end the run
OnRound = Callable[[Record], object] | Callable[[Record, nn.Module], object]
_log = logging.getLogger("histfl.api")


@dataclass
class Watched:
    """A run of this name, its view and its trackers."""

    name: str
    config: Config
    view: View
    trackers: Telling

    def on_start(self, experiment: Experiment) -> None:
        work = work_of_a_round(self.config, experiment.hist.network.clients_per_cell).sentence
        self.view.at_work(self.name, work)

    def on_round(self, record: Record) -> None:
        self.view.on_round(self.name, record)
        self.trackers.on_round(record)

    def on_end(self, run: Run) -> None:
        self.trackers.on_end(run)
        self.view.end(self.name, "done")


@contextmanager
def watched(
    config: Config, folder: Path | None, trackers: Trackers, *, resume: bool, shown: bool | None
) -> Iterator[Watched]:
    """Inside, the run is carried out; `shown` says whether its progress is (None: in a terminal and in a notebook)."""
    name, screen = config.method.name, Terminal(stderr=True)
    place = folder or Path()  # without a folder there are no trackers
    told = trackers.of(name, config, place, resume=resume) if trackers else []
    telling, finished = Telling(told, RunFolder(place), lambda line: _log.warning("train(): %s", line)), False
    try:
        if not (looked_at(screen) if shown is None else shown):
            yield Watched(name, config, SILENT, telling)
        else:
            with progress({name: config.training.rounds}, screen) as view:
                view.begin(name, config.objective.made())
                yield Watched(name, config, view, telling)
        finished = True
    finally:
        telling.close(finished=finished)


def asked(on_round: OnRound, model: nn.Module, folder: Path | None) -> Callable[[Record], bool]:
    """The caller's function: whether it asks to stop. Where it takes two arguments it gets a copy of the `model`, which
    has the round's parameters. Where it fails, the error says that it is the caller's and how to go on."""
    how = "nothing of the run is kept, for which train() takes out='runs/first'"
    if folder is not None:
        how = f"the run is kept: go on with train(..., out={str(folder)!r}, resume=True)"
    given: Callable[..., object] = on_round
    takes_model = _needed(on_round) == 2

    def ask(record: Record) -> bool:
        number = record["round"]  # before it may be changed
        try:
            said = given(record, deepcopy(model)) if takes_model else given(record)
        except Exception as error:
            raise UsageError(
                f"the function given as on_round failed after round {number}: {in_one_line(error)}; {how}"
            ) from error
        if isinstance(said, bool | str) and said != STOP:
            raise UsageError(
                f"the function given as on_round returned {shown(said)} after round {number}; "
                f"to end the run it returns {STOP!r}, else nothing; {how}"
            )
        return isinstance(said, str)

    return ask


def _needed(function: Callable[..., Any]) -> int:
    """The arguments by place that have no default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin may have none
        return 1
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in by_place and each.default is inspect.Parameter.empty for each in parameters)
