"""The objectives by name: what each learns, how it is measured, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from histfl.data import TensorData
from histfl.errors import UsageError, shown
from histfl.training.metrics import (
    IGNORED,
    R2,
    Accuracy,
    ExactMatch,
    MeanAbsolute,
    MeanIoU,
    MicroF1,
    Perplexity,
    PlaceAccuracy,
    RootMeanSquare,
)
from histfl.training.objective import Loss, Metrics, Objective, check_numbers, check_scores, check_tensor


def classification() -> Objective:
    """One class a sample: outputs are scores [sample, class], targets class numbers [sample]."""
    metrics = {"accuracy": Accuracy()}
    return Objective(nn.functional.cross_entropy, metrics, "accuracy", check_scores, check_labels)


Error = Literal["squared", "absolute", "huber"]
_ERRORS: dict[str, Loss] = {"squared": F.mse_loss, "absolute": F.l1_loss, "huber": F.huber_loss}


def regression(error: Error = "squared") -> Objective:
    """Real numbers: outputs have the entries of the targets [sample, ...]; `error` is squared, absolute or huber.

    The loss is the mean error over all entries.
    """
    metrics: Metrics = {"rmse": RootMeanSquare(), "mae": MeanAbsolute(), "r2": R2()}
    loss = partial(_numbers_loss, error)
    return Objective(loss, metrics, "rmse", check_numbers, partial(_check_real, "regression"))


def multilabel() -> Objective:
    """Any number of labels a sample: outputs are scores [sample, label], targets 0.0 or 1.0 [sample, label].

    The loss is the binary cross-entropy of the scores' sigmoids, the mean over samples and labels.
    """
    metrics: Metrics = {"f1": MicroF1(), "exact_match": ExactMatch()}
    return Objective(F.binary_cross_entropy_with_logits, metrics, "f1", check_numbers, _check_shares)


def segmentation(ignore_index: int = IGNORED) -> Objective:
    """A class a pixel: outputs are scores [sample, class, height, width], targets class numbers [sample, height, width].

    Targets equal to `ignore_index` count nowhere. The loss is the mean cross-entropy of the pixels that count.
    """
    _check_ignored(ignore_index)
    return Objective(
        partial(_places_loss, ignore_index),
        {"miou": MeanIoU(ignore_index), "accuracy": PlaceAccuracy(1, ignore_index)},
        "miou",
        partial(_check_places, 1, ignore_index, "[sample, class, height, width]"),
        partial(_check_classes, "segmentation", ignore_index, 3, "[sample, height, width]"),
        partial(_places_outputs, ignore_index),
        partial(_places_counted, ignore_index),
    )


def language_modelling(ignore_index: int = IGNORED) -> Objective:
    """The next token of every place: outputs are scores [sample, place, token], targets [sample, place] what follows.

    Targets equal to `ignore_index` count nowhere. The loss is the mean cross-entropy of the places that count; any
    class a place is learnt so.
    """
    _check_ignored(ignore_index)
    return Objective(
        partial(_tokens_loss, ignore_index),
        {"perplexity": Perplexity(ignore_index), "accuracy": PlaceAccuracy(-1, ignore_index)},
        "perplexity",
        partial(_check_places, 2, ignore_index, "[sample, place, token]"),
        partial(_check_classes, "language-modelling", ignore_index, 2, "[sample, place]"),
        partial(_places_outputs, ignore_index),
        partial(_places_counted, ignore_index),
    )


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "classification": classification,
    "regression": regression,
    "multilabel": multilabel,
    "segmentation": segmentation,
    "language-modelling": language_modelling,
}
TASKS = ", ".join(f"'{name}'" for name in OBJECTIVES)
ANOTHER = f"choose another objective: {TASKS}, or an Objective of your own"


def _numbers_loss(error: Error, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return _ERRORS[error](outputs.reshape(targets.shape), targets)


def _tokens_loss(ignored: int, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return _places_loss(ignored, outputs.movedim(-1, 1), targets)


def _places_loss(ignored: int, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy over the places that count, scores being [sample, class, ...]; 0 where none does."""
    total = F.cross_entropy(outputs, targets, ignore_index=ignored, reduction="sum")
    return total / _places_counted(ignored, targets).clamp(min=1)


