"""Evaluation of a global model."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from histfl.data import TensorData
from histfl.training.evaluation import evaluate
from histfl.training.objectives import classification

DATA = TensorData(torch.arange(10.0)[:, None], torch.arange(10) % 2, ("even", "odd"))


class SmallMemory(nn.Module):
    """Says that its input is even, of at most `most` samples at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > self.most:
            raise torch.OutOfMemoryError("no memory for so many samples")
        return torch.cat([inputs, inputs - 1.0], dim=1)


@pytest.mark.parametrize("most", [1000, 3, 1])
def test_batches_that_do_not_fit_are_halved(most: int) -> None:
    model = SmallMemory(most)
    found = evaluate(model, DATA, classification())
    assert found.metrics == {"accuracy": 0.5}
    outputs = torch.cat([DATA.inputs, DATA.inputs - 1.0], dim=1)
    assert found.loss == pytest.approx(F.cross_entropy(outputs, DATA.targets).item())
    assert model.training


def test_a_sample_that_does_not_fit_is_an_error() -> None:
    model = SmallMemory(0).eval()
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(model, DATA, classification())
    assert not model.training
