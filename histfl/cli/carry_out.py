"""Carrying out one or many runs, with progress, trackers and a page that compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from histfl.cli.output import console, interruptible, print_json, say, to_go_on, warn
from histfl.errors import DivergedError, UsageError
from histfl.terminal import Terminal

if TYPE_CHECKING:
    from histfl.reports.live import Follower, LivePage
    from histfl.reports.tables import Table as ShownTable
    from histfl.reports.trackers import Trackers
    from histfl.runs.config import Config
    from histfl.runs.jobs import Begun, Execution, Job, Tally
    from histfl.runs.run import Run

MORE_IS_LEFT = 3  # the exit code of a command that its --minutes ended
FEW_RUNS = 4
UNLIMITED = 10_000  # columns


def free_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on where that exists."""
    for number in range(1, 1_000_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            return folder
    raise UsageError("runs/ is full; give --out")


@dataclass
class _Told:
    """What the runs have said so far, and the page that follows them."""

    page: LivePage
    several: bool
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    def add(self, name: str, summary: dict[str, Any]) -> None:
        self.summaries[name] = summary
        promised = (summary.get("privacy") or {}).get("sentence")
        for said in filter(None, (summary.get("computing"), promised)):  # which runs of before do not say
            if said not in self.said:
                self.said.add(said)
                say(said, err=True)


class _Watcher:
    """Tells the user, the trackers and the page of one run."""

    def __init__(self, job: Job, followers: Sequence[Follower], told: _Told) -> None:
        from histfl.reports.live import Telling
        from histfl.runs.arms import settings_in_words
        from histfl.runs.store import RunFolder

        self._name, self._shown_name, self._told = job.name, settings_in_words(job.name), told
        self._followers = Telling(followers, RunFolder(job.folder), warn)

    def on_start(self, begun: Begun) -> None:
        for sentence in (begun.share, *begun.doubts):
            warn(f"{self._shown_name}: {sentence}" if self._told.several else sentence)

    def on_round(self, record: dict[str, Any]) -> None:
        self._followers.on_round(record)
        self._told.page.on_round(record)

    def on_end(self, run: Run) -> None:
        self._followers.on_end(run)
        self._told.add(self._name, run.summary)

    def on_diverged(self, error: DivergedError) -> None:
        if not self._told.several:
            raise error
        warn(f"{self._shown_name}: {error}")

    def close(self, *, finished: bool) -> None:
        self._followers.close(finished=finished)


def run_all(
    configs: Mapping[str, Config],
    folders: Mapping[str, Path],
    top: Path,
    execution: Execution,
    trackers: Trackers,
    *,
    resume: bool,
) -> tuple[Tally, dict[str, dict[str, Any]]]:
    """Run each configuration into its folder; the comparison page in `top` follows them.

    What became of the runs, and the summaries of those that are done. Of several, one that diverges is said, and the
    others go on; of those done before, nothing is carried out but for a tracker that may have missed them.
    """
    from histfl.reports.live import LivePage
    from histfl.runs.jobs import Job, Tally
    from histfl.runs.runner import carry_out, check_all
    from histfl.runs.store import RunFolder
    from histfl.runs.unread import unread

    if top not in folders.values() and RunFolder(top).config_path.exists():
        raise UsageError(f"{top} holds a run; use another folder for several of them")
    begun = [RunFolder(path) for path in folders.values()]
    if resume and not any(run.checkpoint_path.exists() or run.rounds_path.exists() for run in begun):
        warn(f"--resume: there is no checkpoint in {top}; the run begins with round 1")
    screen, several = Terminal(stderr=True), len(configs) > 1
    check_all(configs, screen)
    for reason in unread(list(configs.values())):
        warn(reason)
    page = LivePage(top / "report.html", f"histfl: {top.name}", folders.values(), warn)
    told = _Told(page, several)

    def watcher(job: Job) -> _Watcher:
        return _Watcher(job, trackers.of(job.name, job.configs[-1], job.folder, resume=resume), told)

    jobs = [Job(name, folders[name], (config,), resume) for name, config in configs.items()]
    if resume and several and not trackers:
        for job in jobs:
            if (summary := job.summary) is not None:
                told.add(job.name, summary)
    to_do = [job for job in jobs if job.name not in told.summaries]
    if before := len(jobs) - len(to_do):
        say(f"{len(jobs)} runs, {before} of them done before", err=True)
    with interruptible(top):
        outcomes = carry_out(to_do, execution, screen, watcher, done_before=before)
        tally = Tally.of({name: outcomes.get(name, "done") for name in configs})
        if len(tally.diverged) == len(configs):
            raise DivergedError(f"all {len(configs)} runs diverged")
        page.on_end()
    return tally, {name: told.summaries[name] for name in tally.done}


def answer_of_all(
    tally: Tally,
    summaries: Mapping[str, dict[str, Any]],
    folders: Mapping[str, Path],
    top: Path,
    *,
    as_json: bool,
    minutes: float | None = None,
) -> None:
    """What came of several runs; then, on standard error and as the exit code, what did not."""
    answer = {**summaries, **({} if minutes is None else {"runs": tally.as_json})}
    if as_json or summaries:
        show([folders[name] for name in summaries], top / "report.html", answer if as_json else None)
    runs = len(folders)
    if tally.left:
        say(f"{len(tally.left)} of {runs} runs are left; go on with: {to_go_on(top, '--resume')}", err=True)
        raise typer.Exit(MORE_IS_LEFT)
    if tally.diverged:
        raise DivergedError(f"{len(tally.diverged)} of {runs} runs diverged: {', '.join(tally.diverged)}")


def show(folders: Sequence[Path], page: Path, as_json: object | None) -> None:
    """The answer of the runs in `folders`, as a table and a sentence."""
    from histfl.reports import (
        answer_sentence,
        answer_table,
        gather,
        groups_of,
        own_data_table,
        told_own_data,
    )

    if as_json is not None:
        print_json(as_json)
        return
    gathered = gather(folders)
    for name, reason in gathered.broken:
        say(f"not shown: {name}: {reason}", err=True)
    groups = groups_of(gathered.runs)
    screen = console()
    screen.print(_fitting(answer_table(groups), screen))
    if told := told_own_data(groups):
        screen.print(_fitting(own_data_table(told), screen))
    screen.print(Text(answer_sentence(groups)))
    if any(len(group.runs) > 1 for group in groups):
        screen.print(
            "±: the standard deviation over the seeds; 95% intervals stand in the report", markup=False
        )
    screen.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)


def _fitting(answer: ShownTable, screen: Terminal) -> Table:
    """The fullest form of the table that fits the screen: with the lowest and highest of the seeds or without, all
    columns or the telling ones. Of few runs it has a column a run."""
    wide = screen.options.update(max_width=UNLIMITED)
    forms = [(table, full) for table in (answer, answer.brief) for full in (True, False)]
    drawn = []
    for shown, full in forms:
        few = len(shown.rows) <= FEW_RUNS
        lines = [[" \n"[not few].join(filter(None, (c.title, c.group))) for c in shown.columns]]
        lines += [[cell.in_full if full else cell.with_deviation for cell in row] for row in shown.rows]
        if few:
            lines = [list(line) for line in zip(*lines, strict=True)]
        table = Table(*lines[0], box=None)
        for line in lines[1:]:
            table.add_row(*map(Text, line))
        if screen.measure(table, options=wide).maximum <= screen.width:
            return table
        drawn.append(table)
    return drawn[-1] if len(answer.rows) > FEW_RUNS else drawn[1]
