"""The commands that train: run, sweep, quickstart."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from histfl.cli.carry_out import answer_of_all, free_folder, run_all, show
from histfl.cli.options import (
    DataDir,
    Device,
    EngineName,
    GpusPerWorker,
    Json,
    MemoryGb,
    Minutes,
    MLflowFlag,
    MLflowUri,
    Out,
    Parallel,
    PrecisionName,
    RayAddress,
    Resume,
    Set,
    Source,
    TensorBoardFlag,
    ThreadsPerWorker,
    Trust,
    WandBFlag,
    Workers,
)
from histfl.cli.output import warn
from histfl.errors import UsageError
from histfl.terminal import StillAt, Terminal

if TYPE_CHECKING:
    from histfl.runs.config import Config

# Said at once: the first round is seconds away.
GETTING_READY = "loading torch and the data, trying engines ..."


def run(
    source: Source,
    settings: Set = [],  # noqa: B006 (typer reads it as the option's default)
    trust: Trust = [],  # noqa: B006
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    precision: PrecisionName = None,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    threads_per_worker: ThreadsPerWorker = 1,
    gpus_per_worker: GpusPerWorker = None,
    ray_address: RayAddress = None,
    resume: Resume = False,
    tensorboard: TensorBoardFlag = False,
    mlflow: MLflowFlag = False,
    mlflow_uri: MLflowUri = None,
    wandb: WandBFlag = False,
    as_json: Json = False,
) -> None:
    """Train once; the folder gets records, a checkpoint, the model, a summary and a report."""
    _say_at_once()
    from histfl.engines import Cluster
    from histfl.reports.trackers import Trackers
    from histfl.runs.jobs import Execution
    from histfl.runs.loading import load_config

    config = load_config(source, with_precision(settings, precision), trust)
    _needs_out(resume, out)
    folder = out or free_folder(Path(source).stem)
    cluster = Cluster(workers, threads_per_worker, gpus_per_worker, ray_address)
    # The name that the table and the report have: the folder's.
    name = Path(os.path.abspath(folder)).name
    execution = Execution(data_dir, device, engine, memory_gb, cluster=cluster)
    trackers = Trackers(tensorboard, mlflow, mlflow_uri, wandb)
    _, summaries = run_all({name: config}, {name: folder}, folder, execution, trackers, resume=resume)
    show([folder], folder / "report.html", summaries[name] if as_json else None)


def sweep(
    source: Source,
    vary: Annotated[
        list[str],
        typer.Option(metavar="SECTION.KEY=A,B,C", help="Values to run, a range as 1..10; may be repeated."),
    ],
    settings: Set = [],  # noqa: B006
    trust: Trust = [],  # noqa: B006
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    precision: PrecisionName = None,
    memory_gb: MemoryGb = None,
    parallel: Parallel = 1,
    workers: Workers = None,
    threads_per_worker: ThreadsPerWorker = 1,
    gpus_per_worker: GpusPerWorker = None,
    ray_address: RayAddress = None,
    minutes: Minutes = None,
    resume: Resume = False,
    tensorboard: TensorBoardFlag = False,
    mlflow: MLflowFlag = False,
    mlflow_uri: MLflowUri = None,
    wandb: WandBFlag = False,
    as_json: Json = False,
) -> None:
    """Train every combination of the varied settings and compare them; resumable arm by arm."""
    _say_at_once()
    from histfl.engines import Cluster
    from histfl.reports.trackers import Trackers
    from histfl.runs.arms import arms
    from histfl.runs.jobs import Execution

    _needs_out(resume, out)
    chosen = with_precision(settings, precision)
    configs: dict[str, Config] = {}
    with StillAt("reading the settings of the runs", Terminal(stderr=True)) as still:
        for arm in arms(source, chosen, vary, trust):
            configs[arm.name] = arm.config
            still.at(f"reading the settings of the runs: {len(configs):,}")
    folder = out or free_folder(f"{Path(source).stem}-sweep")
    folders = {name: folder / name for name in configs}
    cluster = Cluster(workers, threads_per_worker, gpus_per_worker, ray_address)
    execution = Execution(data_dir, device, engine, memory_gb, parallel, minutes, cluster)
    trackers = Trackers(tensorboard, mlflow, mlflow_uri, wandb)
    tally, summaries = run_all(configs, folders, folder, execution, trackers, resume=resume)
    answer_of_all(tally, summaries, folders, folder, as_json=as_json, minutes=minutes)


def quickstart(
    settings: Set = [],  # noqa: B006
    out: Out = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    precision: PrecisionName = None,
    memory_gb: MemoryGb = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """HIST against hierarchical FedAvg on embedded images, in under a minute."""
    _say_at_once()
    from histfl.reports.trackers import Trackers
    from histfl.runs.jobs import Execution
    from histfl.runs.loading import load_config
    from histfl.training.methods import BASELINE, DEFAULT_METHOD

    _needs_out(resume, out)
    names, chosen = (DEFAULT_METHOD, BASELINE), with_precision(settings, precision)
    if named := [setting for setting in settings if setting.startswith("method.name")]:
        raise UsageError(
            f"--set {named[0]}: quickstart compares {names[0]} with {names[1]}; use histfl run quickstart"
        )
    configs = {name: load_config("quickstart", [*chosen, f"method.name={name}"]) for name in names}
    folder = out or free_folder("quickstart")
    folders = {name: folder / name for name in names}
    execution = Execution(None, device, engine, memory_gb)
    tally, summaries = run_all(configs, folders, folder, execution, Trackers(), resume=resume)
    answer_of_all(tally, summaries, folders, folder, as_json=as_json)


def with_precision(settings: list[str], precision: str | None) -> list[str]:
    """The settings with that of --precision."""
    return settings if precision is None else [*settings, f"training.precision={precision}"]


def _needs_out(resume: bool, out: Path | None) -> None:
    if resume and out is None:
        raise UsageError("--resume needs --out, the folder to go on with")


def _say_at_once() -> None:
    """A line before torch is imported, which takes seconds; where it is there already, no wait is ahead."""
    if "torch" not in sys.modules:
        warn(GETTING_READY)
