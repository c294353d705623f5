"""What a model comes to on a data set, and on the data of each of those who hold some."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from histfl.arrays import Ints
from histfl.data import TensorData
from histfl.data.inputs import called, chosen
from histfl.devices import one_torch_thread
from histfl.errors import UsageError, in_one_line, shown
from histfl.seeds import lent_to_layers
from histfl.training.answers import in_an_evaluation
from histfl.training.metrics import FunctionMetric, Measure, TestLoss
from histfl.training.objective import LOSS, Objective

BATCH = 1000


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and metrics, by name, over a data set; no metrics where the loss is not finite."""

    loss: float
    metrics: Mapping[str, float]


def evaluate(
    model: nn.Module, data: TensorData, objective: Objective, *, batch_size: int = BATCH
) -> Evaluation:
    """Evaluate in eval mode; the model is left in the mode it was in. Batches that a GPU's memory is too
    small for are halved. A model that draws random numbers here too draws the same ones every time."""
    (found,) = _evaluated(model, data, objective, None, [0, len(data)], batch_size)
    return found


def evaluate_holders(
    model: nn.Module,
    data: TensorData,
    objective: Objective,
    order: Ints,
    offsets: Ints,
    *,
    batch_size: int = BATCH,
) -> list[Evaluation]:
    """What the model comes to on the samples `order[offsets[i]:offsets[i + 1]]` of every holder i."""
    numbers = torch.from_numpy(order).to(data.device)
    return _evaluated(model, data, objective, numbers, offsets.tolist(), batch_size)


def spreads(found: Sequence[Evaluation], objective: Objective) -> dict[str, dict[str, float]]:
    """Of the loss and of every metric over the holders: the mean, the mean of the worst tenth (one at least) and the
    standard deviation. A UsageError where the loss of one is not finite."""
    columns: dict[str, list[float]] = {LOSS: [each.loss for each in found]}
    for holder, each in enumerate(found):
        if not each.metrics and objective.metrics:
            raise UsageError(
                f"the loss on the data of holder {holder} is {each.loss}; leave evaluate.per out, or correct its samples"
            )
        for name, value in each.metrics.items():
            columns.setdefault(name, []).append(value)
    measures = {LOSS: TestLoss(), **objective.metrics}
    return {name: _spread(values, measures[name]) for name, values in columns.items()}


def _spread(values: list[float], measure: Measure) -> dict[str, float]:
    ordered = np.sort(values)
    worst = (ordered if measure.higher_is_better else ordered[::-1])[: math.ceil(len(values) / 10)]
    return {
        "mean": float(ordered.mean()),
        "worst_decile": float(worst.mean()),
        "spread": float(ordered.std()),
    }


