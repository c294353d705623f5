"""MTGC against a loop over clients, written plainly on the whole model with masks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from commands import SMALL, Answer
from engine_cases import jobs_of, make_experiment, recorded
from small_training import train
from torch.func import functional_call

from histfl.arrays import Ints
from histfl.engines import ReferenceEngine, VectorisedEngine
from histfl.engines.blocks import Stepper, bundled
from histfl.engines.steps.one_by_one import StreamedSteps
from histfl.engines.steps.stacked import StackedSteps, VmappedSteps
from histfl.engines.vectorised import _results, _run_in_turn
from histfl.errors import UsageError
from histfl.partition import State
from histfl.partition.submodel import masks
from histfl.runs.build import Experiment
from histfl.training import Engine, RoundOutcome, Task, hist
from histfl.training.batches import BatchKeys, batch_numbers, load_batch
from histfl.training.corrections import Mtgc
from histfl.training.local import LocalTraining
from histfl.training.memory import CellMemory, Memory
from histfl.training.optimisers import SGD, Adam

ROUNDS = 3


def outcomes(experiment: Experiment, engine: Engine) -> list[RoundOutcome]:
    start = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    return list(hist(experiment.hist, start, engine, first_round=0, rounds=ROUNDS))


def zeros(like: State) -> State:
    return {name: torch.zeros_like(value) for name, value in like.items()}


def gradients(experiment: Experiment, x: State, inputs: torch.Tensor, targets: torch.Tensor) -> State:
    leaves = {name: value.clone().requires_grad_() for name, value in x.items()}
    loss = experiment.hist.task.loss(functional_call(experiment.model, leaves, (inputs,)), targets)
    found = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def plainly(
    experiment: Experiment, found: list[RoundOutcome], rates: list[float]
) -> tuple[State, dict[int, State]]:
    """The final model and the cells' y, with who takes part and which units are dealt as in the rounds `found`."""
    task, steps, edge_rounds = experiment.hist.task, experiment.hist.task.local.local_steps, 2
    x = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    y: dict[int, State] = {}
    for outcome, rate in zip(found, rates, strict=True):
        ends: list[tuple[int, State, State]] = []
        for submodel, schedule in zip(outcome.submodels, outcome.schedules, strict=True):
            held = {name: mask.double() for name, mask in masks(submodel).items()}
            cell = experiment.hist.network.cell(schedule.cell)
            of_cell = {name: value * held[name] for name, value in x.items()}
            own_y = y.get(schedule.cell, zeros(x))
            z: dict[int, State] = {}
            for edge_round, positions in enumerate(schedule.arrived):
                ended: dict[int, State] = {}
                for client in (cell.first_client + int(position) for position in positions):
                    own, own_z = dict(of_cell), z.setdefault(client, zeros(x))
                    streams = BatchKeys.of_round(task, outcome.round)
                    first = edge_round * steps
                    (numbers,) = batch_numbers(
                        task, np.array([client]), streams, first_step=first, steps=steps
                    )
                    for step in numbers:
                        g = gradients(experiment, own, *load_batch(task, step))
                        for name in own:
                            own[name] = own[name] - rate * held[name] * (g[name] + own_z[name] + own_y[name])
                    ended[client] = own
                if not ended:
                    continue
                of_cell = {name: sum(end[name] for end in ended.values()) / len(ended) for name in x}
                for client, end in ended.items():
                    for name in x:
                        z[client][name] = z[client][name] + (end[name] - of_cell[name]) / (steps * rate)
            ends.append((schedule.cell, held, of_cell))
        merged = {}
        for name, old in x.items():
            count = sum(held[name] for _, held, _ in ends)
            total = sum(held[name] * end[name] for _, held, end in ends)
            merged[name] = torch.where(count > 0, total / count.clamp(min=1), old)
        for number, held, end in ends:
            before, by = y.get(number, zeros(x)), steps * edge_rounds * rate
            y[number] = {name: before[name] + held[name] * (end[name] - merged[name]) / by for name in x}
        x = merged
    return x, y


