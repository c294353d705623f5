"""Models by name: ours, a plugin's, or a user's own factory as `package.module:factory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from histfl import settings
from histfl.data.inputs import Inputs
from histfl.errors import UsageError
from histfl.factories import MODEL, call_factory, find_factory
from histfl.limits import check_memory
from histfl.models.lora import lora
from histfl.models.vision import lenet5, mlp, resnet18
from histfl.seeds import lent_to_layers

COPIES = 3  # of a model: itself, the one that clients train in, and the global state
MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "lenet5": lenet5,
    "resnet18": resnet18,
    "lora": lora,
}


def build_model(
    name: str,
    options: Mapping[str, Any],
    input_shape: Sequence[int],
    num_classes: int,
    *,
    seed: int,
    sample_inputs: Inputs | None = None,
    data_dir: Path | None = None,
) -> nn.Module:
    """The named model, its initial weights drawn from `seed`; the global generator is left as it was.

    A factory gets `options`, and `input_shape`, `num_classes`, `sample_inputs` (a few inputs of the training
    set, [sample, ...]) and `data_dir` (the folder of data sets, or None) where its signature has them.
    """
    check_options(name, options)
    factory = MODELS.get(name) or find_factory(MODEL, name, MODELS)
    offered = {
        "input_shape": tuple(input_shape),
        "num_classes": num_classes,
        "sample_inputs": sample_inputs,
        "data_dir": data_dir,
    }
    with lent_to_layers(seed, torch.device("cpu")):
        model = call_factory(factory, options, offered, place=f"model {name!r}")
    if not isinstance(model, nn.Module):
        raise UsageError(f"model {name!r} returned {type(model).__name__}; it must return a torch.nn.Module")
    return model


def check_model_size(
    name: str, options: Mapping[str, Any], input_shape: Sequence[int], num_classes: int
) -> None:
    """A UsageError where one of our models is larger than this machine can hold; nothing is allocated."""
    factory = MODELS.get(name)
    if factory is None or name == "lora":  # whose base is loaded from files
        return
    check_options(name, options)
    offered = {"input_shape": tuple(input_shape), "num_classes": num_classes}
    with torch.device("meta"):
        model = call_factory(factory, options, offered, place=f"model {name!r}")
    numbers = sum(parameter.numel() for parameter in model.parameters())
    check_memory(
        f"model {name!r}{f' with {dict(options)}' if options else ''}: {numbers:,} parameters",
        COPIES * 4 * numbers,
        "take a smaller one",
    )


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """A UsageError where an option of one of our models has not the kind of value that it takes."""
    if name in MODELS:
        settings.check_options("model", MODELS[name], options)
