"""What outlives a round: kept for those who took part, for the units that their cell held, and across a resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import safetensors.torch
import torch
from batches_for_tests import client_batches
from commands import SMALL, Answer
from small_training import INPUTS, TARGETS, experiment, outcomes
from torch import nn
from torch.func import functional_call

from histfl.arrays import Ints
from histfl.engines import ReferenceEngine, VectorisedEngine
from histfl.partition import State, draw, extract, plan
from histfl.partition.submodel import masks
from histfl.seeds import Seeds
from histfl.training import Engine
from histfl.training.codecs import CODECS
from histfl.training.memory import Carried, CellMemory, Memory

DOUBLE = torch.float64


@dataclass(frozen=True)
class HalfLate:
    """Half of an update is sent, and what is left goes with the next one."""

    keeps: ClassVar[bool] = True

    def update_bits(self, sizes: Sequence[int], plain: float) -> float:
        return plain * sum(sizes)

    def decoded(
        self, start: State, finals: State, clients: Ints, key: int, kept: State
    ) -> tuple[State, State]:
        due = {name: final - start[name] + kept[name] for name, final in finals.items()}
        return {name: start[name] + x / 2 for name, x in due.items()}, {
            name: x / 2 for name, x in due.items()
        }


def test_newcomers_begin_with_zeros_and_keep_their_own() -> None:
    like = {"w": torch.ones(2)}
    memory = CellMemory(Memory(clients={4: {"late/w": torch.tensor([1.0, 2.0])}}))
    assert memory.of_clients("late", np.array([4, 9]), like)["w"].tolist() == [[1.0, 2.0], [0.0, 0.0]]
    memory.keep_of_clients("late", np.array([9]), {"w": torch.tensor([[5.0, 6.0]])})
    memory.keep_of_cell("edge", {"w": torch.tensor([7.0, 8.0])})
    kept = memory.kept()
    assert sorted(kept.clients) == [4, 9]
    assert kept.clients[9]["late/w"].tolist() == [5.0, 6.0]
    assert CellMemory(kept).of_cell("edge", like)["w"].tolist() == [7.0, 8.0]


def test_a_round_changes_the_held_units_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    cut = plan(model, torch.zeros(2, 3), scheme="alternating")
    first, second = draw(cut, np.array([[5], [3]]), np.random.default_rng(1))
    shapes = {name: torch.Size(shape) for name, shape in first.plan.shapes.items()}
    like = {name: torch.zeros(shape, dtype=DOUBLE) for name, shape in shapes.items()}
    ones = {name: torch.ones(shape, dtype=DOUBLE) for name, shape in shapes.items()}
    kept = Memory({}, {3: {f"late/{name}": x for name, x in extract(ones, first).items()}})
    carried = Carried().after({}, [(0, first, kept)], like)
    for name, held in masks(first).items():
        assert torch.equal(carried.clients[3][f"late/{name}"], held.to(DOUBLE))
    back = carried.memory(0, [3, 5], first)
    assert sorted(back.clients) == [3]
    assert all(torch.equal(back.clients[3][name], kept.clients[3][name]) for name in kept.clients[3])
    other = carried.memory(1, [3], second).clients[3]
    both = extract(masks(first), second)
    assert all(torch.equal(other[f"late/{name}"], x.to(DOUBLE)) for name, x in both.items())
    again = Carried.of(carried.tensors())
    assert again.tensors().keys() == carried.tensors().keys()


def gradients(model: nn.Module, x: State, inputs: torch.Tensor, targets: torch.Tensor) -> State:
    leaves = {name: value.clone().requires_grad_() for name, value in x.items()}
    loss = nn.functional.cross_entropy(functional_call(model, leaves, (inputs,)), targets)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("engine", [ReferenceEngine, VectorisedEngine])
@pytest.mark.parametrize("method", ["hist", "ist", "rolling"])
def test_what_comes_late_is_that_of_a_plain_loop(method: str, engine: type[Engine]) -> None:
    """On the whole model with masks: a client's late half waits for a round in which its cell has the unit again, and
    for an edge round in which it is drawn and heard."""
    people = {"cells": 3, "clients": 7, "participants": 2, "dropout": 0.3}
    run = experiment(given={"codec": HalfLate()}, network=people, method={"name": method})
    found = outcomes(run, engine(), rounds=4)
    task = run.hist.task
    x = {name: value.detach().clone() for name, value in run.model.named_parameters()}
    late: dict[int, State] = {}
    for outcome in found:
        total = {name: torch.zeros_like(value) for name, value in x.items()}
        holders = {name: torch.zeros_like(value) for name, value in x.items()}
        for submodel, schedule in zip(outcome.submodels, outcome.schedules, strict=True):
            held = {name: mask.double() for name, mask in masks(submodel).items()}
            edge = {name: value * held[name] for name, value in x.items()}
            for edge_round, positions in enumerate(schedule.arrived):
                arrived = []
                for client in (
                    int(position) + 3 * (schedule.cell > 0) + 2 * (schedule.cell > 1)
                    for position in positions
                ):
                    own, mine = edge, torch.from_numpy(task.split.client(client))
                    stream = client_batches(
                        Seeds(1).key("batches", outcome.round),
                        client,
                        len(mine),
                        first_step=2 * edge_round,
                        steps=2,
                        batch_size=3,
                    )
                    for batch in mine[stream]:
                        g = gradients(run.model, own, INPUTS.double()[batch], TARGETS[batch])
                        own = {name: value - 0.1 * held[name] * g[name] for name, value in own.items()}
                    before = late.get(client, {name: torch.zeros_like(value) for name, value in x.items()})
                    due = {name: own[name] - edge[name] + held[name] * before[name] for name in x}
                    late[client] = {name: (1 - held[name]) * before[name] + due[name] / 2 for name in x}
                    arrived.append({name: edge[name] + due[name] / 2 for name in x})
                if arrived:
                    edge = {name: sum(each[name] for each in arrived) / len(arrived) for name in x}  # type: ignore[misc]
            for name in x:
                total[name] += held[name] * edge[name]
                holders[name] += held[name]
        x = {
            name: torch.where(holders[name] > 0, total[name] / holders[name].clamp(min=1), x[name])
            for name in x
        }
    for name, value in x.items():
        torch.testing.assert_close(found[-1].state[name], value, rtol=1e-9, atol=1e-11, msg=name)
    assert found[-1].carried.clients.keys() == late.keys()
    for client, own in late.items():
        for name, value in own.items():
            kept = found[-1].carried.clients[client][f"codec/{name}"]
            torch.testing.assert_close(kept, value, rtol=1e-9, atol=1e-11, msg=f"{name} of {client}")


def test_engines_agree_and_a_resumed_run_remembers(
    histfl_command: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CODECS, "half-late", HalfLate)
    some = ("--set", "codec.name=half-late", "--set", "network.participants=2", "--set", "training.rounds=4")

    def model(name: str, *options: str) -> State:
        answer = histfl_command("run", *SMALL, *some, *options, "--json", "--out", tmp_path / name)
        assert answer.code == 0, answer.err
        return safetensors.torch.load_file(tmp_path / name / "model.safetensors")

    whole, reference = model("whole"), model("reference", "--engine", "reference")
    for name, tensor in whole.items():
        assert torch.allclose(tensor, reference[name], atol=1e-4)
    model("pieces", "--set", "training.rounds=2")
    pieces = model("pieces", "--resume")
    assert all(torch.equal(tensor, pieces[name]) for name, tensor in whole.items())
