"""From an arm's run folder to what is kept of it, and that as a file.

results/reproduction/ARTEFACT/ARM.json holds the configuration, the round records thinned to about 120 rounds
(the first to each target, the most accurate one and the last ones always among them), the cost to each target,
and where the numbers come from.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, model_validator

from histfl.errors import CheckpointError, HistflError, UsageError
from histfl.files import read_text, storage_errors, write_whole
from histfl.reproduce.artefact import Artefact
from histfl.reproduce.commands import command
from histfl.reproduce.results import COLUMNS, LAST, Result, Results, Spread
from histfl.runs.arms import Arm
from histfl.runs.config import Config, without
from histfl.runs.jobs import has_rounds, is_of
from histfl.runs.records import Record, done, reached
from histfl.runs.schema import Accuracy, Cost, Count, Entry, Number, Reached
from histfl.runs.store import RunFolder
from histfl.settings import checked, parse_json

POINTS = 120
DIGITS = 7  # significant ones of the kept numbers
ORIGIN, DIVERGED = "origin.json", "diverged.json"  # beside a run's own files
COMMIT = "HISTFL_COMMIT"  # names the commit where the code was copied without its history
FINDINGS = "findings.json"  # beside the artefacts' folders
NOTED = ("commit", "machine", "torch")  # in the origin
_SEPARATOR = "; "  # between the commits, and the machines, of a run that was done in pieces
FROM_SUMMARY = (
    "engine",
    "device",
    "parameters",
    "submodel_parameters",
    "clients_per_cell",
    "wall_seconds",
    "client_steps_per_second",
    "versions",
)


class Columns(Entry):
    """The rounds that are kept of a run."""

    round: list[Cost]
    accuracy: list[Accuracy]
    loss: list[Number]
    megabytes_per_client: list[Cost]
    simulated_seconds: list[Cost]

    @model_validator(mode="after")
    def _lengths_agree(self) -> Columns:
        if len({len(column) for column in dict(self).values()}) > 1:
            raise ValueError("the columns are of different lengths")
        return self


class KeptResult(Entry):
    """What `histfl reproduce collect` keeps of an arm."""

    arm: str
    labels: dict[str, str | int | float | list[int]]
    finished: Annotated[bool, Field(strict=True)]
    to_target: dict[str, Reached | None]
    config: dict[str, dict[str, Any]]
    records: Columns
    wall_seconds: Cost | None = None
    versions: dict[str, str] | None = None
    commit: str | None = None
    machine: str | None = None
    torch: str | None = None
    command: str
    diverged: str | None = None


class TrialSummary(Entry):
    method: str
    seed: Count
    to_target: dict[str, Reached | None]


class Trial(Entry):
    """A run at a learning rate of its own."""

    learning_rate: Number
    summary: TrialSummary


class Trials(Entry):
    """Runs at several learning rates, kept beside the reproduction's folder."""

    machine: str
    commit: str
    runs: list[Trial]

    def rates(self, method: str) -> list[float]:
        return sorted({run.learning_rate for run in self.runs if run.summary.method == method})

    def to_target(self, method: str, rate: float, target: float, key: str = "round") -> Spread:
        costs = {
            run.summary.seed: None if reached is None else float(getattr(reached, key))
            for run in self.runs
            if (run.summary.method, run.learning_rate) == (method, rate)
            for reached in [run.summary.to_target.get(f"{target:g}")]
        }
        return Spread(costs, len(costs))


@cache
def origin(device: str) -> dict[str, str | None]:
    """The commit, the machine's kind and torch's version, for a run on `device`."""
    return {"commit": _commit(), "machine": machine(device), "torch": str(torch.__version__)}


