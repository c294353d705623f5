"""Run folders on the disk into runs that can be shown; what cannot be read is named, and the rest is shown."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from histfl.errors import CheckpointError, HistflError, UsageError
from histfl.files import read_text
from histfl.runs.checks import Pictures, Summary
from histfl.runs.records import Record, reached, summarise
from histfl.runs.run import Run
from histfl.runs.store import RunFolder
from histfl.settings import checked, parse_json, read_toml
from histfl.training.objective import Objective

RUN_FILES = frozenset({"config.toml", "rounds.jsonl", "summary.json"})


@dataclass(frozen=True)
class ShownRun:
    """A run as a report sees it; `planned_rounds` is larger than the number of records while it goes on."""

    name: str
    records: Sequence[Record]
    summary: Record
    config: Mapping[str, Any]
    objective: Objective
    pictures: Record = field(default_factory=dict)
    folder: Path | None = None
    planned_rounds: int = 0

    @property
    def finished(self) -> bool:
        return len(self.records) >= self.planned_rounds

    def to_target(self, target: str) -> Record | None:
        """The first round at an accuracy and its costs so far, whether or not this run was asked for it."""
        counted = self.summary["to_target"]
        return counted[target] if target in counted else reached(self.records, float(target), self.objective)

    @classmethod
    def of(cls, name: str, run: Run) -> ShownRun:
        """A run of this process."""
        tables = run.config.model_dump(mode="json", exclude_none=True)
        return cls(
            name,
            run.records,
            run.summary,
            tables,
            run.config.objective.made(),
            run.pictures,
            run.folder,
            len(run.records),
        )


@dataclass(frozen=True)
class Gathered:
    """The runs of some folders, and of those that cannot be shown the name and the reason."""

    runs: tuple[ShownRun, ...]
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
            runs.append(read_shown(path, name))
        except HistflError as error:
            broken.append((name, str(error)))
    return Gathered(tuple(runs), tuple(broken))


def read_shown(path: Path, name: str) -> ShownRun:
    """The run in `path`, finished or not."""
    folder = RunFolder(path)
    if not any((path / file).exists() for file in RUN_FILES):
        raise CheckpointError("empty: no run was begun here")
    config = folder.read_config()
    try:
        records = folder.read_rounds()
    except OSError as error:
        raise CheckpointError(
            f"{folder.rounds_path.name} cannot be read: {error.strerror or error}"
        ) from None
    if not records:
        raise CheckpointError("no round is done yet")
    objective = config.objective.made()
    cells: set[int] = set()
    for number, record in enumerate(records, start=1):
        if record["round"] != number:
            raise CheckpointError(f"{folder.rounds_path.name}, line {number} is of round {record['round']}")
        if not isinstance(record.get(objective.goal), int | float):
            raise CheckpointError(f"{folder.rounds_path.name}, line {number} has no {objective.goal}")
        cells.update((len(record["latency"]["cell_seconds"]), len(record["submodel_parameters"])))
    if len(cells) != 1:
        raise CheckpointError(f"{folder.rounds_path.name} has rounds of {sorted(cells)} cells")
    if folder.summary_path.exists():
        summary, planned = folder.read_summary(), len(records)
        told = checked(Summary, summary, folder.summary_path.name)
        if told.rounds != len(records):
            raise CheckpointError(
                f"{folder.summary_path.name} is of {told.rounds} rounds, and {folder.rounds_path.name} has {len(records)}"
            )
        if (
            told.method != config.method.name
            or summary.get(f"final_{objective.goal}") != records[-1][objective.goal]
        ):
            raise CheckpointError(f"{folder.summary_path.name} is of another run")
    else:
        summary = summarise(config, records, about={}, wall_seconds=0.0)
        del summary["versions"], summary["wall_seconds"]  # this process's, not the run's
        planned = max(config.training.rounds, len(records) + 1)
    tables = read_toml(folder.config_path)
    return ShownRun(name, records, summary, tables, objective, _pictures(folder), path, planned)


def _pictures(folder: RunFolder) -> Record:
    """What the run keeps to be drawn; nothing where an older or interrupted run has none."""
    try:
        pictures = parse_json(read_text(folder.pictures_path))
    except (OSError, ValueError):
        return {}
    if not isinstance(pictures, dict):
        return {}
    checked(Pictures, pictures, folder.pictures_path.name)
    return pictures


def _run_folders(top: Path) -> Iterator[Path]:
    """The run folders in and below `top`; an empty folder counts, as a run that never began."""
    for place, below, files in os.walk(top):
        shown = [file for file in files if not file.startswith(".")]
        if RUN_FILES & set(shown) or not (below or shown):
            below.clear()
            yield Path(place)
        below[:] = sorted(name for name in below if not name.startswith("."))
