"""`histfl.train`: a run from Python, on the user's own objects."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader

from histfl import arguments
from histfl.data import Split, train_and_test
from histfl.data.accepted import accepted
from histfl.errors import CheckpointError, HistflError, UsageError, did_you_mean, shown
from histfl.network import Network
from histfl.partition import copy_of
from histfl.reports.compare import compare
from histfl.reports.trackers import Trackers
from histfl.runs import run as runs
from histfl.runs.build import Ingredients, build
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.runs.given import (
    given_correction,
    given_method,
    given_objective,
    given_optimiser,
    given_schedule,
    given_sizes,
    given_uplink,
    named_or_own,
    plain,
    table_of,
)
from histfl.runs.plain_sections import DataSettings, MethodSettings, NetworkSettings, TrainingSettings
from histfl.runs.privacy import foretold
from histfl.runs.records import Record, in_megabytes, shown_goal
from histfl.runs.run import read_run
from histfl.runs.sections import UplinkSettings
from histfl.runs.serving import trained_model
from histfl.runs.sizes import holding
from histfl.runs.store import RunFolder
from histfl.runs.unread import unread
from histfl.settings import GIVEN, checked
from histfl.training import Engine
from histfl.training.cloud import CLOUD_STEPS, CloudStep, check_cloud_step
from histfl.training.codecs import CODECS, Codec, check_codec
from histfl.training.corrections import NO_CORRECTION, MakeCorrection
from histfl.training.dealers import Method
from histfl.training.methods import DEFAULT_METHOD
from histfl.training.objective import Loss, Objective
from histfl.training.optimisers import Optimiser
from histfl.training.schedules import Schedule
from histfl.watching import OnRound, asked, watched
from histfl.wireless.clock import Radio

_log = logging.getLogger(__name__)
# Where each further keyword of `train` belongs in the configuration.
_HOMES = {
    **{
        key: ("data", key)
        for key in DataSettings.model_fields
        if key not in ("name", "split", "strip", "max_length", "tokenizer")
    },
    **{
        key: ("training", key)
        for key in TrainingSettings.model_fields
        if key not in ("optimiser", "schedule", "correction")
    },
    **{key: ("method", key) for key in MethodSettings.model_fields if key != "name"},
    **{
        key: ("network", key)
        for key in (
            "active_cells",
            "participants",
            "dropout",
            "cycles_per_step",
            "operations_per_cycle",
            "energy_coefficient",
        )
    },
    "goal": ("objective", "goal"),
    "theory_every": ("theory", "every"),
    "evaluate_per": ("evaluate", "per"),
}


@dataclass(frozen=True, repr=False)
class Run(runs.Run):
    """A run in its user's hands: it has its trained model, and draws itself.

    `split` says who held what: `run.split.client(0)` are the numbers of client 0's training samples.
    """

    model: nn.Module = None  # type: ignore[assignment]  # of a loaded run alone, where nothing says how it is built
    split: Split | None = None  # None where the run was loaded

    @classmethod
    def load(cls, folder: Path | str, model: nn.Module | None = None) -> Run:
        """The run in `folder`, finished or not. `model` is one like that which was trained: a copy of it gets the
        trained weights. A model of histfl's own needs none given."""
        place = arguments.path("folder", folder)
        if model is not None and not isinstance(model, nn.Module):
            raise UsageError(f"Run.load(model={shown(model)}): give a torch.nn.Module")
        try:
            found = read_run(place, place.name)
            trained = trained_model(place, found.config, found.summary, model)
        except CheckpointError as error:
            raise CheckpointError(f"{place}: {error}") from None
        if model is not None and trained is None:
            raise CheckpointError(f"{place} has no trained model yet; go on with the run to its end")
        return cls(**{field.name: getattr(found, field.name) for field in fields(found)} | {"model": trained})

    def __repr__(self) -> str:
        last, kept = self.records[-1], f", in {self.folder}" if self.folder else ""
        goal = f"{self.objective.aim.title} {shown_goal(last[self.objective.goal], self.objective)}"
        of = f" of {self.planned_rounds}" if not self.finished else ""
        return (
            f"Run({self.name}: {len(self.records)}{of} rounds, {goal}, {in_megabytes(last['megabytes_per_client'])} MB a "
            f"client, {last['simulated_seconds']:.3g} simulated s{kept})"
        )

    def _repr_html_(self) -> str:
        return compare(**{self.name: self})._repr_html_()

    def plot(self, against: str = "megabytes_per_client") -> Any:
        """The goal, as test accuracy, against megabytes_per_client, simulated_seconds or round: a plotly figure."""
        return compare(**{str(self.summary["method"]): self}).plot(against)

    def write_report(self, path: Path | str) -> None:
        """The run's report as one self-contained page, such as report.html."""
        compare(**{str(self.summary["method"]): self}).write_report(path)


