"""report.html while runs go on: written anew now and then, so that an open page moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from histfl.errors import HistflError, in_one_line
from histfl.reports import gather, write_report
from histfl.runs.records import Record

SECONDS_BETWEEN_PAGES = 30.0
LARGEST_SHARE = 0.05  # of the time may go into pages, however many runs they show


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
        self._write([folder for folder in self.folders if folder.is_dir()], round(SECONDS_BETWEEN_PAGES))
        taken = time.monotonic() - started
        self._next = started + max(SECONDS_BETWEEN_PAGES, taken / LARGEST_SHARE)

    def on_end(self) -> None:
        """The page of all runs as they ended; it does not reload itself."""
        self._write(self.folders, None)

    def _write(self, folders: Iterable[Path], refresh_seconds: int | None) -> None:
        try:
            write_report(self.path, self.title, gather(folders), refresh_seconds=refresh_seconds)
        except Exception as error:
            reason = str(error) if isinstance(error, HistflError) else in_one_line(error)
            if reason not in self._reasons:
                self._reasons.add(reason)
                self._warn(
                    f"the page {self.path} could not be written ({reason}); the runs are kept: histfl report makes it"
                )
