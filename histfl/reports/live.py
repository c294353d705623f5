"""What follows a run: told of every round as it is done, and of the end; report.html while runs go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from histfl.errors import HistflError, in_one_line
from histfl.reports import gather, write_report
from histfl.runs.records import Record
from histfl.runs.run import Run
from histfl.runs.store import RunFolder

SECONDS_BETWEEN_PAGES = 30.0
LARGEST_SHARE = 0.05  # of the time may go into pages, however many runs they show


class Follower(Protocol):
    """One run's line to a tracker. Rounds come in order, each once, those of an earlier process too."""

    def on_round(self, record: Record) -> None: ...

    def on_end(self, run: Run) -> None: ...

    def close(self, *, finished: bool) -> None: ...


class Telling:
    """Tells followers of a run, first of the rounds that an earlier process did.

    A tracker that fails must not cost the training: `warn` is told, and the tracker nothing more.
    """

    def __init__(self, followers: Sequence[Follower], folder: RunFolder, warn: Callable[[str], None]) -> None:
        self._followers, self._folder, self._warn, self._told = list(followers), folder, warn, 0
        self._lost: list[Follower] = []

    def on_round(self, record: Record) -> None:
        if record["round"] > self._told + 1:
            self._tell(self._folder.read_rounds()[self._told : record["round"] - 1])
        self._tell([record])

    def on_end(self, run: Run) -> None:
        self._tell(run.records[self._told :])
        for follower in tuple(self._followers):
            with self._without_if_it_fails(follower):
                follower.on_end(run)

    def close(self, *, finished: bool) -> None:
        for follower in self._lost:
            with suppress(Exception):  # it was warned of
                follower.close(finished=False)
        for follower in tuple(self._followers):
            with self._without_if_it_fails(follower):
                follower.close(finished=finished)

    def _tell(self, records: Sequence[Record]) -> None:
        for record in records:
            for follower in tuple(self._followers):
                with self._without_if_it_fails(follower):
                    follower.on_round(record)
            self._told = record["round"]

    @contextmanager
    def _without_if_it_fails(self, follower: Follower) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._followers.remove(follower)
            self._lost.append(follower)
            self._warn(
                f"{type(follower).__name__} failed ({type(error).__name__}: {error}); the run goes on without it; "
                "once it works again, the same command with --resume tells it what it missed"
            )


class LivePage:
    """The page of `folders` at `path`, refreshed after a round when it is time.

    One that cannot be made must not cost the training: `warn` is told, once for each reason.
    """

    def __init__(self, path: Path, title: str, folders: Iterable[Path], warn: Callable[[str], None]) -> None:
        self.path, self.title, self.folders, self._warn = path, title, tuple(folders), warn
        self._reasons: set[str] = set()
        self._next = time.monotonic() + SECONDS_BETWEEN_PAGES

    def on_round(self, record: Record) -> None:
        started = time.monotonic()
        if started < self._next:
            return
        self._write(round(SECONDS_BETWEEN_PAGES))
        taken = time.monotonic() - started
        self._next = started + max(SECONDS_BETWEEN_PAGES, taken / LARGEST_SHARE)

    def on_end(self) -> None:
        """The page of all runs as they ended; it does not reload itself."""
        self._write(None)

    def _write(self, refresh_seconds: int | None) -> None:
        if not (folders := [folder for folder in self.folders if folder.is_dir()]):
            return
        try:
            write_report(self.path, self.title, gather(folders), refresh_seconds=refresh_seconds)
        except Exception as error:
            reason = str(error) if isinstance(error, HistflError) else in_one_line(error)
            if reason not in self._reasons:
                self._reasons.add(reason)
                self._warn(
                    f"the page {self.path} could not be written ({reason}); the runs are kept: histfl report makes it"
                )