CASES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "hfedavg": ({"method": {"name": "hfedavg"}}, [0.1] * ROUNDS),
    "hist, some clients": ({"network": {"participants": 2}}, [0.1] * ROUNDS),
    "overlap, some cells, a schedule": (
        {
            "method": {"name": "overlap", "shared": 0.5},
            "network": {"active_cells": 2, "participants": 2},
            "training": {"schedule": "step", "schedule_every": 1, "schedule_factor": 0.5, "warmup_rounds": 1},
        },
        [0.05, 0.1, 0.05],
    ),
}


def experiment_of(case: str, model: str = "mlp") -> Experiment:
    sections = {key: dict(table) for key, table in CASES[case][0].items()}
    sections["training"] = {"correction": "mtgc", **sections.get("training", {})}
    return make_experiment(model, **sections)


@pytest.mark.parametrize("engine", [ReferenceEngine(), VectorisedEngine()], ids=lambda engine: engine.name)
@pytest.mark.parametrize("case", CASES)
def test_a_plain_loop_gives_the_same(case: str, engine: Engine) -> None:
    experiment = experiment_of(case)
    found = outcomes(experiment, engine)
    x, y = plainly(experiment, found, CASES[case][1])
    for name, value in x.items():
        torch.testing.assert_close(found[-1].state[name], value, rtol=1e-9, atol=1e-9, msg=name)
    carried = found[-1].carried
    assert carried.cells.keys() == y.keys()
    assert not carried.clients, "clients begin anew in every round"
    for cell, own in y.items():
        for name, value in own.items():
            torch.testing.assert_close(
                carried.cells[cell][f"mtgc/{name}"], value, rtol=1e-8, atol=1e-9, msg=name
            )
    assert max(float(value.abs().max()) for own in y.values() for value in own.values()) > 1e-3


@pytest.mark.parametrize(
    "model", ["dense residual", "lenet5", "convolutional residual", "dropout", "dropout of channels"]
)
def test_engines_agree(model: str) -> None:
    """Stacked with autograd and without, and one client after another."""
    experiment = make_experiment(
        model, training={"correction": "mtgc", "proximal": 0.3, "clip_norm": 2.0}, network={"participants": 2}
    )
    engines = outcomes(experiment, ReferenceEngine()), outcomes(experiment, VectorisedEngine())
    for right, found in zip(*engines, strict=True):
        for name, value in right.state.items():
            torch.testing.assert_close(found.state[name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"weights": "samples"}, "codec": {"name": "quantise"}, "method": {"name": "rolling"}},
        {"cloud": {"name": "fedadam"}, "method": {"name": "nested", "scale": 1.0}},
        {"uplink": {"name": "aircomp"}, "network": {"dropout": 0.5}},
        {"network": {"dropout": 1.0}},
    ],
    ids=lambda sections: " ".join(sections),
)
def test_engines_agree_beside_other_choices(sections: dict[str, dict[str, Any]]) -> None:
    training = {"correction": "mtgc", **sections.get("training", {})}
    experiment = make_experiment("mlp", **sections | {"training": training})
    engines = outcomes(experiment, ReferenceEngine()), outcomes(experiment, VectorisedEngine())
    for right, found in zip(*engines, strict=True):
        for name, value in right.state.items():
            torch.testing.assert_close(found.state[name], value, rtol=1e-9, atol=1e-9, msg=name)
        assert right.carried.tensors().keys() == found.carried.tensors().keys()


@pytest.mark.parametrize("make", [StackedSteps, VmappedSteps, StreamedSteps])
def test_recorded_steps_agree(make: Callable[[Task], Stepper]) -> None:
    """As on a GPU, where a recording has room for more clients than are in step."""
    experiment = make_experiment("mlp", training={"correction": "mtgc", "proximal": 0.3})
    jobs, task = jobs_of(experiment), experiment.hist.task
    trainer = recorded(make)(task)
    bundles = list(bundled(jobs, trainer))
    ends = _run_in_turn([[jobs[place] for place in places] for places in bundles], trainer)
    found = _results(list(chain(*ends)), task.local.local_steps)
    for place, result in zip(chain(*bundles), found, strict=True):
        (right,) = ReferenceEngine().run([jobs[place]])
        for name, value in right.state.items():
            torch.testing.assert_close(result.state[name], value, rtol=1e-9, atol=1e-9, msg=name)


