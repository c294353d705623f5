"""The parts of the vectorised engine, each against what torch or the reference engine computes."""

import warnings
from collections.abc import Callable
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from batches_for_tests import client_batches
from engine_cases import MODELS, direct, jobs_of, make_experiment, recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from histfl.engines import ReferenceEngine, VectorisedEngine, choose_engine
from histfl.engines.blocks import (
    Block,
    Part,
    Stepper,
    Trainer,
    bundled,
    cut_into_blocks,
    halves,
    num_clients,
)
from histfl.engines.memory import keep_freed_memory, within
from histfl.engines.steps.choose import choose_trainer
from histfl.engines.steps.drivers import DirectTrainer, rounded_up
from histfl.engines.steps.one_by_one import OneByOneSteps, StreamedSteps
from histfl.engines.steps.stacked import MOST, StackedSteps, VmappedSteps
from histfl.engines.vectorised import _results, _run_in_turn
from histfl.errors import UsageError
from histfl.network import Network
from histfl.partition import State
from histfl.training import CellJob, Task
from histfl.training.batches import batches_of_clients

STEPPERS: dict[str, type[Stepper] | None] = {
    "mlp": StackedSteps,
    "mlp of images": StackedSteps,
    "dense residual": StackedSteps,
    "image residual": StackedSteps,
    "tied": StackedSteps,
    "tied weights": StackedSteps,
    "in place": StackedSteps,
    "lenet5": StackedSteps,
    "resnet18": OneByOneSteps,
    "resnet18 in groups": OneByOneSteps,
    "convolutional residual": OneByOneSteps,
    "dropout": StackedSteps,
    "dropout of channels": OneByOneSteps,
    "dropout twice": None,
}


def stepper_of(task: Task) -> type[Stepper] | None:
    """What steps a task's clients on a CPU."""
    trainer = choose_trainer(task)
    assert trainer is None or isinstance(trainer, DirectTrainer)
    return type(trainer.stepper) if trainer else None


@pytest.mark.parametrize("model", MODELS)
def test_the_stepper_is_chosen_by_what_the_model_can_do(model: str, caplog: pytest.LogCaptureFixture) -> None:
    experiment = make_experiment(model, engine="auto")
    right = STEPPERS[model]
    assert stepper_of(experiment.hist.task) is right
    assert experiment.engine.name == experiment.about["engine"] == ("vectorised" if right else "reference")
    assert ("one after another" in caplog.text) == (right is None)


def test_a_loss_that_torch_cannot_batch_is_computed_client_by_client() -> None:
    task = make_experiment("mlp", loss=F.multi_margin_loss).hist.task
    assert stepper_of(task) is OneByOneSteps


