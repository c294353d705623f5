"""`histfl.train`: a run from Python, on the user's own objects."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from histfl import arguments
from histfl.data import GIVEN, train_and_test
from histfl.errors import HistflError, UsageError, in_one_line, shown
from histfl.network import Network
from histfl.partition import copy_of
from histfl.reports.compare import compare
from histfl.runs import run as runs
from histfl.runs.build import Ingredients, build
from histfl.runs.config import Config, DataSettings, MethodSettings, TrainingSettings
from histfl.runs.execute import OnRound, execute
from histfl.runs.records import Record
from histfl.runs.sizes import holding
from histfl.runs.store import RunFolder
from histfl.runs.unread import unread
from histfl.settings import checked
from histfl.training.objective import Loss
from histfl.training.optimisers import GIVEN as GIVEN_OPTIMISER
from histfl.training.optimisers import OPTIMISERS, SHARED, Optimiser, check_optimiser

# Where each further keyword of `train` belongs in the configuration.
_log = logging.getLogger(__name__)
_HOMES = {
    **{
        key: ("data", key)
        for key in DataSettings.model_fields
        if key not in ("name", "split", "strip", "max_length", "tokenizer")
    },
    **{key: ("training", key) for key in TrainingSettings.model_fields},
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
    "theory_every": ("theory", "every"),
}


class Run(runs.Run):
    """A run in its user's hands: it has its trained model, and draws itself."""

    model: nn.Module

    def plot(self, against: str = "megabytes_per_client") -> Any:
        """Test accuracy against megabytes_per_client, simulated_seconds or round: a plotly figure."""
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
    method: str = "hist",
    uplink: str | Mapping[str, Any] = "fdma",
    codec: str | Mapping[str, Any] = "plain",
    cloud: str | Mapping[str, Any] = "replace",
    objective: str | Mapping[str, Any] = "classification",
    optimiser: str | Mapping[str, Any] | Optimiser = "sgd",
    loss: Loss | None = None,
    device: str | torch.device = "auto",
    engine: str = "auto",
    memory_gb: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    **settings: Any,
) -> Run:
    """Train `model` (any nn.Module; it is copied, not changed) over `network` and return the run.

    The sets are torch Datasets of (input, target) or pairs of tensors; the model returns scores
    [sample, class]. `split` names how the samples are spread over the clients (default: shards), or has a list of
    sample numbers for every client, cell 0's clients first. `uplink`, `codec`, `cloud` and `objective` are
    names, or tables of those sections.
    `optimiser` is the clients': a name, a table of it and its options, or an object (`histfl.training.optimisers`).
    `loss(outputs, targets)` is the mean over the batch. Further keywords are keys of the configuration: rounds,
    edge_rounds, local_steps, batch_size, learning_rate, sizes, include, exclude, active_cells, participants, dropout,
    theory_every and the others of its sections. With `out`, the run is kept in that folder with its report and can be
    resumed; `on_round` is called with a copy of every round's record, and what it raises ends the run (as the cause
    of a UsageError). BatchNorm statistics of the returned model are recomputed
    from the clients' data, also those of frozen layers.
    """
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
    train_data, test_data = train_and_test(train_set, test_set)
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": type(model).__name__},
        "data": {"name": "custom"},
        "method": {"name": method},
        "network": {"cells": network.num_cells, "clients": network.num_clients, "profile": "given"},
        "uplink": _named("uplink", uplink),
        "codec": _named("codec", codec),
        "cloud": _named("cloud", cloud),
        "objective": _named("objective", objective),
    }
    tables, own_optimiser = _optimiser(optimiser, settings)
    sections |= tables
    holdings = None if isinstance(split, str) else split
    if split is not None:
        sections["data"]["split"] = split if holdings is None else GIVEN
    for keyword, value in settings.items():
        if keyword not in _HOMES:
            raise UsageError(f"train() has no setting {keyword!r}; known: {', '.join(sorted(_HOMES))}")
        section, key = _HOMES[keyword]
        if value is not None:
            sections.setdefault(section, {})[key] = _plain(value)
    config = checked(Config, sections, "train()")
    for reason in unread([config]):
        _log.warning("train(): %s", reason)
    ingredients = Ingredients(copy_of(model), train_data, test_data, network, holdings, own_optimiser)
    experiment = build(config, ingredients, device=device, engine=engine, memory_gb=memory_gb, loss=loss)
    done = execute(
        experiment,
        RunFolder(folder) if folder else None,
        resume=bool(resume),
        on_start=lambda: _tell(*holding(config.method, experiment.hist)),
        on_round=None if on_round is None else _following(on_round, folder),
    )
    run = Run(**{field.name: getattr(done, field.name) for field in fields(done)})
    if folder:
        try:
            run.write_report(folder / "report.html")
        except HistflError as error:  # the run is done and kept
            _log.warning("train(): %s", error)
    return run


def _tell(share: str, doubts: Sequence[str]) -> None:
    _log.info("train(): %s", share)
    for doubt in doubts:
        _log.warning("train(): %s", doubt)


def _following(on_round: OnRound, folder: Path | None) -> OnRound:
    """The caller's function; where it fails, the error says that it is the caller's and how to go on."""
    how = "nothing of the run is kept, for which train() takes out='runs/first'"
    if folder is not None:
        how = f"the run is kept: go on with train(..., out={str(folder)!r}, resume=True)"

    def follow(record: Record) -> None:
        number = record["round"]  # before it may be changed
        try:
            on_round(record)
        except Exception as error:
            raise UsageError(
                f"the function given as on_round failed after round {number}: {in_one_line(error)}; {how}"
            ) from error

    return follow


def _named(section: str, chosen: str | Mapping[str, Any]) -> dict[str, Any]:
    """A section's table from a choice by name or by table."""
    if isinstance(chosen, str):
        return {"name": chosen}
    if not isinstance(chosen, Mapping):
        raise UsageError(
            f"train({section}={shown(chosen)}): give a name, or a table of the section [{section}]"
        )
    return dict(chosen)


def _optimiser(
    given: object, settings: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], Optimiser | None]:
    """What the configuration says of an optimiser, and the optimiser itself where it is an object."""
    own = None
    if isinstance(given, str):
        options: dict[str, Any] = {"name": given}
    elif isinstance(given, Mapping):
        options = {"name": "sgd"} | dict(given)
    elif isinstance(given, type):
        raise UsageError(f"train(optimiser={given.__name__}): give an object, such as {given.__name__}()")
    else:
        own, kind = check_optimiser(given, f"train(optimiser={shown(given)})"), type(given)
        known = [name for name, make in OPTIMISERS.items() if make is kind]
        fields = dataclasses.fields(given) if dataclasses.is_dataclass(given) else ()
        values = {field.name: getattr(given, field.name) for field in fields}
        options = {key: value for key, value in values.items() if isinstance(value, bool | int | float | str)}
        options |= (
            {"name": known[0]}
            if known
            else {"name": GIVEN_OPTIMISER, "of": f"{kind.__module__}.{kind.__qualname__}"}
        )
    training = {"optimiser": options.pop("name")}
    for key in (key for key in SHARED if key in options):
        if settings.get(key) is not None:
            raise UsageError(
                f"train({key}={shown(settings[key])}): the optimiser has {key} = {options[key]!r}; leave out one"
            )
        training[key] = options.pop(key)
    return {"training": training} | ({"optimiser": options} if options else {}), own


def _plain(value: Any) -> Any:
    """A number of numpy's or a tuple as a TOML file would have it."""
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value