def train(
    model: nn.Module,
    train_set: Any,
    test_set: Any,
    *,
    network: Network,
    split: str | Sequence[npt.ArrayLike] | None = None,
    method: str | Mapping[str, Any] | Method = DEFAULT_METHOD,
    uplink: str | Mapping[str, Any] | Radio = "fdma",
    codec: str | Mapping[str, Any] | Codec = "plain",
    cloud: str | Mapping[str, Any] | CloudStep = "replace",
    privacy: Mapping[str, Any] | None = None,
    objective: str | Mapping[str, Any] | Objective = "classification",
    metrics: Mapping[str, Any] | Sequence[str] | None = None,
    optimiser: str | Mapping[str, Any] | Optimiser = "sgd",
    schedule: str | Mapping[str, Any] | Schedule = "constant",
    correction: str | MakeCorrection = NO_CORRECTION,
    loss: Loss | None = None,
    device: str | torch.device = "auto",
    engine: str | Engine = "auto",
    memory_gb: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    progress: bool | None = None,
    tensorboard: bool = False,
    mlflow: bool | str = False,
    wandb: bool = False,
    **settings: Any,
) -> Run:
    """Train `model` (any nn.Module; it is copied, not changed) over `network` and return the run.

    Data. The sets are torch Datasets of (input, target), DataLoaders of them, or pairs of tensors or numpy arrays, whose
    memory is not copied (`numpy.memmap`). Inputs may be tuples or dictionaries of tensors, which are the model's
    arguments. `split` names how the samples are spread over the clients (default: shards), or has a list of sample
    numbers for every client, cell 0's clients first.

    What is learnt. `objective` is "classification" (scores [sample, class], class numbers [sample]), "regression",
    "multilabel", "segmentation", "language-modelling", or an object (`histfl.training.objective`); `loss(outputs,
    targets)`, the mean over the batch, takes the place of its own. `metrics` are further ones: a table of functions of
    all outputs and targets, of such a function and what is best, {"distance": (f, "min")}, or of objects; or a list of
    known names.

    How. `method`, `uplink`, `optimiser`, `schedule`, `codec` and `cloud` are names or tables, and `privacy` is a table, of
    what their sections have; all but the last may also be objects (`histfl.training.dealers`, `.optimisers`,
    `.schedules`, `.codecs`, `.cloud`, `histfl.wireless.uplinks`), and a `correction` is a name or a class like
    `histfl.training.corrections.Mtgc`. The `channel` in the uplink's table may be an object with `draw`
    (`histfl.wireless.Channel`), and `sizes` a function from a `histfl.sizing.SizingProblem` to units [cell, layer].
    `engine` is a name, or an object such as `histfl.engines.RayEngine(cluster=Cluster(workers=4))`, which the run
    closes. Further keywords are keys of the configuration: rounds, edge_rounds, local_steps, batch_size,
    learning_rate, sizes, include, exclude, active_cells, participants, dropout, goal, patience, theory_every,
    evaluate_per and the others of its sections.

    What becomes of it. With `out`, the run is kept in that folder with its report and can be resumed; `tensorboard`,
    `mlflow` (True, or a store's address) and `wandb` then log it there, too. `progress` shows how far it is on standard
    error or in a notebook's cell (None: where a person looks). `on_round(record)`, or `on_round(record, model)`, is
    called with copies after every round: where it returns "stop" the run ends there, and what it raises ends it, too (as
    the cause of a UsageError). BatchNorm statistics of the returned model are recomputed from the clients' data, also
    those of frozen layers.
    """
    if isinstance(original := getattr(model, "_orig_mod", None), nn.Module):
        model = original  # of the wrapper that torch.compile makes
    if not isinstance(model, nn.Module) or not isinstance(network, Network):
        raise UsageError(
            f"train() takes a torch.nn.Module and network=histfl.Network, not {type(model).__name__} and "
            f"{type(network).__name__}"
        )
    if on_round is not None and not callable(on_round):
        raise UsageError(f"train(on_round={shown(on_round)}): give a function of a round's record")
    if loss is not None and not callable(loss):
        raise UsageError(f"train(loss={shown(loss)}): give a function of scores and targets")
    if memory_gb is not None:
        memory_gb = arguments.between("memory_gb", memory_gb, 1e-9, 1e9)
    if not (resume is None or isinstance(resume, int | np.bool_)):
        raise UsageError(f"train(resume={shown(resume)}): give True or False")
    folder = None if out is None or (isinstance(out, str) and out == "") else arguments.path("out", out)
    if resume and folder is None:
        raise UsageError("train(resume=True) without out: name the folder of the run to go on with")
    trackers = _trackers(tensorboard, mlflow, wandb, folder)
    if not (progress is None or isinstance(progress, bool | np.bool_)):
        raise UsageError(f"train(progress={shown(progress)}): give True or False")
    _tell_of_batches(train_set, settings.get("batch_size"))
    train_data, test_data = train_and_test(accepted(train_set), accepted(test_set))
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": type(model).__name__},
        "data": {"name": "custom"},
        "network": {"cells": network.num_cells, "clients": network.num_clients, "profile": "given"},
    }
    sections["uplink"], own_uplink, own_channel = given_uplink(uplink)
    if privacy is not None:
        sections["privacy"] = table_of("privacy", privacy)
    sections["codec"], own_codec = named_or_own("codec", codec, CODECS, check_codec)
    sections["cloud"], own_cloud = named_or_own("cloud", cloud, CLOUD_STEPS, check_cloud_step)
    sections["objective"], given = given_objective(objective, metrics, settings.get("goal"))
    sections["method"], own_method = given_method(method, settings)
    sections["method"], own_sizes = given_sizes(sections["method"], settings)
    tables, own_optimiser = given_optimiser(optimiser, settings)
    sections |= tables
    of_schedule, own_schedule = given_schedule(schedule, settings)
    of_correction, own_correction = given_correction(correction)
    sections["training"] |= of_schedule | of_correction
    holdings = None if isinstance(split, str) else split
    if split is not None:
        sections["data"]["split"] = split if holdings is None else GIVEN
    for keyword, value in settings.items():
        if keyword not in _HOMES:
            raise UsageError(f"train() has no setting {keyword!r}; {_where_it_is(keyword)}")
        section, key = _HOMES[keyword]
        if value is not None and not (keyword == "sizes" and own_sizes is not None):
            sections.setdefault(section, {})[key] = plain(value)
    config = checked(Config, sections, "train()")
    for reason in unread([config]):
        _log.warning("train(): %s", reason)
    ingredients = Ingredients(
        copy_of(model),
        train_data,
        test_data,
        network,
        holdings,
        method=own_method,
        optimiser=own_optimiser,
        schedule=own_schedule,
        correction=own_correction,
        codec=own_codec,
        cloud=own_cloud,
        objective=given.whole(config.objective.made()),
        uplink=own_uplink,
        channel=own_channel,
        sizes=own_sizes,
    )
    if ingredients.objective and (misfit := ingredients.objective.misfit(config.training.targets)):
        raise UsageError(f"train(): {misfit}")
    resume, kept = bool(resume), RunFolder(folder) if folder else None
    with watched(config, folder, trackers, resume=resume, shown=progress) as watch:
        experiment = build(config, ingredients, device=device, engine=engine, memory_gb=memory_gb, loss=loss)
        ask = None if on_round is None else asked(on_round, experiment.model, folder)

        def on_start() -> None:
            _tell(*holding(config, experiment.hist), foretold(config, experiment.hist))
            watch.on_start(experiment)

        def after_round(record: Record) -> bool:
            watch.on_round(record)
            return ask is not None and ask(record)

        done = execute(experiment, kept, resume=resume, on_start=on_start, on_round=after_round)
        watch.on_end(done)
    values = {field.name: getattr(done, field.name) for field in fields(done)}
    run = Run(**values, split=experiment.hist.task.split)
    if folder:
        try:
            run.write_report(folder / "report.html")
        except HistflError as error:  # the run is done and kept
            _log.warning("train(): %s", error)
    return run


