"""What a trained model needs besides its weights: the shape of its inputs, how they are normalised, its classes' names;
and the model of a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from histfl.data import DATASETS, TensorData
from histfl.errors import CheckpointError, in_one_line
from histfl.models import MODELS, build_model, check_model_size
from histfl.partition import copy_of
from histfl.runs.config import Config
from histfl.runs.records import Record
from histfl.runs.store import RunFolder

MOST_NAMES = 10_000  # of classes


def served(config: Config, data: TensorData) -> Record:
    """For summary.json. Images of a known data set are bytes / 255, then (x - mean) / std by channel; `normalisation`
    is null where the inputs are the user's own."""
    source = DATASETS.get(config.data.name)
    names = data.class_names
    return {
        "class_names": list(names) if len(names) <= MOST_NAMES else None,
        "inputs": _described(data.inputs),
        "normalisation": None if source is None else source.normalisation,
    }


def _described(inputs: Any) -> Any:
    """A sample's shape and type; of several tensors, each one's."""
    if isinstance(inputs, torch.Tensor):
        return {"shape": list(inputs.shape[1:]), "dtype": str(inputs.dtype).removeprefix("torch.")}
    if isinstance(inputs, Mapping):
        return {name: _described(part) for name, part in inputs.items()}
    return [_described(part) for part in inputs]


def trained_model(
    folder: Path, config: Config, summary: Record, like: nn.Module | None = None
) -> nn.Module | None:
    """The model of a run's folder: a copy of `like`, or one of ours built anew, with the trained weights; None where
    neither is there, or the run goes on."""
    store = RunFolder(folder)
    if not store.model_path.exists():
        return None
    model = _built(config, summary) if like is None else copy_of(like)
    if model is None:
        return None
    try:
        state = safetensors.torch.load_file(store.model_path)
        missing, unexpected = model.load_state_dict(state, strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(
            f"{store.model_path} does not fit the model ({in_one_line(error)}); give the one that was trained"
        ) from None
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if wrong := [*unexpected, *(name for name in missing if name in trained)]:
        raise CheckpointError(
            f"{store.model_path} does not fit the model, such as in {wrong[0]!r}; give the one that was trained"
        )
    return model


def _built(config: Config, summary: Record) -> nn.Module | None:
    """A model that needs neither data nor a download to be built."""
    name, inputs, classes = config.model.name, summary.get("inputs"), summary.get("class_names")
    shape = inputs.get("shape") if isinstance(inputs, dict) else None
    if name not in MODELS or name == "lora" or not isinstance(shape, list) or not isinstance(classes, list):
        return None
    if not classes or not all(isinstance(length, int) and 0 < length < 10**6 for length in shape):
        return None
    check_model_size(name, config.model.options, tuple(shape), len(classes))
    return build_model(name, config.model.options, tuple(shape), len(classes), seed=0)
