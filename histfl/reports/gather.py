"""Run folders on the disk into runs that can be shown; what cannot be read is named, and the rest is shown."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from histfl.errors import HistflError, UsageError
from histfl.runs.run import RUN_FILES, Run, read_run


@dataclass(frozen=True)
class Gathered:
    """The runs of some folders, and of those that cannot be shown the name and the reason."""

    runs: tuple[Run, ...]
    broken: tuple[tuple[str, str], ...] = ()


def gather(folders: Iterable[Path]) -> Gathered:
    """Every run in and below `folders`, by name: its path below what all the folders have in common."""
    tops = [Path(os.path.abspath(folder)) for folder in folders]
    for top in tops:
        if not top.is_dir():
            raise UsageError(f"{top} is no folder; give run folders or a sweep's folder")
    try:
        found = sorted({path for top in tops for path in _run_folders(top)})
    except RecursionError:
        raise UsageError(
            f"{', '.join(map(str, tops))}: folders are nested too deeply to be searched; give the runs' own folders"
        ) from None
    if not found:
        raise UsageError(
            f"no run in {', '.join(map(str, tops))}; give a folder with a rounds.jsonl in or below it"
        )
    base = Path(os.path.commonpath([str(path) for path in tops]))
    runs, broken = [], []
    for path in found:
        name = str(path.relative_to(base)) if path != base else path.name
        try:
            runs.append(read_run(path, name))
        except HistflError as error:
            broken.append((name, str(error)))
    return Gathered(tuple(runs), tuple(broken))


def _run_folders(top: Path) -> Iterator[Path]:
    """The run folders in and below `top`; an empty folder counts, as a run that never began."""
    for place, below, files in os.walk(top):
        shown = [file for file in files if not file.startswith(".")]
        if RUN_FILES & set(shown) or not (below or shown):
            below.clear()
            yield Path(place)
        below[:] = sorted(name for name in below if not name.startswith("."))
