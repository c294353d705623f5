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
from histfl.runs.arms import placed, settings_in_words, settings_of
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
    names = [" ".join(str(top).split()) for top in tops]  # in one line
    for top, name in zip(tops, names, strict=True):
        if not os.path.isdir(top):  # False, too, for a name that is longer than any can be
            raise UsageError(f"{name} is no folder; give run folders or a sweep's folder")
    try:
        found = sorted({path for top in tops for path in _run_folders(top)})
    except RecursionError:
        raise UsageError(
            f"{', '.join(names)}: folders are nested too deeply to be searched; give the runs' own folders"
        ) from None
    if not found:
        raise UsageError(f"no run in {', '.join(names)}; give a folder with a rounds.jsonl in or below it")
    base = Path(os.path.commonpath([str(path) for path in tops]))
    runs, broken = [], []
    for path in found:
        name = str(path.relative_to(base)) if path != base else path.name
        try:
            runs.append(read_run(path, name))
        except HistflError as error:
            broken.append((name, str(error)))
    alike = [run for run in runs if other_goal(run, runs[0]) is None]
    broken += [(run.name, said) for run in runs if (said := other_goal(run, runs[0])) is not None]
    return Gathered(tuple(alike), tuple(broken))


def other_goal(run: Run, first: Run) -> str | None:
    """Why a run cannot stand beside another, where their goals are different quantities."""
    mine, theirs = run.objective.goal, first.objective.goal
    return (
        None
        if mine == theirs
        else f"its goal is {mine}, and that of {first.name} is {theirs}; report it apart"
    )


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
    """One line of a comparison: the runs of a configuration, a seed each. `seeds_told` puts their number into the
    label: of groups that all have as many, it is said once elsewhere."""

    name: str
    runs: tuple[Run, ...]
    seeds_told: bool = True

    @property
    def method(self) -> str:
        return str(self.runs[0].summary["method"])

    @property
    def label(self) -> str:
        seeds = f" ({len(self.runs)} seeds)" if len(self.runs) > 1 and self.seeds_told else ""
        running = "" if all(run.finished for run in self.runs) else " (unfinished)"
        return self.name + seeds + running

    @cached_property
    def setting(self) -> str:
        """All that is configured but the seed, the method and the sizes."""
        tables = without(self.runs[0].tables, SEED)
        return json.dumps({name: keys for name, keys in tables.items() if name != "method"}, sort_keys=True)

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
    """The first one's: runs with another goal do not stand beside it."""
    return groups[0].runs[0].objective


def groups_of(runs: Iterable[Run]) -> list[Group]:
    """The runs by configuration, in order of first appearance."""
    found: dict[tuple[str, int], list[Run]] = {}
    times: Counter[tuple[str, int]] = Counter()
    for run in runs:
        identity, seed = _identity(run), run.summary["seed"]
        times[identity, seed] += 1  # the same run twice is not a second seed
        found.setdefault((identity, times[identity, seed]), []).append(run)
    names, numbers = _short(list(map(_name, found.values()))), {len(group) for group in found.values()}
    told = len(found) == 1 or len(numbers) > 1
    return [Group(name, tuple(group), told) for name, group in zip(names, found.values(), strict=True)]


def pairs_of(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Every group that has a baseline to be compared with, and that."""
    others = (group for group in groups if not is_baseline(group.method))
    return [(group, base) for group in others if (base := baseline_of(group, groups)) is not None]


def baseline_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """The baseline (hierarchical FedAvg) that `group` is fairly compared with.

    The one that is alike in all but the method and the sizes; where none is, the only one of the same
    model, data and network, which may be trained or sent in another way.
    """
    baselines = [other for other in groups if is_baseline(other.method) and _task(other) == _task(group)]
    alike = [other for other in baselines if other.setting == group.setting]
    chosen = alike or (baselines if len(baselines) == 1 else [])
    return chosen[0] if chosen else None


def _identity(run: Run) -> str:
    """The configuration less its seed."""
    return json.dumps(without(run.tables, SEED), sort_keys=True, default=str)


def same_task(groups: Sequence[Group]) -> bool:
    """Whether all have one model, data and network."""
    return all(_task(group) == _task(groups[0]) for group in groups)


def _task(group: Group) -> list[Any]:
    return [group.runs[0].tables.get(section) for section in ("model", "data", "network")]


def _name(runs: Sequence[Run]) -> str:
    """A run's own name; of several, what the names have in common once the seed is taken out."""
    if len(runs) == 1:
        return runs[0].name
    bare = {re.sub(r"(^|[+/])training\.seed=[^+/]*", "", run.name).strip("+/") for run in runs}
    common = bare.pop() if len(bare) == 1 else ""
    return common or str(runs[0].summary["method"])


def _short(names: Sequence[str]) -> list[str]:
    """The names in words; of a sweep's arms what differs alone, where that tells them apart."""
    places, arms = zip(*(placed(name) for name in names), strict=True) if names else ((), ())
    parts = [arm.split("+") for arm in arms]
    if len(names) > 1 and all(map(settings_of, arms)):
        common = set(parts[0]).intersection(*parts)
        bare = ["+".join(part for part in each if part not in common) for each in parts]
        arms = tuple(bare) if all(bare) else arms
    return [settings_in_words(place + arm) for place, arm in zip(places, arms, strict=True)]