def machine(device: str) -> str:
    """The processor that does the work; no name of a host."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{_cpu_name()}, {os.cpu_count()} cores"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    try:
        # Installed inside another project's folder, this file is not of that repository.
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        found, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{found} with changes" if changes else found


def _git(*words: str) -> str:
    """What git says of the repository around this file."""
    asked = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def run_folder(runs: Path, config: Config) -> Path:
    """Where the run of `config` lies below `runs`: one folder for all arms that share its rounds."""
    parts = (config.model.name, config.method.name, f"N{config.network.cells}", config.data.split)
    name = "-".join((*parts, f"seed{config.training.seed}", config.fingerprint()[:8]))
    return runs / name.replace("/", "_").replace(":", ".")


def is_done(folder: Path, config: Config) -> bool:
    """Whether the folder holds all rounds that `config` asks for, or the run broke down before."""
    return has_rounds(folder, config) or (is_of(folder, config) and (folder / DIVERGED).exists())


def result_of(artefact: Artefact, arm: Arm, folder: Path) -> Result | None:
    """What is kept of the arm's run in `folder`; None before its first round, unless it broke down in that."""
    if not is_of(folder, arm.config):
        return None
    store = RunFolder(folder)
    records = _until_end(arm.config, store.read_rounds())
    diverged = _json(folder / DIVERGED).get("reason")
    if not records and diverged is None:
        return None
    summary = store.read_summary() if store.summary_path.exists() else {}
    objective = arm.config.objective.made()
    targets = {f"{target:g}": reached(records, target, objective) for target in arm.config.training.targets}
    about = {
        "config": arm.config.model_dump(mode="json", exclude_none=True),
        "seed": arm.config.training.seed,
        **{key: summary.get(key) for key in FROM_SUMMARY},
        **{key: value for key, value in _json(folder / ORIGIN).items() if key in NOTED},
        "command": command(
            artefact, arm.name, [arm.config.training.seed], arm.config.training.precision, summary
        ),
        "diverged": diverged,
    }
    kept = _thinned(arm.config, records, targets)
    columns = {key: np.array([_rounded(record[key]) for record in kept], dtype=np.float64) for key in COLUMNS}
    finished = diverged is not None or done(arm.config, records)
    return Result(arm.name, arm.labels, columns, targets, finished, about)


def write_result(path: Path, result: Result) -> None:
    """The result as a JSON file, a line a key."""
    tables = {
        "arm": result.arm,
        "labels": dict(result.labels),
        "finished": result.finished,
        "rounds_done": result.rounds_done,
        "to_target": result.to_target,
        **result.about,
        "records": {key: values.tolist() for key, values in result.columns.items()},
    }
    lines = ",\n".join(
        f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in tables.items()
    )
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, f"{{\n{lines}\n}}\n".encode())


def read_result(path: Path) -> Result:
    """A result as `write_result` left it."""
    try:
        tables = parse_json(read_text(path))
        if not isinstance(tables, dict):
            raise ValueError("it is no table")
        checked(KeptResult, tables, path.name)
        columns = {key: np.array(tables["records"][key], dtype=np.float64) for key in COLUMNS}
        known = ("arm", "labels", "finished", "rounds_done", "to_target", "records")
        about = {key: value for key, value in tables.items() if key not in known}
        return Result(
            tables["arm"], tables["labels"], columns, tables["to_target"], tables["finished"], about
        )
    except (OSError, ValueError, HistflError) as error:
        raise CheckpointError(f"{path} is no result of an arm ({error}); collect it again") from None


def kept_results(artefact: Artefact, folder: Path) -> tuple[Results, list[str]]:
    """The artefact's results in `folder`, and the names of those that were run with other settings."""
    found, stale = [], []
    for arm in artefact.arms:
        paths = [folder / name / f"{arm.name}.json" for name in (artefact.name, artefact.shares) if name]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            continue
        result = read_result(path)
        if _is_stale(result, arm, path):
            stale.append(arm.name)
        else:
            ended = _has_ended(result, arm.config)
            found.append(dataclasses.replace(result, labels=arm.labels, finished=ended))
    return _by_labels(artefact, found), stale


def kept_findings(folder: Path) -> dict[str, str]:
    """What trials of the choices showed, by the name that a choice has for it."""
    return {name: str(text) for name, text in _json(folder / FINDINGS).items()}


