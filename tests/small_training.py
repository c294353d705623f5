"""`histfl.train` in no time: forty samples, four clients, a small model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import histfl

NETWORK = histfl.Network.uniform(cells=2, clients_per_cell=2)
INPUTS, TARGETS = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def train(model: Any = None, data: Any = (INPUTS, TARGETS), test: Any = None, **settings: Any) -> histfl.Run:
    settings = {
        "network": NETWORK,
        "rounds": 1,
        "edge_rounds": 1,
        "local_steps": 2,
        "batch_size": 5,
        "split": "iid",
    } | settings
    return histfl.train(model or mlp(), data, test or data, device="cpu", **settings)
