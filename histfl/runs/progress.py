"""The progress of runs on standard error, of one or of many at a time: live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from histfl.runs.arms import settings_in_words
from histfl.runs.records import Record, in_megabytes, shown_goal, significant
from histfl.terminal import StillAt
from histfl.training.objective import Objective

SECONDS_BETWEEN_LINES = 10.0
ROOMY = 110  # columns of a terminal, from which on bars are long


class View(Protocol):
    """What is shown of runs, by their names."""

    def begin(self, name: str, objective: Objective) -> None: ...

    def at_work(self, name: str, work: str) -> None:
        """Its rounds begin; `work` says what one takes."""

    def on_round(self, name: str, record: Record) -> None: ...

    def end(self, name: str, word: str) -> None:
        """It goes on no longer; `word` says what became of it: done, left (for another time) or diverged."""


class _Silent:
    """Shows nothing."""

    def begin(self, name: str, objective: Objective) -> None: ...

    def at_work(self, name: str, work: str) -> None: ...

    def on_round(self, name: str, record: Record) -> None: ...

    def end(self, name: str, word: str) -> None: ...


SILENT: View = _Silent()


def looked_at(console: Console) -> bool:
    """Whether a person is likely to look: in a terminal or a notebook."""
    return console.is_terminal or console.is_jupyter


@contextmanager
def progress(rounds: Mapping[str, int], console: Console, *, done_before: int = 0) -> Iterator[View]:
    """Shows runs of so many `rounds` each, beside those `done_before`."""
    count = Count(dict(rounds), done_before)
    if console.is_jupyter:
        yield _Rewritten(count)
        return
    if not console.is_terminal:
        with StillAt("getting ready", console) as still:
            yield _Lines(count, console, still)
        return
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column()),  # a folder's name is text
        BarColumn(bar_width=24 if console.width > ROOMY else 10, table_column=_whole()),
        MofNCompleteColumn(table_column=_whole()),
        TextColumn("{task.fields[said]}", markup=False, table_column=Column()),
        TimeElapsedColumn(table_column=_whole()),  # moves during a long round
        _TimeRemaining(table_column=_whole()),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield _Bars(count, bars)


def _whole() -> Column:
    """A column that stays whole where the words beside it take a second line."""
    return Column(no_wrap=True)


@dataclass
class Count:
    """How far runs are, all together: the rounds that each has to go, and the runs that go on or have ended."""

    to_go: dict[str, int]
    ended: int = 0
    running: int = 0
    rounds_done: int = 0
    started: float | None = None  # when the first rounds began

    def __post_init__(self) -> None:
        self.total = len(self.to_go) + self.ended
        self.rounds = dict(self.to_go)

    def at_work(self) -> None:
        self.started = time.monotonic() if self.started is None else self.started

    def on_round(self, name: str, record: Record) -> None:
        self.to_go[name] = self.rounds[name] - record["round"]
        self.rounds_done += 1

    def end(self, name: str, word: str) -> None:
        self.running -= 1
        if word != "left":
            self.ended += 1
            self.to_go[name] = 0

    @property
    def seconds_left(self) -> float | None:
        """By the rounds that are to go, at the pace of those done here; None before the first one."""
        if self.started is None or self.rounds_done == 0:
            return None
        return (time.monotonic() - self.started) / self.rounds_done * sum(self.to_go.values())

    @property
    def sentence(self) -> str:
        if self.ended == self.total:
            return f"{self.ended} of {self.total}"
        left = "" if self.seconds_left is None else f", {_in_words(self.seconds_left)} left"
        return f"{self.ended} of {self.total}, {self.running} running{left}"


def _in_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _Lines:
    """A line now and then; of one run also its last round, of several the end of each."""

    def __init__(self, count: Count, console: Console, still: StillAt) -> None:
        self._count, self._console, self._still = count, console, still
        self._objectives: dict[str, Objective] = {}
        self._said: dict[str, str] = {}  # the numbers of each run's last round
        self._work: dict[str, str] = {}
        self._last = time.monotonic()

    def begin(self, name: str, objective: Objective) -> None:
        self._objectives[name] = objective
        self._count.running += 1
        self._going_on(f"{settings_in_words(name)}: reading the data and cutting the model")

    def at_work(self, name: str, work: str) -> None:
        self._count.at_work()
        self._work[name] = f" of {work}" if work else ""
        self._going_on(f"{settings_in_words(name)}: round 1/{self._count.rounds[name]}{self._work[name]}")

    def on_round(self, name: str, record: Record) -> None:
        self._count.on_round(name, record)
        rounds, number, now = self._count.rounds[name], record["round"], time.monotonic()
        numbers = f"{_value(self._objectives[name], record)}, {significant(record['simulated_seconds'])} simulated s"
        self._said[name] = f"round {number}/{rounds}, {numbers}"
        self._going_on(f"{settings_in_words(name)}: round {number + 1}/{rounds}{self._work.get(name, '')}")
        if now - self._last >= SECONDS_BETWEEN_LINES or (self._count.total == 1 and number == rounds):
            self._last = now
            self._print(f"{settings_in_words(name)}: {self._said[name]}")
        self._still.said()

    def end(self, name: str, word: str) -> None:
        self._count.end(name, word)
        self._going_on("finishing")
        if self._count.total > 1:
            last = f" after {self._said[name]}" if name in self._said else ""
            self._print(f"{settings_in_words(name)}: {word}{last}")

    def _print(self, line: str) -> None:
        together = f" ({self._count.sentence})" if self._count.total > 1 else ""
        self._console.print(f"{line}{together}", highlight=False, markup=False, soft_wrap=True)

    def _going_on(self, doing: str) -> None:
        self._still.at(self._count.sentence if self._count.running > 1 else doing)


class _Rewritten:
    """One line in a notebook's cell, written anew after every round."""

    def __init__(self, count: Count) -> None:
        self._count, self._objectives = count, dict[str, Objective]()
        self._line: Any = None

    def begin(self, name: str, objective: Objective) -> None:
        self._objectives[name] = objective
        self._count.running += 1
        self._show(f"{name}: reading the data and cutting the model ...")

    def at_work(self, name: str, work: str) -> None:
        self._count.at_work()
        self._show(f"{name}: round 1/{self._count.rounds[name]}{f' of {work}' if work else ''} ...")

    def on_round(self, name: str, record: Record) -> None:
        self._count.on_round(name, record)
        left = f", {_in_words(self._count.seconds_left)} left" if self._count.seconds_left else ""
        said = _value(self._objectives[name], record)
        self._show(f"{name}: round {record['round']}/{self._count.rounds[name]}, {said}{left}")

    def end(self, name: str, word: str) -> None:
        self._count.end(name, word)

    def _show(self, line: str) -> None:
        from IPython.display import display  # there is one, where there is a notebook

        bundle = {"text/plain": line}
        if self._line is None:
            self._line = display(bundle, raw=True, display_id=True)
        else:
            self._line.update(bundle, raw=True)