_CALLED_ELSEWHERE = {  # in other packages: its name here
    "epochs": "local_steps, the batches of a client in an edge round",
    "local_epochs": "local_steps, the batches of a client in an edge round",
    "verbose": "progress",
    "callback": "on_round",
    "callbacks": "on_round",
    "logger": "tensorboard, mlflow or wandb",
    "criterion": "loss",
    "strategy": "method or cloud",
    "scheduler": "schedule",
}


def _where_it_is(keyword: str) -> str:
    """Where to say what `train` has no keyword for, or the nearest one."""
    if keyword in _CALLED_ELSEWHERE:
        return f"here it is {_CALLED_ELSEWHERE[keyword]}"
    if keyword in NetworkSettings.model_fields:
        return "the network says it: network=histfl.Network.uniform(cells=4, clients_per_cell=15), for one"
    if keyword in UplinkSettings.model_fields and keyword != "name":
        return f"the uplink has it: uplink={{'name': 'fdma', {keyword!r}: ...}}, for one"
    known = sorted({*_HOMES, *signature(train).parameters} - {"settings"})
    return did_you_mean(keyword, known, f"known: {', '.join(known)}")


def _trackers(tensorboard: object, mlflow: object, wandb: object, folder: Path | None) -> Trackers:
    for name, value in {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}.items():
        if (
            value is not None
            and not isinstance(value, bool)
            and not (name == "mlflow" and isinstance(value, str))
        ):
            address = ", or the address of a store" if name == "mlflow" else ""
            raise UsageError(f"train({name}={shown(value)}): give True or False{address}")
        if value and folder is None:
            raise UsageError(
                f"train({name}={shown(value)}) without out: name a folder for the run, such as out='runs/first'"
            )
    return Trackers(
        tensorboard is True, mlflow is True, mlflow if isinstance(mlflow, str) else None, wandb is True
    )


def _tell_of_batches(train_set: object, batch_size: object) -> None:
    """A loader's own batch size is not read."""
    if isinstance(train_set, DataLoader) and batch_size is None and train_set.batch_size:
        default = TrainingSettings().batch_size
        if train_set.batch_size != default:
            _log.warning(
                "train(): batches of %d samples; the DataLoader's own size is not read: give batch_size=%d",
                default,
                train_set.batch_size,
            )


def _tell(share: str, doubts: Sequence[str], promises: Sequence[str]) -> None:
    for said in (share, *promises):
        _log.info("train(): %s", said)
    for doubt in doubts:
        _log.warning("train(): %s", doubt)