def test_a_model_that_warns_has_the_same_stepper() -> None:
    def warning(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        warnings.warn("the first call of something", stacklevel=1)
        return F.cross_entropy(outputs, targets)

    with warnings.catch_warnings(action="ignore"):
        assert stepper_of(make_experiment("mlp", loss=warning).hist.task) is StackedSteps


def test_a_module_with_a_memory_of_its_own_is_left_to_the_reference_engine() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.layer(inputs)

    task = make_experiment("mlp").hist.task
    counting = Task(
        Counting().double(), task.data, task.split, task.local, task.objective, task.uplink, task.seeds
    )
    assert choose_trainer(counting) is None
    assert counting.model.get_buffer("calls") == 0


def test_unknown_engines_are_refused() -> None:
    task = make_experiment("mlp").hist.task
    with pytest.raises(UsageError, match="engine 'vectorized': did you mean 'vectorised'"):
        choose_engine("vectorized", task)
    with pytest.raises(UsageError, match="use auto, reference, vectorised or ray"):
        choose_engine("warp", task)
    assert isinstance(choose_engine("reference", task), ReferenceEngine)
    assert isinstance(choose_engine("auto", task), VectorisedEngine)


class SmallMemory:
    """A trainer on a device whose memory holds `most` clients."""

    def __init__(self, trainer: Trainer, most: int) -> None:
        self.trainer, self.most, self.refused = trainer, most, 0

    def clients_at_once(self, start: State) -> int | None:
        return None

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        if num_clients(block) > self.most:
            self.refused += 1
            raise torch.OutOfMemoryError("no memory for so many clients")
        return self.trainer.train(block)


@pytest.mark.parametrize("most", [100, 3, 1])
@pytest.mark.parametrize(
    ("model", "make", "training"),
    [
        ("mlp", direct(StackedSteps), {}),
        ("dense residual", direct(StackedSteps), {}),
        ("mlp", recorded(StackedSteps), {"local_steps": 10}),
        ("dense residual", recorded(StackedSteps), {"momentum": 0.3}),
        ("mlp", recorded(VmappedSteps), {"momentum": 0.3, "clip_norm": 0.5}),
        ("lenet5", recorded(VmappedSteps), {"weight_decay": 0.1}),
        ("convolutional residual", recorded(VmappedSteps), {}),
        ("convolutional residual", recorded(StreamedSteps), {"momentum": 0.3, "clip_norm": 0.5}),
        ("resnet18", recorded(StreamedSteps), {}),
        ("dropout", recorded(StackedSteps), {}),
        ("dropout", recorded(StackedSteps), {"momentum": 0.3}),
        ("dropout of channels", recorded(VmappedSteps), {}),
        ("dropout of channels", recorded(StreamedSteps), {}),
    ],
)
def test_cells_in_step_as_on_a_gpu(
    model: str, make: Callable[[Task], Trainer], training: dict[str, object], most: int
) -> None:
    experiment = make_experiment(model, training=training, network={"cells": 3, "clients": 7, "dropout": 0.3})
    jobs = jobs_of(experiment)
    trainer = SmallMemory(make(experiment.hist.task), most)
    bundles = list(bundled(jobs, trainer))
    assert len(bundles) == len({tuple(x.shape for x in job.start.values()) for job in jobs})
    ends = _run_in_turn([[jobs[place] for place in places] for places in bundles], trainer)
    results = _results(list(chain(*ends)), experiment.hist.task.local.local_steps)
    found = dict(zip(chain(*bundles), results, strict=True))
    right = ReferenceEngine().run(jobs)
    together = [
        sum(len(jobs[place].schedule.arrived[edge_round]) for place in places)
        for places in bundles
        for edge_round in range(2)
    ]
    assert (trainer.refused > 0) == (max(together) > most)
    for one, other in ((one, found[place]) for place, one in enumerate(right)):
        assert one.client_steps == other.client_steps
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        for name, value in one.state.items():
            torch.testing.assert_close(other.state[name], value, rtol=1e-9, atol=1e-9, msg=name)


def test_a_round_done_again_with_more_edge_rounds_draws_all_its_batches() -> None:
    experiment = make_experiment("mlp")
    trainer = recorded(StackedSteps)(experiment.hist.task)
    for edge_rounds in (1, 3):
        jobs = jobs_of(experiment, edge_rounds)
        (ends,) = _run_in_turn([jobs[:1]], trainer)
        (found,) = _results(list(ends), experiment.hist.task.local.local_steps)
        (right,) = ReferenceEngine().run(jobs[:1])
        for name, value in right.state.items():
            torch.testing.assert_close(found.state[name], value, rtol=1e-9, atol=1e-9, msg=name)


@given(st.integers(1, 10**6))
def test_recordings_have_little_room_to_spare(clients: int) -> None:
    assert clients <= rounded_up(clients) <= clients * 1.125
    assert len({rounded_up(n) for n in range(clients, 2 * clients)}) <= 20 if clients < 1000 else True


def test_one_client_that_does_not_fit_is_an_error() -> None:
    experiment = make_experiment("mlp")
    with pytest.raises(UsageError, match="a single client"):
        _run_in_turn([jobs_of(experiment)[:1]], SmallMemory(direct(StackedSteps)(experiment.hist.task), 0))


def test_a_small_budget_trains_fewer_clients_at_once() -> None:
    task = make_experiment("mlp").hist.task
    trainer = direct(StackedSteps)(task)
    start = {name: value.detach() for name, value in task.model.named_parameters()}
    chosen = trainer.clients_at_once(start)
    assert within(1e6, trainer, task, 2).clients_at_once(start) == chosen
    assert within(1e-9, trainer, task, 2).clients_at_once(start) == 1
    for engine in ("auto", "reference"):
        with pytest.raises(UsageError, match="memory-gb -1"):
            choose_engine(engine, task, -1)


def test_small_cells_share_a_block() -> None:
    experiment = make_experiment("mlp", people=Network.uniform(cells=25, clients=30))
    jobs = jobs_of(experiment)
    bundles = list(bundled(jobs, direct(StackedSteps)(experiment.hist.task)))
    assert sorted(chain(*bundles)) == list(range(25))
    clients = [sum(jobs[place].cell.num_clients for place in places) for places in bundles]
    assert max(clients) <= MOST
    assert len(bundles) <= 3


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), most=st.integers(1, 25))
def test_blocks_hold_every_client_once_and_in_order(sizes: list[int], most: int) -> None:
    experiment = make_experiment("mlp")
    (job, *_) = jobs_of(experiment)
    ends = np.cumsum([0, *sizes])
    parts = [Part(p, job, job.start, 0, np.arange(a, b)) for p, (a, b) in enumerate(pairwise(ends))]
    for limit in (most, None):
        blocks = list(cut_into_blocks(parts, limit))
        found = [(part.place, client) for block in blocks for part in block for client in part.clients]
        assert found == [(part.place, client) for part in parts for client in part.clients]
        assert all(num_clients(block) <= (limit or sum(sizes)) for block in blocks)
    (whole,) = cut_into_blocks(parts, None)
    if num_clients(whole) > 1:
        first, second = halves(whole)
        assert 0 <= num_clients(first) - num_clients(second) <= 1
        again = [(part.place, client) for half in (first, second) for part in half for client in part.clients]
        assert again == found
        assert all(len(part.clients) for half in (first, second) for part in half)


@settings(deadline=None)
@given(
    samples=st.integers(1, 40), first=st.integers(0, 30), steps=st.integers(1, 8), batch=st.integers(1, 20)
)
def test_batches_of_many_clients_are_those_of_each(samples: int, first: int, steps: int, batch: int) -> None:
    clients = [7, 0, 123456]
    found = batches_of_clients(
        5, torch.tensor(clients), samples, first_step=first, steps=steps, batch_size=batch
    )
    for client, own in zip(clients, found, strict=True):
        right = client_batches(5, client, samples, first_step=first, steps=steps, batch_size=batch)
        assert torch.equal(own, right)


def test_an_interrupt_ends_a_run_and_leaves_torchs_threads() -> None:
    class Interrupting:
        def aggregate(self, *_: object) -> None:
            raise KeyboardInterrupt

    task = make_experiment("mlp").hist.task
    stopped = Task(
        task.model,
        task.data,
        task.split,
        task.local,
        task.objective,
        Interrupting(),  # type: ignore[arg-type]
        task.seeds,
    )
    jobs = [
        CellJob(stopped, j.cell, 0, j.start, {}, j.schedule, None) for j in jobs_of(make_experiment("mlp"))
    ]
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        with pytest.raises(KeyboardInterrupt):
            VectorisedEngine().run(jobs)
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)


def test_memory_is_kept_once_and_for_good() -> None:
    assert keep_freed_memory() is keep_freed_memory()
