"""The model that a plan is for, cut as HIST would; no data are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from histfl.arrays import Ints
from histfl.data import cifar10, fashion_mnist
from histfl.errors import PartitionError, UsageError
from histfl.models import build_model, check_model_size
from histfl.partition import Plan, plan, shared_units, training_copy
from histfl.runs.computing import CountedStep
from histfl.runs.config import Config
from histfl.runs.fit import check_parameters
from histfl.runs.sizes import cut_layers, dealer_of
from histfl.seeds import Seeds
from histfl.sizing import CutLayers
from histfl.training.methods import method_named

_FASHION = ((1, fashion_mnist.SIDE, fashion_mnist.SIDE), len(fashion_mnist.CLASS_NAMES))
INPUTS: dict[str, tuple[tuple[int, ...], int]] = {  # data set: a sample's shape, the number of classes
    "fashion-mnist-mini": _FASHION,
    "fashion-mnist": _FASHION,
    "cifar10": ((cifar10.CHANNELS, cifar10.SIDE, cifar10.SIDE), len(cifar10.CLASS_NAMES)),
}


@dataclass(frozen=True)
class CutModel:
    """A model as planning sees it: the layers dealt out, the units [layer] that every cell holds besides,
    the number format of its parameters, and what torch counts in a local step."""

    name: str
    layers: CutLayers
    held: Ints
    plan: Plan
    dtype: torch.dtype
    step: CountedStep

    @property
    def parameters(self) -> int:
        """Of the full model."""
        return self.plan.num_parameters


def cut_model(
    config: Config, *, input_shape: Sequence[int] | None = None, classes: int | None = None
) -> CutModel:
    """The model that `config` names, cut as HIST would; no data are loaded.

    Its inputs are those of a known data set, or of `input_shape` (a sample's) and `classes`.
    """
    method = method_named(config.method.name)
    if method.scheme == "every":
        raise UsageError(
            f"method.name = {config.method.name!r}: where every layer is cut, sizes do not add up; plan hist or overlap"
        )
    known_shape, known_classes = INPUTS.get(config.data.name, (None, None))
    shape, num_classes = input_shape or known_shape, classes or known_classes
    if shape is None or num_classes is None:
        raise UsageError(
            f"the inputs of data set {config.data.name!r} are not known without loading it; "
            "give --input-shape and --classes, for example --input-shape 1,28,28 --classes 10"
        )
    seeds = Seeds(config.training.seed)
    name = config.to_call("model.name")
    check_model_size(name, config.model.options, shape, num_classes)
    model = build_model(name, config.model.options, shape, num_classes, seed=seeds.key("model"))
    dtype = check_parameters(model)
    inputs = torch.randn(2, *shape, generator=seeds.torch("example"), dtype=dtype)
    try:
        cut = plan(model, inputs, include=config.method.include, exclude=config.method.exclude)
    except PartitionError as error:
        planned = "x".join(map(str, shape))
        raise PartitionError(f"{error} (inputs here: {planned}; --input-shape gives others)") from None
    shared = dealer_of(config.method).shared
    if (shared_units(cut, shared) == cut.units).any():
        raise UsageError(f"method.shared = {shared:g}: a layer is shared whole and nothing is left to size")
    units = shared_units(cut, shared)
    step = CountedStep.of(training_copy(model), cut, inputs, config.training.batch_size)
    return CutModel(name, cut_layers(cut, shared), units, cut, dtype, step)
