"""A round's work is set by those that take part in it, not by the network that they are drawn from."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from histfl.data import TensorData
from histfl.network import Network
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.runs.records import round_record
from histfl.settings import checked
from histfl.training import hist
from histfl.training.evaluation import evaluate

SAMPLES_A_CLIENT = 2
TRAINING = {"rounds": 3, "edge_rounds": 2, "local_steps": 2, "batch_size": 2}
NETWORKS = [(100, 1_000), (10_000, 1_000_000), (100, 1_000_000)]  # cells, clients


def experiment(cells: int, clients: int, **sections: Any) -> Experiment:
    """Ten active cells of four participants each."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES_A_CLIENT * clients, 4, generator=generator)
    data = TensorData(inputs, torch.arange(len(inputs)) % 3, ("a", "b", "c"))
    test = TensorData(inputs[:50], data.targets[:50], data.class_names)
    model = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 3))
    tables = {
        "network": {
            "cells": cells,
            "clients": clients,
            "active_cells": 10,
            "participants": 4,
            "dropout": 0.1,
        },
        "data": {"split": "iid"},
        "training": TRAINING,
    } | sections
    ingredients = Ingredients(model, data, test, Network.uniform(cells, clients=clients))
    return build(checked(Config, tables, "test"), ingredients, device="cpu", engine="reference")


@dataclass(frozen=True)
class Work:
    """Of a round: functions called, numbers that torch wrote, and most bytes that numpy and Python held."""

    calls: int
    numbers: int
    peak_bytes: int


class _Written(TorchDispatchMode):
    """Counts the entries of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        parts = result if isinstance(result, tuple | list) else (result,)
        self.numbers += sum(part.numel() for part in parts if isinstance(part, torch.Tensor))
        return result


def calls_in(function: Callable[[], Any]) -> int:
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def numbers_in(function: Callable[[], Any]) -> int:
    with _Written() as written:
        function()
    return written.numbers


def peak_bytes_in(function: Callable[[], Any]) -> int:
    """No garbage is collected meanwhile: when that happens is up to all that the process did before."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()


def work_of_a_round(run: Experiment) -> Work:
    """Of a round and its record, once what is made once is there."""
    state = {name: value.detach().clone() for name, value in run.model.named_parameters()}
    rounds = hist(run.hist, state, run.engine, first_round=0, rounds=6)

    def one_round() -> None:
        round_record(run.hist, next(rounds), evaluate(run.model, run.test, run.hist.task.objective), None)

    one_round()
    # The least of three: what other threads of the process take meanwhile adds to a peak.
    peak = min(peak_bytes_in(one_round) for _ in range(3))
    return Work(calls_in(one_round), numbers_in(one_round), peak)


@pytest.mark.parametrize(
    "sections",
    [
        {
            "uplink": {"name": "fdma"},
            "method": {"sizes": "optimised"},
            "training": TRAINING | {"correction": "mtgc"},
            "codec": {"name": "top-k"},
        },
        {"uplink": {"name": "aircomp"}},
    ],
    ids=["sized, and kept by cells and clients", "aircomp"],
)
def test_a_million_clients_cost_what_a_thousand_do(sections: dict[str, Any]) -> None:
    work_of_a_round(experiment(*NETWORKS[0], **sections))  # imports and caches of the process
    small, *larger = [work_of_a_round(experiment(*network, **sections)) for network in NETWORKS]
    for large in larger:
        assert large.calls == pytest.approx(small.calls, rel=0.2)
        assert large.numbers == pytest.approx(small.numbers, rel=0.2)
        assert large.peak_bytes < 1.2 * small.peak_bytes
