"""`histfl.train`: a run from Python, on the user's own objects."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from histfl.data import as_tensor_data
from histfl.errors import UsageError
from histfl.experiments.build import Ingredients, build
from histfl.experiments.config import Config, DataSettings, MethodSettings, TrainingSettings
from histfl.experiments.run import OnRound, Run, execute
from histfl.experiments.store import RunFolder
from histfl.network import Network
from histfl.settings import Settings, checked
from histfl.training.jobs import Loss

_SECTIONS: dict[str, type[Settings]] = {
    "data": DataSettings,
    "training": TrainingSettings,
    "method": MethodSettings,
}


def train(
    model: nn.Module,
    train_set: Any,
    test_set: Any,
    *,
    network: Network,
    method: str = "hist",
    uplink: str | Mapping[str, Any] = "fdma",
    participants: int | None = None,
    dropout: float = 0.0,
    loss: Loss = nn.functional.cross_entropy,
    device: str = "auto",
    engine: str = "auto",
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    **settings: Any,
) -> Run:
    """Train `model` (any nn.Module; it is copied, not changed) over `network` and return the run.

    The sets are torch Datasets of (input, target) or pairs of tensors. Further keywords are the keys of
    the configuration's sections `data` (split, ...), `training` (rounds, edge_rounds, local_steps,
    batch_size, learning_rate, ...) and `method` (sizes, include, exclude, shared). `uplink` is a name or
    a table of that section. `loss(outputs, targets)` is the mean over the batch. With `out`, the run is
    kept in that folder and can be resumed; `on_round` is called with every round's record.
    """
    train_data = as_tensor_data(train_set)
    test_data = as_tensor_data(test_set, class_names=train_data.class_names)
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": type(model).__name__},
        "data": {"name": "custom"},
        "method": {"name": method},
        "network": {
            "cells": network.num_cells,
            "clients": network.num_clients,
            "participants": "all" if participants is None else participants,
            "dropout": dropout,
            "profile": "given",
        },
        "uplink": {"name": uplink} if isinstance(uplink, str) else dict(uplink),
        "training": {},
    }
    for key, value in settings.items():
        section = next((name for name, model_ in _SECTIONS.items() if key in model_.model_fields), None)
        if section is None:
            known = sorted(field for model_ in _SECTIONS.values() for field in model_.model_fields)
            raise UsageError(f"train() has no setting {key!r}; known: {', '.join(known)}")
        sections[section][key] = list(value) if isinstance(value, tuple) else value
    config = checked(Config, sections, "train()")
    ingredients = Ingredients(copy.deepcopy(model), train_data, test_data, network)
    experiment = build(config, ingredients, device=device, engine=engine, loss=loss)
    return execute(experiment, RunFolder(Path(out)) if out else None, resume=resume, on_round=on_round)
