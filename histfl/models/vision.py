"""Networks for images: fully connected, LeNet-5 and the CIFAR ResNet-18 (HIST Sec. VI-B)."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from math import gcd
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import nn

from histfl.errors import UsageError


def mlp(
    input_shape: Sequence[int], num_classes: int, hidden: int | Sequence[int] = 300, dropout: float = 0.0
) -> nn.Module:
    """Flatten, hidden layers with ReLU, output layer: 784-300-10 has 238,510 parameters (HIST Sec. VI-B).

    `dropout` is the chance that a hidden neuron is left out of a step.
    """
    widths = [math.prod(input_shape), *([hidden] if isinstance(hidden, int) else hidden)]
    if min(widths) < 1:
        raise UsageError(f"hidden = {hidden}; every layer needs at least one neuron")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), start=1):
        layers[f"fc{number}"] = nn.Linear(inputs, outputs)
        layers[f"relu{number}"] = nn.ReLU()
        if dropout:
            layers[f"dropout{number}"] = nn.Dropout(dropout)
    layers["output"] = nn.Linear(widths[-1], num_classes)
    return nn.Sequential(layers)


def lenet5(input_shape: Sequence[int], num_classes: int, dropout: float = 0.0) -> nn.Module:
    """LeNet-5 for 28 x 28 or 32 x 32 images: convolutions of 6 and 16 channels, 120 and 84 neurons.

    With one input channel and ten classes: 2,572 convolution and 59,134 fully connected parameters. `dropout` is the
    chance that one of the neurons is left out of a step.
    """
    channels, height, width = _image(input_shape)
    if height != width or height not in (28, 32):
        raise UsageError(f"lenet5 takes images of 28 x 28 or 32 x 32, not {height} x {width}; resize them")
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 6, 5, padding=2 if height == 28 else 0),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(400, 120),
        relu3=nn.ReLU(),
        dropout1=nn.Dropout(dropout),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        dropout2=nn.Dropout(dropout),
        output=nn.Linear(84, num_classes),
    )
    if not dropout:
        del layers["dropout1"], layers["dropout2"]
    return nn.Sequential(layers)


Norm = Literal["batch", "group"]


def _norm(kind: Norm, channels: int) -> nn.Module:
    """The normalisation of a convolution's channels: by the batch, or in 32 groups or fewer, of two channels at least."""
    return (
        nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(gcd(64, channels) // 2 or 1, channels)
    )


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut; the inner channels are what HIST cuts."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), _norm(norm, outputs)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.norm1(self.conv1(images)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(images))


def resnet18(
    input_shape: Sequence[int], num_classes: int, width: int = 64, norm: Norm = "batch"
) -> nn.Module:
    """ResNet-18 for small images (3 x 3 stem, no stem pooling): 11,173,962 parameters on CIFAR-10.

    With norm "group" it has GroupNorms, whose groups of channels are cut as a whole: they need no statistics of a
    batch, and none to be recomputed for testing.
    """
    channels, _, _ = _image(input_shape)
    if width < 1:
        raise UsageError(f"width = {width}; every layer needs at least one channel")
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, width, 3, padding=1, bias=False), norm1=_norm(norm, width), relu=nn.ReLU()
    )
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            layers[f"stage{stage + 1}_block{block + 1}"] = BasicBlock(inputs, outputs, stride, norm)
            inputs = outputs
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["output"] = nn.Linear(inputs, num_classes)
    return nn.Sequential(layers)


def _image(input_shape: Sequence[int]) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise UsageError(
            f"a convolutional model takes images [channel, height, width], not {tuple(input_shape)}"
        )
    return cast(tuple[int, int, int], tuple(input_shape))
