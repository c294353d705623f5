"""A run as data: what it recorded, what it came to, and from what; just trained, or read from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from histfl.arrays import Floats
from histfl.errors import CheckpointError, UsageError, missing_extra, shown
from histfl.runs.config import Config
from histfl.runs.records import Record, reached, scalars, summarise
from histfl.runs.store import RunFolder
from histfl.training.objective import Objective

RUN_FILES = frozenset({"config.toml", "rounds.jsonl", "summary.json"})


@dataclass(frozen=True)
class Run:
    """A run's records and summary, with its configuration; `planned_rounds` are more than the records while it goes
    on. `model` is the trained one where the run was carried out here, None where it was read from its `folder`."""

    name: str
    records: Sequence[Record] = field(repr=False)
    summary: Record = field(repr=False)
    config: Config = field(repr=False)
    planned_rounds: int
    model: nn.Module | None = field(default=None, repr=False)
    pictures: Record = field(default_factory=dict, repr=False)
    folder: Path | None = None

    @property
    def place(self) -> str:
        """Where it lies, or else its name."""
        return str(self.folder or self.name)

    @property
    def finished(self) -> bool:
        return len(self.records) >= self.planned_rounds

    @cached_property
    def objective(self) -> Objective:
        return self.config.objective.made()

    @cached_property
    def tables(self) -> Mapping[str, Any]:
        """The configuration, section by section."""
        return self.config.model_dump(mode="json", exclude_none=True)

    def to_target(self, target: str) -> Record | None:
        """The first round at a target and its costs so far, whether or not this run was asked for it."""
        counted = self.summary["to_target"]
        return counted[target] if target in counted else reached(self.records, float(target), self.objective)

    def column(self, name: str) -> Floats:
        """One quantity of the records, [round]."""
        known = [key for key, value in self.records[0].items() if not isinstance(value, dict | list)]
        if not isinstance(name, str) or name not in known:
            raise UsageError(f"column {shown(name)}: the records have {', '.join(known)}")
        return np.array([record[name] for record in self.records], dtype=float)

    @property
    def accuracy(self) -> Floats:
        return self.column("accuracy")

    @property
    def loss(self) -> Floats:
        return self.column("loss")

    @property
    def megabytes_per_client(self) -> Floats:
        return self.column("megabytes_per_client")

    @property
    def simulated_seconds(self) -> Floats:
        return self.column("simulated_seconds")

    def to_frame(self) -> Any:
        """The records as a pandas DataFrame, a row a global round, whose number is the index; nested numbers by path."""
        try:
            import pandas
        except ImportError as error:
            raise missing_extra("to_frame()", "notebook", error) from None
        return pandas.DataFrame([scalars(record) for record in self.records]).set_index("round")


def read_run(path: Path, name: str) -> Run:
    """The run in folder `path`, finished or not; nothing in it is taken on trust."""
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
    goal = config.objective.made().goal
    _check_rounds(folder, records, goal)
    if folder.summary_path.exists():
        summary, planned = folder.read_summary(), len(records)
        _check_summary(folder, summary, config, records, goal)
    else:
        summary = summarise(config, records, about={}, wall_seconds=0.0)
        del summary["versions"], summary["wall_seconds"]  # this process's, not the run's
        planned = max(config.training.rounds, len(records) + 1)
    return Run(name, records, summary, config, planned, None, folder.read_pictures(), path)


def _check_rounds(folder: RunFolder, records: Sequence[Record], goal: str) -> None:
    """A CheckpointError where the rounds are not one run's."""
    place, cells = folder.rounds_path.name, set[int]()
    for number, record in enumerate(records, start=1):
        if record["round"] != number:
            raise CheckpointError(f"{place}, line {number} is of round {record['round']}")
        if not isinstance(record.get(goal), int | float):
            raise CheckpointError(f"{place}, line {number} has no {goal}")
        cells.update((len(record["latency"]["cell_seconds"]), len(record["submodel_parameters"])))
    if len(cells) != 1:
        raise CheckpointError(f"{place} has rounds of {sorted(cells)} cells")


def _check_summary(
    folder: RunFolder, summary: Record, config: Config, records: Sequence[Record], goal: str
) -> None:
    """A CheckpointError where the summary is not of this run."""
    if summary["rounds"] != len(records):
        raise CheckpointError(
            f"{folder.summary_path.name} is of {summary['rounds']} rounds, and {folder.rounds_path.name} has {len(records)}"
        )
    if summary["method"] != config.method.name or summary.get(f"final_{goal}") != records[-1][goal]:
        raise CheckpointError(f"{folder.summary_path.name} is of another run")
