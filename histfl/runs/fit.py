"""Whether a model, its data and its loss fit together: tried on a few samples before anything long begins."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from histfl.data import TensorData
from histfl.data.inputs import Inputs, called, chosen, parts, shapes
from histfl.devices import Precision
from histfl.errors import UsageError, in_one_line
from histfl.partition import training_copy
from histfl.training.evaluation import attempt, evaluate
from histfl.training.metrics import FunctionMetric
from histfl.training.objective import Objective

_log = logging.getLogger(__name__)
_FIXED = (nn.DataParallel, nn.parallel.DistributedDataParallel, torch.jit.ScriptModule)
TRAINED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
EXAMPLES = 8  # enough for BatchNorm to have gradients worth comparing


def check_parameters(model: nn.Module) -> torch.dtype:
    """The number format of the model's parameters, of which there must be some to train."""
    for module in model.modules():
        if isinstance(module, _FIXED):
            raise UsageError(
                f"the model is or holds a {type(module).__name__}, in which clients' tensors cannot take the place of its "
                "own; give the plain module (of DataParallel, its .module)"
            )
    parameters = list(model.parameters())
    if any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in parameters):
        raise UsageError(
            "the model has lazy layers that have seen no input yet; run it once on a batch first"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise UsageError(
                f"{name} of the model is on the meta device and has no values; give it some: model.to_empty(device='cpu'), "
                "then its reset_parameters() or a state_dict"
            )
    if not any(parameter.requires_grad for parameter in parameters):
        raise UsageError("the model has no trainable parameter; at least one must have requires_grad")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in TRAINED:
            raise UsageError(
                f"{name} of the model is {parameter.dtype}, which cannot be trained; give the model as model.float()"
            )
    return next(parameter.dtype for parameter in parameters if parameter.requires_grad)


def check_precision(precision: Precision, dtype: torch.dtype, device: torch.device) -> None:
    """Faster products are a GPU's, and for float32 models."""
    if precision == "float32":
        return
    if device.type != "cuda":
        raise UsageError(
            f"training.precision = {precision!r} needs a CUDA device; on a {device.type} use float32"
        )
    if dtype != torch.float32:
        raise UsageError(f"training.precision = {precision!r} is for float32 models; this one is {dtype}")


def _all_finite(inputs: torch.Tensor) -> bool:
    """Whether no number is NaN or infinite; where the sum says so, without the masks that `isfinite` makes of a large
    set, or of one on a disk."""
    return bool(inputs.sum().isfinite()) or bool(inputs.isfinite().all())


def check_fit(
    model: nn.Module, train: TensorData, test: TensorData, objective: Objective, *, batch_size: int
) -> None:
    """One forward pass in training and in evaluation; a misfit is said in one line."""
    if shapes(train.inputs) != shapes(test.inputs):
        raise UsageError(
            f"training samples have shape {shapes(train.inputs)}, test samples {shapes(test.inputs)}; they must be alike"
        )
    if train.targets.shape[1:] != test.targets.shape[1:]:
        raise UsageError(
            f"training targets have shape {tuple(train.targets.shape[1:])}, test targets "
            f"{tuple(test.targets.shape[1:])}; they must be alike"
        )
    count = min(batch_size, EXAMPLES)
    for name, data in (("training", train), ("test", test)):
        module = training_copy(model)
        for tensor in parts(data.inputs):
            if tensor.is_floating_point() and not _all_finite(tensor):
                sample = int((~tensor.isfinite()).reshape(len(data), -1).any(dim=1).nonzero()[0])
                raise UsageError(f"{name} sample {sample} holds NaN or infinity; clean the data first")
        try:
            objective.check_targets(data)
        except UsageError as error:
            raise UsageError(f"the {name} set: {error}") from None
        inputs, targets = chosen(data.inputs, slice(count)), data.targets[:count]
        parameters = {parameter for parameter, _ in module.named_parameters()}
        trains = name == "training"
        module.train(trains)
        with torch.set_grad_enabled(trains), torch.random.fork_rng(devices=[]):
            outputs = _attempt("model", name, inputs, lambda: called(module, inputs))  # noqa: B023 (called at once)
            objective.check_outputs(outputs, len(targets), data)
            if added := {parameter for parameter, _ in module.named_parameters()} - parameters:
                raise UsageError(
                    f"the model's forward pass adds parameters ({', '.join(sorted(added))}); make them all in __init__"
                )
            value = _attempt("loss", name, inputs, lambda: objective.loss(outputs, targets))  # noqa: B023 (called at once)
        if not isinstance(value, torch.Tensor) or value.ndim != 0:
            kind = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise UsageError(f"the loss returns {kind}; it must be one number, the mean over the batch")
        if not value.is_floating_point() or value.is_meta:
            raise UsageError(
                f"the loss returns {value.dtype} on the device {value.device}; it must be a real number with a value"
            )
        if trains and not value.requires_grad:
            raise UsageError(
                "the loss has no gradient; compute it from the model's scores without detaching them"
            )
        if trains:
            if isinstance(outputs, torch.Tensor):
                _tell_of_sums(objective.loss, outputs.detach(), targets, batch_size)
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            with torch.random.fork_rng(devices=[]):
                back = lambda: torch.autograd.grad(value, trained, allow_unused=True)  # noqa: B023, E731 (called at once)
                found = _attempt("backward pass", name, inputs, back)
            if all(gradient is None for gradient in found):
                raise UsageError(
                    "the loss of a copy of the model depends on none of its trainable parameters; its forward pass may be "
                    "bound to the layers of the model itself: let it reach them by self"
                )
        else:
            _try_metrics(module, data, objective, outputs, targets)


def _try_metrics(
    module: nn.Module, test: TensorData, objective: Objective, outputs: Any, targets: torch.Tensor
) -> None:
    """On a few samples; a function is made for all of them, and may not do on few."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for name, metric in objective.metrics.items():
            if not isinstance(metric, FunctionMetric):
                attempt(name, targets, lambda: metric.sums(outputs, targets))  # noqa: B023 (called at once)
        if any(isinstance(metric, FunctionMetric) for metric in objective.metrics.values()):
            evaluate(module, test, objective)


def _attempt(what: str, name: str, inputs: Inputs, compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except Exception as error:  # a user's model and loss may fail in any way
        images = any(part.dtype == torch.uint8 for part in parts(inputs))
        raise UsageError(
            f"the {what} fails on {len(parts(inputs)[0])} {name} samples of shape {shapes(inputs)}: {in_one_line(error)}"
            + ("; bytes become numbers from 0 to 1 by .astype('float32') / 255, or .float() / 255" * images)
        ) from None


def _tell_of_sums(
    loss: Callable[[Any, Any], Any], outputs: torch.Tensor, targets: torch.Tensor, batch_size: int
) -> None:
    """A warning where the loss is a sum over the batch.

    On the same samples k times, a mean stays as it is, also a weighted one, and a sum (with what does not depend on
    the batch) is a + b k. A loss that compares samples with each other, or takes only so many, may be anything else.
    """
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            one, two, four = (
                float(loss(torch.cat([outputs] * k), torch.cat([targets] * k))) for k in (1, 2, 4)
            )
    except Exception:  # it takes no other number of samples
        return
    growth = two - one
    if abs(growth) > 0.1 * abs(one) and math.isclose(four - two, 2 * growth, rel_tol=1e-2):
        _log.warning(
            "the loss grows with the batch, as a sum over it does (%.4g on %d samples, %.4g on twice the same): "
            "gradients are up to %d times (training.batch_size) those of the mean; return the mean over the batch "
            "(reduction='mean')",
            one,
            len(targets),
            two,
            batch_size,
        )
