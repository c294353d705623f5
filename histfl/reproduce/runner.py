"""Carrying out the arms of artefacts: each a run folder, resumed where it was left, shared where two artefacts ask
for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from histfl.errors import DivergedError
from histfl.files import write_whole
from histfl.reproduce.files import DIVERGED, add_origin, is_done, origin, run_folder
from histfl.runs import runner
from histfl.runs.arms import Arm
from histfl.runs.config import Config
from histfl.runs.jobs import Begun, Execution, Job, Outcome, Tally
from histfl.runs.records import Record
from histfl.runs.run import Run


def jobs_of(arms: Iterable[Arm], runs: Path) -> list[Job]:
    """The folders that the arms need, those of the first seed first: pieces of a reproduction tell something."""
    found: dict[Path, dict[str, Config]] = {}
    for arm in sorted(arms, key=lambda arm: arm.config.training.seed):
        ends = arm.config.training
        key = f"{ends.rounds} {ends.targets} {ends.stop_at_targets}"
        found.setdefault(run_folder(runs, arm.config), {})[key] = arm.config
    return [Job(folder.name, folder, tuple(configs.values())) for folder, configs in found.items()]


def ending_at(arm: Arm, accuracy: float) -> Arm:
    """The arm, its run ended at `accuracy` where it asks for more: a piece that a later command goes on with."""
    training = arm.config.training
    if training.stop_at_targets and max(training.targets, default=1.0) <= accuracy:
        return arm
    targets = [target for target in training.targets if target < accuracy]
    training = training.model_copy(update={"targets": (*targets, accuracy), "stop_at_targets": True})
    return dataclasses.replace(arm, config=arm.config.model_copy(update={"training": training}))


def carry_out(
    jobs: Sequence[Job], execution: Execution, console: Console, *, keep_models: bool = False
) -> Tally:
    """Run what is not done yet."""
    outcomes: dict[str, Outcome] = {
        job.name: "diverged" if (job.folder / DIVERGED).exists() else "done" for job in jobs
    }
    asked = {job.name: [config for config in job.configs if not is_done(job.folder, config)] for job in jobs}
    to_do = [
        dataclasses.replace(job, configs=tuple(asked[job.name]), keep_model=keep_models)
        for job in jobs
        if asked[job.name]
    ]
    before = len(jobs) - len(to_do)
    console.print(f"{len(jobs)} runs, {before} of them done before", highlight=False, soft_wrap=True)
    outcomes |= runner.carry_out(
        to_do, execution, console, lambda job: _Keeper(job.folder), done_before=before
    )
    return Tally.of(outcomes)


class _Keeper:
    """Keeps where a run's numbers come from and, if it broke down, why."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._device = folder, ""

    def on_start(self, begun: Begun) -> None:
        self._device = begun.device

    def on_round(self, record: Record) -> None:
        if self._device:  # not before: a run that another process holds is refused
            add_origin(self._folder, origin(self._device))
        self._device = ""

    def on_end(self, run: Run) -> None:
        """All that is to be kept is in the folder."""

    def on_diverged(self, error: DivergedError) -> None:
        write_whole(self._folder / DIVERGED, json.dumps({"reason": str(error)}).encode())

    def close(self, *, finished: bool) -> None:
        """What is kept is kept as it comes."""
