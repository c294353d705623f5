"""The statistics of a trained model's BatchNorm are those of the images that its clients trained on."""

from __future__ import annotations

import pytest
import torch
from small_training import train
from torch import nn


@pytest.mark.parametrize(("augment", "share_of_ones"), [("none", 1.0), ("crop-flip", (52 / 72) ** 2)])
def test_statistics_are_of_augmented_images_where_training_augments_them(
    augment: str, share_of_ones: float
) -> None:
    """Images of ones, padded with zeros: a crop moved by -4 to 4 of 8 pixels keeps 8 - |move| of them, 52 of 72 on average."""
    ones = torch.ones(2000, 1, 8, 8), torch.arange(2000) % 3
    body = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)]
    run = train(nn.Sequential(nn.BatchNorm2d(1), *body), ones, augment=augment)
    of_inputs = run.model.get_submodule("0")
    assert isinstance(of_inputs, nn.BatchNorm2d)
    assert of_inputs.running_mean is not None
    assert of_inputs.running_mean.item() == pytest.approx(share_of_ones, abs=0.02)