def _evaluated(
    model: nn.Module,
    data: TensorData,
    objective: Objective,
    order: torch.Tensor | None,
    offsets: list[int],
    batch_size: int,
) -> list[Evaluation]:
    was_training = model.training
    model.eval()
    try:
        with lent_to_layers(0, data.device):
            return list(_in_turn(model, data, objective, order, offsets, batch_size))
    except torch.OutOfMemoryError:
        if batch_size == 1:
            raise
    finally:
        model.train(was_training)
    return _evaluated(model, data, objective, order, offsets, batch_size // 2)


@torch.no_grad()
def _in_turn(
    model: nn.Module,
    data: TensorData,
    objective: Objective,
    order: torch.Tensor | None,
    offsets: list[int],
    batch_size: int,
) -> Iterator[Evaluation]:
    """Batches run over the ends of holders, of whom many may hold little."""
    holder, tally = 0, _Tally(objective, data.device)
    for first in range(0, offsets[-1], batch_size):
        last = min(first + batch_size, offsets[-1])
        which = slice(first, last) if order is None else order[first:last]
        inputs, targets = chosen(data.inputs, which), data.targets[which]
        # Whole batches on all threads, each of which computes samples of its own; few samples are shared out in
        # another way, and the loss adds up over all of them.
        with nullcontext() if len(targets) == batch_size else one_torch_thread(), in_an_evaluation():
            outputs = called(model, inputs)
        with one_torch_thread():
            place = first
            while place < last:
                end = min(offsets[holder + 1], last)
                whole = (place, end) == (first, last)
                part = slice(place - first, end - first)
                tally.add(outputs if whole else _rows(outputs, part), targets if whole else targets[part])
                if end == offsets[holder + 1]:
                    yield tally.evaluation(f" of holder {holder}" if len(offsets) > 2 else "")
                    holder, tally = holder + 1, _Tally(objective, data.device)
                place = end


def _rows(outputs: Any, rows: slice) -> torch.Tensor:
    if not isinstance(outputs, torch.Tensor):
        raise UsageError(
            f"evaluate.per needs a model that returns one tensor, and this one returns {type(outputs).__name__}; leave it out"
        )
    return outputs[rows]


def _together(*parts: Any) -> Any:
    """What the batches have in one place of their outputs: tensors [sample, ...] as one, anything else as it was."""
    return torch.cat(parts) if isinstance(parts[0], torch.Tensor) else parts[0]


@dataclass
class _Tally:
    """Adds up batches."""

    objective: Objective
    device: torch.device
    samples: int = 0
    counted: int | torch.Tensor = 0
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    kept: list[tuple[Any, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loss = torch.zeros((), device=self.device)
        self.keeps = any(isinstance(metric, FunctionMetric) for metric in self.objective.metrics.values())

    def add(self, outputs: Any, targets: torch.Tensor) -> None:
        counted: Any = self.objective.counted(targets)
        if not (counted.ndim == 0 if isinstance(counted, torch.Tensor) else isinstance(counted, int)):
            raise UsageError(
                f"counted of the objective returns {shown(counted)}; it must return how many targets its loss is the mean over"
            )
        with in_an_evaluation():
            self.loss += self.objective.loss(outputs, targets) * counted
        self.counted = self.counted + counted
        self.samples += len(targets)
        if self.keeps:
            self.kept.append((outputs, targets))
        for name, metric in self.objective.metrics.items():
            if not isinstance(metric, FunctionMetric):
                before = self.sums.get(name, 0)
                self.sums[name] = attempt(name, targets, lambda: metric.sums(outputs, targets) + before)  # noqa: B023 (called at once)

    def evaluation(self, whose: str) -> Evaluation:
        """`whose` data they are, for an error."""
        if not math.isfinite(loss := self.loss.item() / max(int(self.counted), 1)):
            return Evaluation(loss, {})
        found = {}
        for name, metric in self.objective.metrics.items():
            if isinstance(metric, FunctionMetric):
                batches = [outputs for outputs, _ in self.kept]
                targets = torch.cat([each for _, each in self.kept])
                value = attempt(
                    name,
                    targets,
                    lambda: metric.function(pytree.tree_map(_together, *batches), targets),  # noqa: B023
                )
            else:
                value = attempt(name, None, lambda: metric.value(self.sums[name], self.samples))  # noqa: B023
            found[name] = _number(name, value, whose)
        return Evaluation(loss, found)


def attempt(name: str, targets: torch.Tensor | None, compute: Callable[[], Any]) -> Any:
    """What a metric computes; a UsageError that names it where it fails."""
    try:
        return compute()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a user's metric may fail in any way
        on = "" if targets is None else f" on outputs of {len(targets)} samples"
        raise UsageError(
            f"the metric {name!r} fails{on}: {in_one_line(error)}; correct it, or leave it out"
        ) from error


def _number(name: str, value: Any, whose: str) -> float:
    try:
        number = float(value)
    except Exception:  # a user's object may fail in any way
        raise UsageError(f"the metric {name!r} returns {shown(value)}; it must return one number") from None
    if not math.isfinite(number):
        raise UsageError(
            f"the metric {name!r}{whose} is {number}, and records take finite numbers alone; let it return one, or leave "
            "it out"
        )
    if name == "accuracy" and not 0 <= number <= 1:
        raise UsageError(
            f"the metric 'accuracy' is {number:g}; it must lie from 0 to 1, or have another name"
        )
    return number
