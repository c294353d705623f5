"""What a run learns: its loss, the metrics of its models, and the goal that its targets speak of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from histfl.data import TensorData
from histfl.errors import UsageError, article
from histfl.training.metrics import FunctionMetric, Measure, Metric, TestLoss, bounds_of

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
Metrics = Mapping[str, Metric | FunctionMetric]
LOSS = "loss"  # the goal of a run whose targets are values of the test loss


def anything(*_: Any) -> None:
    """A check that lets all pass."""


def entries(data: TensorData) -> int:
    """The numbers that a model returns for a sample: a score a class, or as many as a target has."""
    return data.num_classes or math.prod(data.targets.shape[1:])


@dataclass(frozen=True)
class Objective:
    """`loss(outputs, targets)` is the mean over the batch. `metrics` are computed on the test set after every round
    and stand in the records by their names; targets are values of the one named `goal`, or of the "loss".

    `check_targets` refuses, in words, data that are not of this objective, and `check_outputs` outputs; `outputs`
    is the number of them that a model by name is made with. `counted` is how many of a batch's targets its loss is the
    mean over, by which batches weigh in the loss of a data set: all samples, where nothing else is said.
    """

    loss: Loss
    metrics: Metrics
    goal: str
    check_outputs: Callable[[Any, int, TensorData], None] = field(default=anything)
    check_targets: Callable[[TensorData], None] = field(default=anything)
    outputs: Callable[[TensorData], int] = field(default=entries)
    counted: Callable[[torch.Tensor], int | torch.Tensor] = field(default=len)

    @property
    def aim(self) -> Measure:
        """What the goal is a value of."""
        return TestLoss() if self.goal == LOSS else self.metrics[self.goal]

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value of the goal is as good as the target."""
        return value >= target if self.aim.higher_is_better else value <= target

    def best(self, values: Iterable[float]) -> float:
        """The best of some values of the goal."""
        return max(values) if self.aim.higher_is_better else min(values)

    def misfit(self, targets: Iterable[float]) -> str | None:
        """Which of the targets the goal cannot have the value of, and why; None where it can have all."""
        lowest, highest = bounds_of(self.aim)
        lies = f"lies from {lowest:g} to {highest:g}"
        if math.isinf(lowest) or math.isinf(highest):
            lies = f"is at least {lowest:g}" if math.isinf(highest) else f"is at most {highest:g}"
        for number, target in enumerate(targets):
            if not lowest <= target <= highest:
                return f"training.targets.{number} = {target!r}: {article(self.aim.title)} {lies}"
        return None


def check_tensor(outputs: object, wanted: str) -> torch.Tensor:
    if not isinstance(outputs, torch.Tensor) or outputs.is_nested:
        kind = "a nested tensor" if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise UsageError(
            f"the model returns {kind}; it must return a tensor of {wanted}: wrap it in a module that "
            "does, or give an Objective of your own whose loss takes it"
        )
    return outputs


def check_scores(outputs: object, num_samples: int, data: TensorData) -> None:
    """A UsageError where `outputs` are no scores [sample, class] of the data's classes."""
    outputs = check_tensor(outputs, "scores [sample, class]")
    if outputs.ndim != 2 or outputs.shape[0] != num_samples:
        raise UsageError(
            f"the model returns scores of shape {tuple(outputs.shape)} for {num_samples} samples of "
            f"{data.num_classes} classes; it must return [sample, class]"
            + (
                " (a class a place: objective = 'segmentation' or 'language-modelling')"
                if outputs.ndim > 2
                else ""
            )
        )
    if outputs.shape[1] < data.num_classes:
        lowest, highest = (int(label) for label in data.targets.aminmax())
        remedy = ", or number the classes from 0" if lowest > 0 else ""
        raise UsageError(
            f"the model returns scores of shape {tuple(outputs.shape)}, and there are {data.num_classes} classes (labels "
            f"{lowest} to {highest}); give it {data.num_classes} outputs{remedy}"
        )


def check_numbers(outputs: object, num_samples: int, data: TensorData) -> None:
    """A UsageError where `outputs` have other entries than the targets; an axis of length 1 may be too many."""
    outputs, target = check_tensor(outputs, "numbers [sample, ...]"), tuple(data.targets.shape[1:])
    found = tuple(outputs.shape)
    if found[:1] != (num_samples,) or _long(found[1:]) != _long(target):
        raise UsageError(
            f"the model returns shape {found} for {num_samples} samples with targets of shape {target}; it must return "
            f"{(num_samples, *target)}"
        )


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
