"""Small networks, schedules and runs that the tests of the uplinks share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

from histfl.data import TensorData
from histfl.network import Network
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.seeds import Seeds
from histfl.settings import checked
from histfl.training import CellSchedule, Participation
from histfl.wireless.aircomp import OverTheAir
from histfl.wireless.clock import Computing
from histfl.wireless.uplinks import Ideal, Orthogonal

MLP_PARAMETERS = 238_510
LEARNING_RATE = 0.1
COMPUTING = Computing(local_steps=20, full_parameters=MLP_PARAMETERS)
SEEDS = Seeds(7)
TRAINING = {"local_steps": 3, "edge_rounds": 2, "batch_size": 4, "learning_rate": 0.1, "rounds": 2}


def uplink(name: str, **options: Any) -> Ideal | Orthogonal | OverTheAir:
    """An uplink by its name in the configuration."""
    if name == "ideal":
        return Ideal()
    if name == "aircomp":
        return OverTheAir(**options)
    return Orthogonal(access=name, **options)


def schedules(
    network: Network,
    *,
    edge_rounds: int = 2,
    per_cell: int | None = None,
    dropout: float = 0.0,
    round: int = 0,
) -> list[CellSchedule]:
    participation = Participation(per_cell, dropout)
    cells = [network.cell(index) for index in range(network.num_cells)]
    return [participation.schedule(cell, edge_rounds, round, SEEDS) for cell in cells]


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """One to four cells of one to six clients, each with resources of its own."""
    counts = np.array(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    generator = np.random.default_rng(draw(st.integers(0, 10_000)))
    return Network.from_ranges(
        counts,
        cpu_hz=np.tile((0.5e9, 4e9), (len(counts), 1)),
        snr_db=np.tile((-20.0, 40.0), (len(counts), 1)),
        transmit_power_w=np.tile((0.01, 1.0), (len(counts), 1)),
        generator=generator,
    )


def states(clients: int, entries: int, seed: int = 0) -> tuple[dict[str, torch.Tensor], ...]:
    """An edge's model of `entries` numbers in two tensors, and its clients' models [client, ...]."""
    generator = torch.Generator().manual_seed(seed)
    start = {
        "weight": torch.randn(entries // 4, 3, generator=generator, dtype=torch.float64),
        "bias": torch.randn(entries - entries // 4 * 3, generator=generator, dtype=torch.float64),
    }
    finals = {
        name: tensor + 0.05 * torch.randn(clients, *tensor.shape, generator=generator, dtype=torch.float64)
        for name, tensor in start.items()
    }
    return start, finals


def in_chunks(finals: dict[str, torch.Tensor], size: int) -> Iterator[dict[str, torch.Tensor]]:
    for first in range(0, len(finals["bias"]), size):
        yield {name: tensor[first : first + size] for name, tensor in finals.items()}


def flat(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in state.values()])


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3)).double()


def data(samples: int = 96) -> TensorData:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 5, dtype=torch.float64, generator=generator)
    return TensorData(inputs, torch.arange(samples) % 3, ("a", "b", "c"))


def experiment(network: Network, /, **sections: Any) -> Experiment:
    """A run of a small network on small data, with the configuration's sections."""
    tables = {"training": TRAINING, "data": {"split": "iid"}} | sections
    config = checked(Config, tables, "test")
    ingredients = Ingredients(model(), data(), data(30), network)
    return build(config, ingredients, device="cpu", engine="reference")
