"""Fully connected networks (HIST Sec. VI-B)."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from histfl.errors import UsageError


def mlp(
    input_shape: Sequence[int], num_classes: int, hidden: int | Sequence[int] = 300, dropout: float = 0.0
) -> nn.Module:
    """Flatten, hidden layers with ReLU, output layer: 784-300-10 has 238,510 parameters.

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