def _places_counted(ignored: int, targets: torch.Tensor) -> torch.Tensor:
    return (targets != ignored).sum()


def _places_outputs(ignored: int, data: TensorData) -> int:
    return max(int(data.targets[data.targets != ignored].max()) + 1, 1)


def _check_ignored(ignored: int) -> None:
    if not -(2**63) <= ignored < 2**63:
        raise UsageError(
            f"objective.ignore_index = {shown(ignored)}; it must fit into 64 bits, as targets do"
        )


def _kind(data: TensorData) -> str:
    """What the targets are, in words."""
    axes = f"[sample{''.join(f', {size}' for size in data.targets.shape[1:])}]"
    return f"{'class numbers, ' if data.class_names else ''}{data.targets.dtype} {axes}"


def check_labels(data: TensorData) -> None:
    """A UsageError where the targets are no class numbers."""
    if not data.class_names:
        raise UsageError(
            f"the targets are {_kind(data)}, and objective 'classification' takes whole class numbers, torch.int64 "
            f"[sample]; give these, or {ANOTHER}"
        )


def _check_real(name: str, data: TensorData) -> None:
    if not data.targets.is_floating_point():
        remedy = "give targets.float(), or choose objective = 'classification'"
        raise UsageError(
            f"the targets are {_kind(data)}, and objective {name!r} takes real numbers; {remedy}"
        )
    if not bool(data.targets.isfinite().all()):
        bad = int((~data.targets.isfinite()).reshape(len(data), -1).any(dim=1).nonzero()[0])
        raise UsageError(f"the target of sample {bad} holds NaN or infinity; clean the data first")


def _check_shares(data: TensorData) -> None:
    wanted = "objective 'multilabel' takes 0.0 or 1.0 a label, real numbers [sample, label]"
    if not data.targets.is_floating_point() or data.targets.ndim != 2:
        remedy = "give F.one_hot(targets).float()" if data.targets.ndim == 1 else "give targets.float()"
        raise UsageError(f"the targets are {_kind(data)}, and {wanted}; {remedy}")
    if not bool(((data.targets >= 0) & (data.targets <= 1)).all()):
        lowest, highest = (float(x) for x in data.targets.aminmax())
        raise UsageError(
            f"the targets reach from {lowest:g} to {highest:g}, and {wanted}; give these, or {ANOTHER}"
        )


def _check_classes(name: str, ignored: int, axes: int, wanted: str, data: TensorData) -> None:
    if data.targets.dtype != torch.int64 or data.targets.ndim != axes:
        raise UsageError(
            f"the targets are {_kind(data)}, and objective {name!r} takes class numbers, torch.int64 {wanted}; give these, "
            f"or {ANOTHER}"
        )
    counted = data.targets[data.targets != ignored]
    if not len(counted):
        raise UsageError(f"every target is {ignored}, the objective's ignore_index; none is left to learn")
    if (lowest := int(counted.min())) < 0:
        raise UsageError(
            f"target {lowest} is no class number; number the classes from 0, and places that do not count as "
            f"objective.ignore_index = {ignored}, or set that key to the number that they have"
        )


def _check_places(
    axis: int, ignored: int, wanted: str, outputs: object, num_samples: int, data: TensorData
) -> None:
    """Scores with an axis of classes beside those of the targets."""
    outputs, classes = check_tensor(outputs, f"scores {wanted}"), _places_outputs(ignored, data)
    expected = [num_samples, *data.targets.shape[1:]]
    expected.insert(axis, classes)
    found = list(outputs.shape)
    if len(found) != len(expected) or any(
        found[place] != size for place, size in enumerate(expected) if place != axis
    ):
        raise UsageError(
            f"the model returns scores of shape {tuple(found)} for {num_samples} samples with targets of shape "
            f"{tuple(data.targets.shape[1:])}; it must return {wanted}, here {tuple(expected)}"
        )
    if found[axis] < classes:
        raise UsageError(
            f"the model returns scores of {found[axis]} classes, and the targets reach to {classes - 1}; give it {classes} "
            "outputs a place"
        )
