"""Runs that can be shown: gathered from folders, where what cannot be read is named and the rest is shown, and grouped, so
that those that differ in their seed alone are drawn and told as one."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from histfl.arrays import Floats
from histfl.errors import HistflError, UsageError
from histfl.runs.config import without
from histfl.runs.records import Record
from histfl.runs.run import RUN_FILES, Run, read_run
from histfl.training.methods import is_baseline
from histfl.training.objective import Objective


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


SEED = (("training", "seed"),)
POINTS = 200  # of a drawn line: more than a plot has pixels for, little enough for forty runs on a page


@dataclass(frozen=True)
class Group:
    """One line of a comparison: the runs of a configuration, a seed each."""

    name: str
    runs: tuple[Run, ...]

    @property
    def method(self) -> str:
        return str(self.runs[0].summary["method"])

    @property
    def label(self) -> str:
        seeds = f" ({len(self.runs)} seeds)" if len(self.runs) > 1 else ""
        running = "" if all(run.finished for run in self.runs) else " (unfinished)"
        return self.name + seeds + running

    @cached_property
    def num_rounds(self) -> int:
        """The rounds that every seed has done."""
        return min(len(run.records) for run in self.runs)

    @cached_property
    def shown(self) -> list[int]:
        """The indices of the rounds that are drawn: the first, the last and at most POINTS in all."""
        return sorted(
            set(np.linspace(0, self.num_rounds - 1, min(POINTS, self.num_rounds)).astype(int).tolist())
        )

    def values(self, read: Callable[[Record], float]) -> Floats:
        """[seed, shown round]"""
        return np.array(
            [[read(run.records[index]) for index in self.shown] for run in self.runs], dtype=float
        )

    def column(self, key: str) -> Floats:
        """One quantity of the records, [seed, shown round]."""
        return self.values(lambda record: record[key])


def objective_of(groups: Sequence[Group]) -> Objective:
    """The first one's: runs of different objectives are not compared by their goals."""
    return groups[0].runs[0].objective


def groups_of(runs: Iterable[Run]) -> list[Group]:
    """The runs by configuration, in order of first appearance."""
    found: dict[tuple[str, int], list[Run]] = {}
    times: Counter[tuple[str, int]] = Counter()
    for run in runs:
        identity, seed = _identity(run), run.summary["seed"]
        times[identity, seed] += 1  # the same run twice is not a second seed
        found.setdefault((identity, times[identity, seed]), []).append(run)
    return [Group(_name(group), tuple(group)) for group in found.values()]


def baseline_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """The baseline (hierarchical FedAvg) that `group` is fairly compared with.

    The one that is alike in all but the method and the sizes; where none is, the only one of the same
    model, data and network, which may be trained or sent in another way.
    """
    baselines = [other for other in groups if is_baseline(other.method) and _task(other) == _task(group)]
    alike = [other for other in baselines if _setting(other) == _setting(group)]
    chosen = alike or (baselines if len(baselines) == 1 else [])
    return chosen[0] if chosen else None


def _identity(run: Run) -> str:
    """The configuration less its seed."""
    return json.dumps(without(run.tables, SEED), sort_keys=True, default=str)


def _setting(group: Group) -> str:
    tables = without(group.runs[0].tables, SEED)
    return json.dumps(
        {section: keys for section, keys in tables.items() if section != "method"}, sort_keys=True
    )


def _task(group: Group) -> list[Any]:
    return [group.runs[0].tables.get(section) for section in ("model", "data", "network")]


def _name(runs: Sequence[Run]) -> str:
    """A run's own name; of several, what the names have in common once the seed is taken out."""
    if len(runs) == 1:
        return settings_in_words(runs[0].name)
    bare = {re.sub(r"(^|[+/])training\.seed=[^+/]*", "", run.name).strip("+/") for run in runs}
    common = bare.pop() if len(bare) == 1 else ""
    return settings_in_words(common) or str(runs[0].summary["method"])


def settings_in_words(name: str) -> str:
    """A sweep's `method.name=hist+network.cells=4` as `hist, cells=4`; other names as they are."""
    settings = [re.fullmatch(r"\w+\.(\w+)=(.+)", part) for part in name.split("+")]
    if not all(settings):
        return name
    return ", ".join(s[2] if s[1] == "name" else f"{s[1]}={s[2]}" for s in settings if s)