class _TimeRemaining(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return Text() if task.fields.get("of_all") else super().render(task)  # its words say it


class _Bars:
    """A bar for every run that goes on and, of several, one for all of them."""

    def __init__(self, count: Count, bars: Progress) -> None:
        self._count, self._bars = count, bars
        self._objectives: dict[str, Objective] = {}
        self._tasks: dict[str, TaskID] = {}
        several = count.total > 1
        rounds = sum(count.rounds.values())
        self._all = bars.add_task("", total=rounds, said="", of_all=True) if several else None
        self._show_all()

    def begin(self, name: str, objective: Objective) -> None:
        self._objectives[name] = objective
        self._count.running += 1
        said = "reading the data and cutting the model"
        total = self._count.rounds[name]
        self._tasks[name] = self._bars.add_task(settings_in_words(name), total=total, said=said)
        self._show_all()

    def at_work(self, name: str, work: str) -> None:
        self._count.at_work()
        said = f"a round: {work}" if work else ""
        self._bars.update(self._tasks[name], said=said)

    def on_round(self, name: str, record: Record) -> None:
        self._count.on_round(name, record)
        said = _value(self._objectives[name], record)
        self._bars.update(self._tasks[name], completed=record["round"], said=said)
        self._show_all()

    def end(self, name: str, word: str) -> None:
        self._count.end(name, word)
        if self._all is not None:
            self._bars.remove_task(self._tasks.pop(name))
        self._show_all()

    def _show_all(self) -> None:
        if self._all is not None:
            done = sum(self._count.rounds.values()) - sum(self._count.to_go.values())
            self._bars.update(self._all, description=self._count.sentence, completed=done)


def _value(objective: Objective, record: Record) -> str:
    megabytes = in_megabytes(record["megabytes_per_client"])
    return f"{objective.aim.title} {shown_goal(record[objective.goal], objective)}, {megabytes} MB a client"
