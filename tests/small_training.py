"""Training in no time: forty samples, four clients, a small model; by `histfl.train`, or as an experiment in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import histfl
from histfl.data import TensorData
from histfl.partition import State
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.runs.store import RunFolder
from histfl.settings import checked
from histfl.training import Engine, RoundOutcome, hist

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


def experiment(
    people: histfl.Network | None = None,
    holdings: list[list[int]] | None = None,
    given: dict[str, Any] | None = None,
    **sections: dict[str, Any],
) -> Experiment:
    """In float64, on seven clients in three cells, of whom each holds its `holdings`; `given` are objects of one's own
    in place of names."""
    people = people or histfl.Network.uniform(cells=3, clients=7)
    tables: dict[str, Any] = {
        "uplink": {"name": "ideal"},
        "data": {"split": "iid" if holdings is None else "given"},
    } | sections
    training = {"local_steps": 2, "edge_rounds": 2, "batch_size": 3, "learning_rate": 0.1, "rounds": 2}
    tables["training"] = training | sections.get("training", {})
    data = TensorData(INPUTS.double(), TARGETS, ("a", "b", "c"))
    ingredients = Ingredients(
        **{"model": mlp().double(), "train": data, "test": data, "network": people, "holdings": holdings}
        | (given or {})
    )
    return build(checked(Config, tables, "test"), ingredients, device="cpu")


def outcomes(run: Experiment, engine: Engine, rounds: int = 2) -> list[RoundOutcome]:
    state: State = {name: tensor.detach().clone() for name, tensor in run.model.named_parameters()}
    return list(hist(run.hist, state, engine, first_round=0, rounds=rounds))


def resumed(path: Path, **sections: Any) -> tuple[list[Any], list[Any]]:
    """The records and parameters of a whole run of three rounds, and of one that is interrupted after the first; each
    piece is a run of its own."""
    found = []
    for name, pieces in (("whole", (3,)), ("pieces", (1, 3))):
        for rounds in pieces:
            tables = sections | {"training": sections.get("training", {}) | {"rounds": rounds}}
            run = execute(experiment(**tables), RunFolder(path / name), resume=rounds > 1 < len(pieces))
        found.append([run.records, [tensor.tolist() for tensor in run.model.parameters()]])
    return found[0], found[1]
