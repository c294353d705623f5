"""What a run accepts although it hardly makes sense is told before it begins."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import SMALL, Answer
from small_training import mlp, train
from torch import nn

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _regularised_sum(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="sum") / 7 + 1.0


def _focal(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    each = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def _contrastive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Among the batch, whose size it depends on by its logarithm."""
    scores = outputs @ outputs.T
    return nn.functional.cross_entropy(scores, torch.arange(len(outputs)))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="sum"), _regularised_sum])
def test_a_loss_that_sums_is_told(loss: Loss, caplog: pytest.LogCaptureFixture) -> None:
    assert len(train(loss=loss).records) == 1
    told = [record.getMessage() for record in caplog.records if "grows with the batch" in record.getMessage()]
    assert len(told) == 1
    assert "up to 5 times (training.batch_size)" in told[0]
    assert "reduction='mean'" in told[0]


@pytest.mark.parametrize(
    "loss",
    [
        nn.functional.cross_entropy,
        nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 20.0])),
        nn.CrossEntropyLoss(label_smoothing=0.2, weight=torch.tensor([5.0, 1.0, 0.2])),
        nn.MultiMarginLoss(),
        _focal,
        _contrastive,
    ],
)
def test_a_loss_that_is_a_mean_in_its_own_way_is_not(loss: Loss, caplog: pytest.LogCaptureFixture) -> None:
    train(loss=loss)
    assert "grows with the batch" not in caplog.text


def test_trying_a_loss_draws_no_random_number() -> None:
    def random(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs + 0 * torch.rand(1), targets)

    torch.manual_seed(3)
    train(loss=random, engine="reference", rounds=1)
    first = torch.rand(1)
    torch.manual_seed(3)
    train(loss=random, engine="reference", rounds=1)
    assert torch.equal(torch.rand(1), first)


def test_the_share_that_a_cell_trains_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="histfl")
    train(nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 3)))
    assert "each cell trains 50.3% of the model's 483 parameters" in caplog.text  # 20 * 12 + 3
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    train(method="hfedavg")
    assert "each cell trains all of the model's 75 parameters" in caplog.text
    caplog.clear()
    train(nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 3)), sizes=[1, 3])
    assert "the cells train 25.5% to 75.2% of the model's 483 parameters" in caplog.text
    caplog.clear()
    train(nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 3)), sizes="optimised")
    assert "the cells train 50.3% of the model's 483 parameters on average" in caplog.text


def test_cells_of_few_units_are_told(caplog: pytest.LogCaptureFixture) -> None:
    train(mlp())
    assert "a cell holds 3 of the 6 units of layer '0': submodels of fewer than 8 units" in caplog.text
    caplog.clear()
    train(mlp(), method="hfedavg")
    assert "units" not in caplog.text


class Recurrent(nn.Module):
    """Almost all of it in a layer that cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.recurrent = nn.LSTM(2, 24, batch_first=True)
        self.hidden, self.output = nn.Linear(24, 16), nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(inputs.reshape(len(inputs), 4, 2))
        outputs: torch.Tensor = self.output(torch.relu(self.hidden(states[:, -1])))
        return outputs


def test_a_model_of_which_hardly_anything_can_be_cut_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="histfl")
    train(Recurrent())
    assert "each cell trains 92.9% of the model's 3,139 parameters" in caplog.text
    assert "hardly anything of the model can be cut: 2,691 of its 3,139 parameters are in every cell" in (
        caplog.text
    )


def test_the_command_line_tells_it_too(histfl_command: Callable[..., Answer], tmp_path: Path) -> None:
    answer = histfl_command("run", *SMALL, "--out", tmp_path / "run", "--json")
    assert answer.code == 0
    assert answer.json["rounds"] == 3
    assert "histfl: each cell trains 25.1% of the model's 12,730 parameters\n" in answer.err
    assert "histfl: a cell holds 4 of the 16 units of layer 'fc1'" in answer.err
    wide = histfl_command("run", *SMALL, "--set", "model.hidden=32", "--out", tmp_path / "wide", "--json")
    assert "units of layer" not in wide.err
