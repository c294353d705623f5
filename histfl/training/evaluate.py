"""Accuracy and loss of a global model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from histfl.data import TensorData
from histfl.training.jobs import Loss


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and share of right answers over a data set."""

    loss: float
    accuracy: float


def evaluate(model: nn.Module, data: TensorData, loss: Loss, *, batch_size: int = 1000) -> Evaluation:
    """Evaluate in eval mode; the model is left in the mode it was in. Batches that a GPU's memory is too
    small for are halved."""
    was_training = model.training
    model.eval()
    try:
        return _evaluate(model, data, loss, batch_size)
    except torch.OutOfMemoryError:
        if batch_size == 1:
            raise
    finally:
        model.train(was_training)
    return evaluate(model, data, loss, batch_size=batch_size // 2)


@torch.no_grad()
def _evaluate(model: nn.Module, data: TensorData, loss: Loss, batch_size: int) -> Evaluation:
    total_loss = torch.zeros((), device=data.inputs.device)
    right = torch.zeros((), dtype=torch.int64, device=data.inputs.device)
    for inputs, targets in zip(data.inputs.split(batch_size), data.targets.split(batch_size), strict=True):
        outputs = model(inputs)
        total_loss += loss(outputs, targets) * len(targets)
        right += (outputs.argmax(dim=1) == targets).sum()
    samples = len(data.targets)
    return Evaluation(loss=total_loss.item() / samples, accuracy=right.item() / samples)
