"""What a run learns: its loss, the metrics of its models, the goal that its targets speak of, and what a model comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from histfl.data import TensorData
from histfl.devices import one_torch_thread
from histfl.errors import UsageError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Metric(Protocol):
    """A number that tells how good a model is on a data set, from what its batches add up to."""

    @property
    def title(self) -> str:
        """Its name in words, such as accuracy."""
        ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def is_share(self) -> bool:
        """Whether it is a part of a whole, from 0 to 1, which is shown in per cent."""
        ...

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What a batch adds, in int64 or float64, of any shape."""
        ...

    def value(self, sums: torch.Tensor, samples: int) -> float:
        """The metric of all samples, from the sums over their batches."""
        ...


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers."""

    title: str = "accuracy"
    higher_is_better: bool = True
    is_share: bool = True

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(dim=1) == targets).sum()

    def value(self, sums: torch.Tensor, samples: int) -> float:
        return float(sums.item()) / samples


METRICS: dict[str, Callable[[], Metric]] = {"accuracy": Accuracy}


@dataclass(frozen=True)
class Objective:
    """`loss(outputs, targets)` is the mean over the batch. `metrics` are computed on the test set after every round
    and stand in the records by their names; targets are values of the one named `goal`.

    `check_outputs` refuses, in words, outputs that are not of this objective.
    """

    loss: Loss
    metrics: Mapping[str, Metric]
    goal: str
    check_outputs: Callable[[Any, int, TensorData], None] = field(default=lambda outputs, samples, data: None)

    @property
    def aim(self) -> Metric:
        """The metric that is the goal."""
        return self.metrics[self.goal]

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value of the goal is as good as the target."""
        return value >= target if self.aim.higher_is_better else value <= target

    def best(self, values: Iterable[float]) -> float:
        """The best of some values of the goal."""
        return max(values) if self.aim.higher_is_better else min(values)


def classification() -> Objective:
    """One class a sample: outputs are scores [sample, class], targets class numbers [sample]."""
    return Objective(nn.functional.cross_entropy, {"accuracy": Accuracy()}, "accuracy", check_scores)


OBJECTIVES: dict[str, Callable[..., Objective]] = {"classification": classification}


def check_scores(outputs: object, num_samples: int, data: TensorData) -> None:
    """A UsageError where `outputs` are no scores [sample, class] of the data's classes."""
    if not isinstance(outputs, torch.Tensor) or outputs.is_nested:
        kind = "a nested tensor" if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise UsageError(f"the model returns {kind}; it must return a tensor of scores [sample, class]")
    if outputs.ndim != 2 or outputs.shape[0] != num_samples:
        raise UsageError(
            f"the model returns scores of shape {tuple(outputs.shape)} for {num_samples} samples of "
            f"{data.num_classes} classes; it must return [sample, class]"
        )
    if outputs.shape[1] < data.num_classes:
        lowest, highest = (int(label) for label in data.targets.aminmax())
        remedy = ", or number the classes from 0" if lowest > 0 else ""
        raise UsageError(
            f"the model returns scores of shape {tuple(outputs.shape)}, and there are {data.num_classes} classes (labels "
            f"{lowest} to {highest}); give it {data.num_classes} outputs{remedy}"
        )


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and metrics, by name, over a data set."""

    loss: float
    metrics: Mapping[str, float]


def evaluate(
    model: nn.Module, data: TensorData, objective: Objective, *, batch_size: int = 1000
) -> Evaluation:
    """Evaluate in eval mode; the model is left in the mode it was in. Batches that a GPU's memory is too
    small for are halved."""
    was_training = model.training
    model.eval()
    try:
        return _evaluate(model, data, objective, batch_size)
    except torch.OutOfMemoryError:
        if batch_size == 1:
            raise
    finally:
        model.train(was_training)
    return evaluate(model, data, objective, batch_size=batch_size // 2)


@torch.no_grad()
def _evaluate(model: nn.Module, data: TensorData, objective: Objective, batch_size: int) -> Evaluation:
    total_loss = torch.zeros((), device=data.inputs.device)
    sums: dict[str, torch.Tensor] = {}
    for inputs, targets in zip(data.inputs.split(batch_size), data.targets.split(batch_size), strict=True):
        # Whole batches on all threads, each of which computes samples of its own; few samples are shared out in
        # another way, and the loss adds up over all of them.
        with nullcontext() if len(targets) == batch_size else one_torch_thread():
            outputs = model(inputs)
        with one_torch_thread():
            total_loss += objective.loss(outputs, targets) * len(targets)
            for name, metric in objective.metrics.items():
                more = metric.sums(outputs, targets)
                sums[name] = sums[name] + more if name in sums else more
    samples = len(data.targets)
    metrics = {name: metric.value(sums[name], samples) for name, metric in objective.metrics.items()}
    return Evaluation(total_loss.item() / samples, metrics)