def test_a_resumed_run_goes_on_bit_by_bit(histfl_command: Callable[..., Answer], tmp_path: Path) -> None:
    """With corrections and a schedule whose length the run had at its beginning."""
    some = ("--set", "training.correction=mtgc", "--set", "network.participants=2")
    some += (
        "--set",
        "training.schedule=cosine",
        "--set",
        "training.warmup_rounds=1",
        "--set",
        "method.name=overlap",
    )

    def model(name: str, *options: str) -> State:
        answer = histfl_command("run", *SMALL, *some, *options, "--json", "--out", tmp_path / name)
        assert answer.code == 0, answer.err
        return safetensors.torch.load_file(tmp_path / name / "model.safetensors")

    whole = model("whole")
    model("pieces", "--set", "training.rounds=2", "--set", "training.schedule_rounds=3")
    pieces = model("pieces", "--resume")
    assert all(torch.equal(tensor, pieces[name]) for name, tensor in whole.items())
    plain = model("plain", "--set", "training.correction=none")
    assert not any(torch.equal(tensor, plain[name]) for name, tensor in whole.items())
    longer = histfl_command(
        "run", *SMALL, *some, "--set", "training.rounds=4", "--resume", "--out", tmp_path / "pieces"
    )
    assert longer.code == 2  # another cosine
    assert "schedule_rounds" in longer.err


def test_corrections_of_a_round_add_up_to_nothing() -> None:
    start = {"w": torch.zeros(2)}
    correction, everyone = Mtgc(start, CellMemory(Memory()), path=0.5), np.array([3, 4])
    finals = {"w": torch.tensor([[1.0, 0.0], [3.0, 2.0]])}
    correction.trained(everyone, start, finals)
    correction.averaged(everyone, start, {"w": torch.tensor([2.0, 1.0])})
    assert correction.of_clients(everyone)["w"].tolist() == [[-2.0, -2.0], [2.0, 2.0]]
    assert correction.of_clients(np.array([5]))["w"].tolist() == [[0.0, 0.0]]


class Weaker(Mtgc):
    """Half of what MTGC adds."""

    def of_clients(self, clients: Ints) -> State:
        return {name: tensor / 2 for name, tensor in super().of_clients(clients).items()}


def test_python_takes_a_name_or_a_class() -> None:
    named = train(rounds=2, edge_rounds=2, correction="mtgc")
    assert train(rounds=2, edge_rounds=2, correction=Mtgc).records == named.records
    own = train(rounds=2, edge_rounds=2, correction=Weaker)
    assert own.config.training.correction == "given"
    plain = train(rounds=2, edge_rounds=2)
    losses = [run.records[-1]["loss"] for run in (plain, named, own)]
    assert len(set(losses)) == 3
    for given, said in (
        (3, "give a name, or a class"),
        (dict, "has no method of_clients"),
        ("given", "Python"),
    ):
        with pytest.raises(UsageError, match=said):
            train(correction=given)


@pytest.mark.parametrize("optimiser", [Adam(), SGD(momentum=0.5)])
def test_moves_that_are_no_multiples_of_gradients_are_refused(optimiser: SGD | Adam) -> None:
    with pytest.raises(UsageError, match="correction = 'mtgc' takes a client's move for a multiple"):
        LocalTraining(optimiser=optimiser, correction=Mtgc)
    with pytest.raises(UsageError, match="use optimiser = 'sgd' and momentum = 0"):
        train(correction="mtgc", optimiser=optimiser)
    with pytest.raises(UsageError, match="'mtcg'"):
        train(correction="mtcg")
