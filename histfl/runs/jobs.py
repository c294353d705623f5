"""A job: one run folder, what is asked of it, and how it is carried out."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from histfl.devices import choose_device
from histfl.engines import Cluster, RayEngine, VectorisedEngine
from histfl.engines.choose import check_engine
from histfl.engines.cluster import import_ray
from histfl.errors import DivergedError, HistflError, UsageError, in_one_line
from histfl.runs.build import Experiment, prepare
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.runs.privacy import foretold
from histfl.runs.records import Record, done
from histfl.runs.run import Run
from histfl.runs.sizes import holding
from histfl.runs.store import RunFolder
from histfl.runs.work import work_of_a_round

Outcome = Literal["done", "left", "diverged"]


@dataclass(frozen=True)
class Execution:
    """How runs are carried out; nothing of it changes their numbers, but for a device's rounding."""

    data_dir: Path | None = None
    device: str = "auto"
    engine: str = "auto"
    memory_gb: float | None = None
    parallel: int | Literal["ray"] = 1  # runs at the same time, a process each, or a task each on Ray
    minutes: float | None = None  # after which no round begins
    cluster: Cluster = field(default_factory=Cluster)  # of what is done on Ray
    cores: int | None = None  # for which the fast engine sizes its blocks (None: this machine's)

    def __post_init__(self) -> None:
        device = choose_device(self.device).type
        check_engine(self.engine, self.memory_gb)
        if self.engine == "ray" and self.parallel != 1:
            raise UsageError(
                f"--engine ray with --parallel {self.parallel}: either the cells of a run share the workers or the "
                "runs do; leave out one"
            )
        if self.on_ray:
            self.cluster.gpus_on(device)
            import_ray(own=self.cluster.address is None)
        elif self.cluster != Cluster():
            raise UsageError(
                "--workers, --threads-per-worker, --gpus-per-worker and --ray-address say how Ray is used; add "
                "--engine ray, or --parallel ray for several runs"
            )

    @property
    def on_ray(self) -> bool:
        return "ray" in (self.engine, self.parallel)

    def prepare(self, config: Config) -> Experiment:
        own: RayEngine | VectorisedEngine | None = None
        if self.engine == "ray":
            own = RayEngine(self.memory_gb, self.cluster)
        elif self.cores is not None and self.engine in ("auto", "vectorised"):
            own = VectorisedEngine(self.memory_gb, cores=self.cores)
        return prepare(
            config,
            data_dir=self.data_dir,
            device=self.device,
            engine=own or self.engine,
            memory_gb=None if own else self.memory_gb,
        )


@dataclass(frozen=True)
class Job:
    """One run folder, and what is asked of it in turn: configurations that differ in their ends (rounds, targets)
    alone. One that needs no more than those before it is left out."""

    name: str
    folder: Path
    configs: tuple[Config, ...]
    resume: bool = True
    keep_model: bool = True

    @property
    def rounds(self) -> int:
        return max(config.training.rounds for config in self.configs)

    @property
    def summary(self) -> Record | None:
        """Of a run that is done, under these very settings; None where something is left to do."""
        store, (*_, config) = RunFolder(self.folder), self.configs
        there = (store.config_path, store.summary_path, store.model_path, store.pictures_path)
        if not all(path.exists() for path in there) or store.read_config().to_toml() != config.to_toml():
            return None
        return store.read_summary() if done(config, store.read_rounds()) else None


@dataclass(frozen=True)
class Begun:
    """What a run says before its first round: where it is carried out, the share of the model that its cells train
    and what it promises and what to be wary of, and what a round takes."""

    device: str
    share: str
    doubts: tuple[str, ...]
    work: str


@dataclass(frozen=True)
class Tally:
    """What became of the runs: their names."""

    done: tuple[str, ...]
    left: tuple[str, ...]
    diverged: tuple[str, ...]

    @classmethod
    def of(cls, outcomes: Mapping[str, Outcome]) -> Tally:
        kinds: tuple[Outcome, ...] = ("done", "left", "diverged")
        return cls(*(tuple(name for name, came in outcomes.items() if came == kind) for kind in kinds))

    @property
    def as_json(self) -> dict[str, Any]:
        return {"done": len(self.done), "left": list(self.left), "diverged": list(self.diverged)}


Message = Begun | Record | Run | DivergedError
"""What is to be told of a run."""


class _OutOfTime(Exception):
    """Raised between rounds; the round before is on the disk."""


def is_of(folder: Path, config: Config) -> bool:
    """Whether the folder holds a run that differs from `config` in its ends alone."""
    store = RunFolder(folder)
    return store.config_path.exists() and store.read_config().identity() == config.identity()


def has_rounds(folder: Path, config: Config) -> bool:
    """Whether the folder holds all rounds that `config` asks for, of a run that has ended or goes on for another."""
    if not is_of(folder, config):
        return False
    store = RunFolder(folder)
    records = store.read_rounds()
    return done(config, records) and (store.summary_path.exists() or len(records) > config.training.rounds)


def late(deadline: float | None) -> bool:
    return deadline is not None and time.time() >= deadline


def finish(
    job: Job, execution: Execution, deadline: float | None, tell: Callable[[Message], None]
) -> Outcome:
    """All rounds that are asked of one folder."""
    for number, config in enumerate(job.configs):
        if number > 0 and has_rounds(job.folder, config):
            continue
        if late(deadline):
            return "left"
        experiment = execution.prepare(config)

        def on_round(record: Record, rounds: int = config.training.rounds) -> None:
            tell(record)
            if record["round"] < rounds and late(deadline):
                raise _OutOfTime

        try:
            run = execute(
                experiment,
                RunFolder(job.folder),
                resume=job.resume,
                keep_model=job.keep_model,
                on_start=partial(_tell_begun, experiment, tell),
                on_round=on_round,
            )
        except _OutOfTime:
            return "left"
        except DivergedError as error:
            tell(error)
            return "diverged"
        tell(run)
    return "done"


def as_sent(message: Any) -> Any:
    """What is told as it can be sent to another process."""
    if isinstance(message, Run):
        # Its model may be large, or of a class that cannot be sent; the folder has it.
        return replace(message, model=None)
    if not isinstance(message, Exception):
        return message
    if not isinstance(message, HistflError):
        message.add_note("".join(traceback.format_exception(message)))
    try:
        pickle.loads(pickle.dumps(message))
    except Exception:
        error = RuntimeError(in_one_line(message))
        error.add_note("".join(traceback.format_exception(message)))
        return error
    return message


def _tell_begun(experiment: Experiment, tell: Callable[[Message], None]) -> None:
    config, hist = experiment.config, experiment.hist
    share, doubts = holding(config, hist)
    work = work_of_a_round(config, hist.network.clients_per_cell).sentence
    tell(Begun(experiment.device.type, share, (*foretold(config, hist), *doubts), work))
