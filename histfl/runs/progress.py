"""A run's progress on standard error: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from histfl.runs.execute import OnRound
from histfl.runs.records import Record, in_megabytes
from histfl.terminal import StillAt
from histfl.training.objective import Objective, classification

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(
    title: str, rounds: int, console: Console, objective: Objective | None = None, work: str = ""
) -> Iterator[OnRound]:
    """Yields the function to call after every round; `work` says what a round takes, for those that take long."""
    objective = objective or classification()
    goal, word = objective.goal, objective.aim.title
    if not console.is_terminal:
        with StillAt(_going_on(title, 0, rounds, work), console) as still:
            plain = _plain_lines(title, rounds, console, objective)

            def on_round_in_lines(record: Record) -> None:
                plain(record)
                still.at(_going_on(title, record["round"], rounds, work))
                still.said()

            yield on_round_in_lines
        return
    columns = (
        TextColumn("{task.description}", markup=False),  # a folder's name is text
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(word + " {task.fields[value]}  {task.fields[megabytes]} MB a client"),
        TimeElapsedColumn(),  # moves during a long round
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=rounds, value="-", megabytes="0.0")

        def on_round(record: Record) -> None:
            bar.update(
                task,
                completed=record["round"],
                value=f"{record[goal]:.3f}",
                megabytes=in_megabytes(record["megabytes_per_client"]),
            )

        yield on_round


def _going_on(title: str, done: int, rounds: int, work: str) -> str:
    return f"{title}: round {done + 1}/{rounds}{f' of {work}' if work else ''}"


def _plain_lines(title: str, rounds: int, console: Console, objective: Objective) -> OnRound:
    last = time.monotonic()

    def on_round(record: Record) -> None:
        nonlocal last
        now = time.monotonic()
        if record["round"] < rounds and now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        console.print(
            f"{title}: round {record['round']}/{rounds}, {objective.aim.title} {record[objective.goal]:.3f}, "
            f"{in_megabytes(record['megabytes_per_client'])} MB a client, {record['simulated_seconds']:.2f} simulated s",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    return on_round
