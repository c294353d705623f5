"""What follows a run: told of every round as it is done, and of the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from histfl.errors import UsageError
from histfl.experiments.records import Record
from histfl.experiments.run import Run
from histfl.experiments.store import RunFolder


class Follower(Protocol):
    """One run's line to a tracker. Rounds come in order, each once, those of an earlier process too."""

    def on_round(self, record: Record) -> None: ...

    def on_end(self, run: Run) -> None: ...

    def close(self, *, finished: bool) -> None: ...


class Telling:
    """Tells followers of a run, first of the rounds that an earlier process did."""

    def __init__(self, followers: Sequence[Follower], folder: RunFolder) -> None:
        self._followers, self._folder, self._told = followers, folder, 0

    def on_round(self, record: Record) -> None:
        if record["round"] > self._told + 1:
            self._tell(self._folder.read_rounds()[self._told : record["round"] - 1])
        self._tell([record])

    def on_end(self, run: Run) -> None:
        self._tell(run.records[self._told :])
        for follower in self._followers:
            follower.on_end(run)

    def _tell(self, records: Sequence[Record]) -> None:
        for record in records:
            for follower in self._followers:
                follower.on_round(record)
            self._told = record["round"]


@contextmanager
def telling(followers: Sequence[Follower], folder: RunFolder) -> Iterator[Telling]:
    """Closes the followers at the end, whatever became of the run."""
    finished = False
    try:
        yield Telling(followers, folder)
        finished = True
    finally:
        for follower in followers:
            follower.close(finished=finished)


def missing(extra: str, error: ImportError) -> UsageError:
    """The install line of an extra that is not there."""
    return UsageError(
        f"--{extra} needs the extra of that name ({error}); install it with: pip install 'histfl[{extra}]'"
    )