def kept_trials(folder: Path, name: str) -> Trials | None:
    """The trials of learning rates beside `folder`, where they are kept."""
    path = folder.parent / f"{name}.json"
    try:
        return checked(Trials, _json(path), path.name) if path.exists() else None
    except UsageError as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it") from None


def add_origin(folder: Path, here: Mapping[str, str | None]) -> None:
    """Note where the rounds from now on come from, after the places of those before."""
    before = _json(folder / ORIGIN)
    places = {key: dict.fromkeys(filter(None, (*parts(before.get(key)), here[key]))) for key in here}
    origins = {key: _SEPARATOR.join(found) or None for key, found in places.items()}
    write_whole(folder / ORIGIN, json.dumps(origins).encode())


def parts(text: str | None) -> list[str]:
    """The places that `add_origin` has noted."""
    return text.split(_SEPARATOR) if text else []


def run_results(artefact: Artefact, runs: Path) -> Results:
    """The artefact's results in the run folders below `runs`."""
    found = [result_of(artefact, arm, run_folder(runs, arm.config)) for arm in artefact.arms]
    return _by_labels(artefact, [result for result in found if result is not None])


def collect(artefact: Artefact, runs: Path, folder: Path) -> list[Path]:
    """Write a file a run that is there; it does not replace one that has come further in the same settings."""
    arms = {arm.name: arm for arm in artefact.arms}
    written = []
    for result in run_results(artefact, runs).all:
        path = folder / artefact.name / f"{result.arm}.json"
        if not result.finished and path.exists():
            kept, arm = read_result(path), arms[result.arm]
            further = kept.rounds_done > result.rounds_done or _has_ended(kept, arm.config)
            if further and not _is_stale(kept, arm, path):
                continue
        write_result(path, result)
        written.append(path)
    return written


def _by_labels(artefact: Artefact, results: Sequence[Result]) -> Results:
    return Results(tuple(results), tuple(arm.labels for arm in artefact.arms))


def _setting(config: Config) -> dict[str, dict[str, Any]]:
    """What a result must share with its arm: all but a GPU's precision, which the page tells."""
    return without(config.identity(), [("training", "precision")])


def _is_stale(result: Result, arm: Arm, path: Path) -> bool:
    """Whether the kept result is of other settings than the arm's."""
    return _setting(_as_config(result.about["config"], path)) != _setting(arm.config)


def _has_ended(result: Result, config: Config) -> bool:
    """Whether a kept run did all that `config` asks for, which may be more than when it was kept."""
    ends = config.training
    at_targets = ends.stop_at_targets and all(
        result.cost_to(target, "round") is not None for target in ends.targets
    )
    return result.diverged or result.rounds_done >= ends.rounds or (bool(ends.targets) and at_targets)


def _as_config(tables: Mapping[str, Any], path: Path) -> Config:
    try:
        return checked(Config, dict(tables), str(path))
    except HistflError as error:
        raise CheckpointError(f"{error}; collect it again") from None


def _until_end(config: Config, records: Sequence[Record]) -> list[Record]:
    """The records that an arm asks for, where another arm with the same rounds went on."""
    for number in range(len(records)) if config.training.stop_at_targets else ():
        if done(config, records[: number + 1]):
            return list(records[: number + 1])
    return list(records[: config.training.rounds])


def _thinned(config: Config, records: Sequence[Record], targets: Mapping[str, Record | None]) -> list[Record]:
    """Every k-th round, the same ones for every seed, and the first, the last ones, the most accurate and those of the targets."""
    step = math.ceil(config.training.rounds / POINTS)
    marked = {1, *(reached["round"] for reached in targets.values() if reached)}
    marked |= {record["round"] for record in records[-LAST:]}
    marked |= {record["round"] for record in sorted(records, key=lambda each: -each["accuracy"])[:1]}
    return [record for record in records if record["round"] % step == 0 or record["round"] in marked]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = parse_json(read_text(path))
        if not isinstance(found, dict):
            raise ValueError(f"{found!r} is no table")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it") from None
    return found
