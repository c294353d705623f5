"""report.html while runs go on: written anew now and then, so that an open page moves."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from histfl.reports import gather, write_report
from histfl.runs.records import Record

SECONDS_BETWEEN_PAGES = 30.0
LARGEST_SHARE = 0.05  # of the time may go into pages, however many runs they show


class LivePage:
    """The page of `folders` at `path`, refreshed after a round when it is time."""

    def __init__(self, path: Path, title: str, folders: Iterable[Path]) -> None:
        self.path, self.title, self.folders = path, title, tuple(folders)
        self._next = time.monotonic() + SECONDS_BETWEEN_PAGES

    def on_round(self, record: Record) -> None:
        started = time.monotonic()
        if started < self._next:
            return
        begun = [folder for folder in self.folders if folder.is_dir()]
        write_report(self.path, self.title, gather(begun), refresh_seconds=round(SECONDS_BETWEEN_PAGES))
        taken = time.monotonic() - started
        self._next = started + max(SECONDS_BETWEEN_PAGES, taken / LARGEST_SHARE)
