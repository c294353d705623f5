"""The loss and the metrics of a global model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from histfl.data import TensorData
from histfl.devices import one_torch_thread
from histfl.training.objective import Objective


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
