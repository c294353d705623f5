"""CONTRIBUTING's table, carried out: a new thing of every kind is one file and one line, and the command line runs it.

Each file stands here as its author would write it; its line is the one that the table names.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Answer

from histfl.wireless.uplinks import UplinkKind

ROOT = Path(__file__).parents[1]

# kind: (the file, what its line registers, how it is chosen)
FILES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "model": (
        """
from torch import nn

def wide(input_shape, num_classes, units: int = 24) -> nn.Module:
    size = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, units), nn.Tanh(), nn.Linear(units, num_classes))
""",
        "wide",
        ("model.name=new", "model.units=16"),
    ),
    "data set": (
        """
from dataclasses import replace
from histfl.data.fashion_mnist import MINI

def upside_down(folder):
    train, test = MINI.load(folder)
    return replace(train, inputs=train.inputs.flip(2)), replace(test, inputs=test.inputs.flip(2))

SOURCE = replace(MINI, name="new", load=upside_down)
""",
        "SOURCE",
        ("data.name=new",),
    ),
    "split": (
        """
import numpy as np
from histfl.data.holdings import Split

def in_order(labels, clients_per_cell, generator, concentrations):
    clients = int(clients_per_cell.sum())
    return Split(np.arange(len(labels)), np.linspace(0, len(labels), clients + 1).astype(int))
""",
        "in_order",
        ("data.split=new",),
    ),
    "method": (
        """
from histfl.training.dealers import Method, RandomDealer

METHOD = Method("alternating", dealer=lambda shared: RandomDealer(0.5), title="Half shared")
""",
        "METHOD",
        ("method.name=new",),
    ),
    "size policy": (
        """
import numpy as np

