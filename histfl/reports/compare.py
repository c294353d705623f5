"""Comparing runs in Python and in notebooks: the report's figure, table and sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from histfl import arguments
from histfl.errors import UsageError, shown
from histfl.reports import (
    Gathered,
    Group,
    answer_sentence,
    answer_table,
    gather,
    groups_of,
    runs_table,
    write_report,
)
from histfl.reports.figures import AXES, accuracy_plot
from histfl.reports.gather import other_goal
from histfl.reports.html import table_html
from histfl.reports.plots import on_screen
from histfl.runs.run import Run


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs side by side; in a notebook it shows itself as a sentence and a table."""

    runs: tuple[Run, ...]

    @property
    def groups(self) -> list[Group]:
        """The runs by configuration; those that differ in the seed alone are one group."""
        return groups_of(self.runs)

    @property
    def sentence(self) -> str:
        return answer_sentence(self.groups)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary a run, its totals and its cost to each target as its summary has them."""
        table = runs_table(self.runs)
        keys = [column.key for column in table.columns]
        return [dict(zip(keys, [cell.value for cell in row], strict=True)) for row in table.rows]

    def plot(self, against: str = "megabytes_per_client") -> Any:
        """The goal, as test accuracy, against megabytes_per_client, simulated_seconds or round: a plotly figure."""
        if not isinstance(against, str) or against not in AXES:
            raise UsageError(f"plot against {shown(against)}; use {', '.join(AXES)}")
        return on_screen(accuracy_plot(self.groups, against))

    def write_report(self, path: Path | str) -> None:
        """The comparison as one self-contained page, such as report.html."""
        page = arguments.path("path", path)
        write_report(page, f"histfl: {page.stem}", Gathered(self.runs))

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"Comparison({', '.join(run.name for run in self.runs)}: {self.sentence})"

    def _repr_html_(self) -> str:
        return table_html(answer_table(self.groups), self.sentence, "comparison")


def compare(*runs: Run | Path | str, **named: Run | Path | str) -> Comparison:
    """Compare runs: `compare(run_a, run_b)` names them by method, `compare(ours=run_a, theirs=run_b)` as given.

    A run may also be its folder, `compare("runs/a", "runs/b")`, named by its path; a folder of several, such as a
    sweep's, is all of them.
    """
    if not runs and not named:
        raise UsageError("compare() needs at least one run")
    for given in (*runs, *named.values()):
        if not isinstance(given, Run | Path | str) or given == "":
            raise UsageError(
                f"compare() takes runs or their folders one by one, not {type(given).__name__}: compare(a, b), or "
                "compare(*runs) and compare(**runs) where they are in a list and in a dictionary"
            )
    methods = [str(run.summary["method"]) for run in runs if isinstance(run, Run)]
    trained = [run for run in runs if isinstance(run, Run)]
    names = [name if methods.count(name) == 1 else f"{name} {i}" for i, name in enumerate(methods, start=1)]
    pairs = [*zip(names, trained, strict=True)]
    if folders := [run for run in runs if not isinstance(run, Run)]:
        pairs += [(run.name, run) for run in _in_folders(*folders)]
    for name, run in named.items():
        found = (run,) if isinstance(run, Run) else _in_folders(run)
        pairs += [(name if len(found) == 1 else f"{name} {each.name}", each) for each in found]
    for _, run in pairs[1:]:
        if (said := other_goal(run, pairs[0][1])) is not None:
            raise UsageError(f"compare(): {run.name}: {said}")
    return Comparison(tuple(replace(run, name=name) for name, run in pairs))


def _in_folders(*folders: Path | str) -> tuple[Run, ...]:
    """All runs in and below the folders; a UsageError where one cannot be read."""
    found = gather(arguments.path("compare", folder) for folder in folders)
    if found.broken:
        name, reason = found.broken[0]
        raise UsageError(f"compare: {name}: {reason}; leave it out")
    return found.runs
