"""The models of every kind, with inputs that they take."""

from __future__ import annotations

import models_for_tests as models
import pytest
import torch
from torch import nn

KINDS = {
    "mlp": lambda: (models.mlp(784, 300, 10), torch.randn(4, 784)),
    "deep mlp": lambda: (models.mlp(12, 30, 40, 50, 5), torch.randn(4, 12)),
    "lenet5": lambda: (models.LeNet5(), models.images(1, 28)),
    "narrow resnet18": lambda: (models.ResNet((8, 16, 24, 32)), models.images(3, 16)),
    "groupnorm resnet": lambda: (
        models.ResNet((8, 16), 1, lambda width: nn.GroupNorm(4, width)),
        models.images(3, 8),
    ),
    "mobilenet": lambda: (models.MobileNet(), models.images(3, 16)),
    "unet": lambda: (models.UNet(), models.images(1, 8)),
    "transformer": lambda: (models.Transformer(), models.tokens()),
    "torch transformer": lambda: (models.Transformer(own=False), models.tokens()),
    "lora": lambda: (models.lora(), torch.randn(4, 12)),
    "grouped convolution": lambda: (models.ResNeXtBlock(), models.images(3, 8)),
    "mixed norms": lambda: (models.MixedNorms(), models.images(3, 8)),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor]:
    """Each model in turn, with a batch of inputs."""
    torch.manual_seed(0)
    return KINDS[request.param]()