def first_larger(problem):
    counts = np.tile(problem.layers.units // problem.num_cells, (problem.num_cells, 1))
    counts[0] += problem.layers.units - counts.sum(axis=0) + 1
    counts[1] -= 1
    return counts
""",
        "first_larger",
        ("method.sizes=new",),
    ),
    "uplink": (
        """
from dataclasses import dataclass
import torch
from histfl.training import mean_of_clients
from histfl.wireless.clock import Latency

@dataclass(frozen=True)
class Wired:
    rate: float = 1e6
    bits_per_parameter: float = 32.0

    def draw(self, network, schedules, round, seeds):
        return [None] * len(schedules)

    def latency(self, network, sent, links):
        return Latency(self.rate, self.bits_per_parameter)

    def aggregate(self, start, finals, link, edge_round, learning_rate):
        return mean_of_clients(finals), torch.zeros(())
""",
        "Wired",
        ("uplink.name=new", "uplink.rate=5e5"),
    ),
    "channel": (
        """
import torch

class Calm:
    def draw(self, clients, antennas, generator, dtype=torch.complex128):
        leading = (clients,) if isinstance(clients, int) else tuple(clients)
        return torch.randn((*leading, antennas), generator=generator, device=generator.device, dtype=dtype)
""",
        "Calm",
        ("uplink.channel=new",),
    ),
    "optimiser": (
        """
from dataclasses import dataclass

@dataclass(frozen=True)
class Signs:
    learning_rate: float = 0.001
    shrink: float = 1.0

    def slots(self, start):
        return ()

    def step(self, tensors, gradients, slots):
        for tensor, gradient in zip(tensors, gradients):
            tensor.mul_(self.shrink).sub_(gradient.sign(), alpha=self.learning_rate)

    def fused(self):
        return None
""",
        "Signs",
        ("training.optimiser=new", "optimiser.shrink=0.999"),
    ),
    "schedule": (
        """
from dataclasses import dataclass

@dataclass(frozen=True)
class Harmonic:
    schedule_every: int

    def factor(self, rounds, *, warmup_rounds):
        return self.schedule_every / (self.schedule_every + rounds + 1)
""",
        "Harmonic",
        ("training.schedule=new", "training.schedule_every=3"),
    ),
    "correction": (
        """
class Inwards:
    def __init__(self, start, memory, path):
        self.start, self.path = start, path

    def of_clients(self, clients):
        return {name: tensor.expand(len(clients), *tensor.shape) * 0.1 for name, tensor in self.start.items()}

    def trained(self, clients, start, finals):
        pass

    def averaged(self, clients, start, new):
        pass

    def merged(self, final, merged, edge_rounds):
        pass
""",
        "Inwards",
        ("training.correction=new",),
    ),
    "codec": (
        """
from dataclasses import dataclass

@dataclass(frozen=True)
class Half:
    factor: float = 0.5
    keeps = False

    def update_bits(self, sizes, plain):
        return sum(sizes) * plain / 2

    def decoded(self, start, finals, clients, key, kept):
        return {name: start[name] + self.factor * (final - start[name]) for name, final in finals.items()}, kept
""",
        "Half",
        ("codec.name=new", "codec.factor=0.9"),
    ),
    "cloud step": (
        """
from dataclasses import dataclass

@dataclass(frozen=True)
class Slower:
    share: float = 0.5

    def step(self, old, merged, memory):
        return {name: old[name] + self.share * (merged[name] - old[name]) for name in old}, memory
""",
        "Slower",
        ("cloud.name=new", "cloud.share=0.8"),
    ),
    "objective": (
        """
from torch import nn
from histfl.training.metrics import Accuracy
from histfl.training.objective import Objective, check_scores

def smoothed(smoothing: float = 0.1) -> Objective:
    loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    return Objective(loss, {"accuracy": Accuracy()}, "accuracy", check_scores)
""",
        "smoothed",
        ("objective.name=new", "objective.smoothing=0.2"),
    ),
    "metric": (
        """
from dataclasses import dataclass

@dataclass(frozen=True)
class TopTwo:
    title: str = "top-2 accuracy"
    higher_is_better: bool = True
    is_share: bool = True

    def sums(self, outputs, targets):
        return (outputs.topk(2, dim=1).indices == targets[:, None]).any(dim=1).sum()

    def value(self, sums, samples):
        return sums.item() / samples
""",
        "TopTwo",
        ('objective.metrics=["new"]',),
    ),
    "engine": (
        """
from histfl.engines.reference import ReferenceEngine

class Backwards(ReferenceEngine):
    name = "new"

    def run(self, jobs):
        return super().run(jobs[::-1])[::-1]
""",
        "Backwards",
        ("--engine",),
    ),
}


# What its line says besides the name, where that is not the thing alone.
LINES: dict[str, Callable[[Any], object]] = {
    "uplink": lambda wired: UplinkKind(wired, "a wire a client", network=())
}


def table() -> dict[str, str]:
    """The registry's dotted name of every kind, as CONTRIBUTING has it."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Where a new thing goes")[2]
    rows = re.findall(r"^\| ([a-z ]+) \| .* \| `([A-Z_]+)` in `([\w/]+)\.py` \|$", text, flags=re.MULTILINE)
    return {kind: f"histfl.{module.replace('/', '.')}:{registry}" for kind, registry, module in rows}


def test_the_table_has_every_kind() -> None:
    assert set(table()) == set(FILES)


@pytest.mark.parametrize("kind", FILES)
def test_no_file_needs_the_module_that_imports_it(kind: str) -> None:
    """So it may stand in the package: that module, and the package around it, would still be on their way."""
    home = table()[kind].partition(":")[0]
    imported = {
        node.module for node in ast.walk(ast.parse(FILES[kind][0])) if isinstance(node, ast.ImportFrom)
    }
    assert not {home, home.rpartition(".")[0]} & imported


@pytest.mark.parametrize("kind", FILES)
def test_one_file_and_one_line_run_from_the_command_line(
    kind: str,
    histfl_command: Callable[..., Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, name, chosen = FILES[kind]
    module = f"new_{kind.replace(' ', '_')}"
    (tmp_path / f"{module}.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    home, _, registry = table()[kind].partition(":")
    thing = getattr(importlib.import_module(module), name)
    line = LINES.get(kind, lambda thing: thing)(thing)
    monkeypatch.setitem(getattr(importlib.import_module(home), registry), "new", line)

    options = ["--engine", "new"] if kind == "engine" else [x for each in chosen for x in ("--set", each)]
    small = [*SMALL, "--set", "training.rounds=1"]
    its_own = [word for word in small if kind != "model" or word != "model.hidden=16"]  # which the MLP has
    answer = histfl_command("run", *_pairs(its_own), *options, "--out", tmp_path / "new", "--json")
    assert answer.code == 0, answer.err
    assert "not read" not in answer.err
    plain = histfl_command("run", *small, "--out", tmp_path / "plain", "--json")
    here, there = (_first_record(tmp_path / folder) for folder in ("new", "plain"))
    if kind not in ("engine", "channel"):  # an engine changes nothing, and this channel is the one by default
        assert here != there
    if kind == "engine":
        assert (answer.json["engine"], plain.json["engine"]) == ("new", "vectorised")
    assert histfl_command("report", tmp_path / "new").code == 0
    if kind == "data set":
        assert "new" in histfl_command("data", "list").out
    elif kind != "engine":  # the one choice that is no setting
        settings = runpy.run_path(str(ROOT / "docs" / "write_configuration.py"))["page"]()
        assert re.search(r"`\"?new\"?`", settings), "the page of settings does not name it"


def _pairs(words: list[str]) -> list[str]:
    """Without a `--set` that has lost its setting."""
    return [word for word, after in pairwise([*words, "-"]) if word != "--set" or "=" in after]


def _first_record(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "rounds.jsonl").read_text("utf-8").splitlines()[0])
    return found
