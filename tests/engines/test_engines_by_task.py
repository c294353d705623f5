"""Every engine and stepper gives the reference engine's results for every kind of task, in float64."""

import pickle
from collections.abc import Callable
from itertools import chain

import pytest
import torch
from engine_cases import jobs_of, recorded
from tasks_for_tests import cases, halves, model_of
from torch import nn

from histfl.data.inputs import called, chosen
from histfl.engines import ReferenceEngine, VectorisedEngine
from histfl.engines.blocks import Stepper, Trainer, bundled
from histfl.engines.kernels.losses import stacked_loss
from histfl.engines.steps.choose import choose_trainer
from histfl.engines.steps.one_by_one import OneByOneSteps, StreamedSteps
from histfl.engines.steps.stacked import StackedSteps, VmappedSteps
from histfl.engines.vectorised import _results, _run_in_turn
from histfl.network import Network
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.settings import checked
from histfl.training import CellResult, Task

CASES = cases()
STEPPERS: dict[str, type[Stepper]] = {
    "regression": StackedSteps,
    "huber of three": StackedSteps,
    "multilabel": StackedSteps,
    "segmentation": StackedSteps,
    "language": OneByOneSteps,
    "a dictionary": OneByOneSteps,
    "a tuple": OneByOneSteps,
}


def experiment(name: str) -> Experiment:
    tables = {
        "objective": CASES[name].objective,
        "data": {"split": "iid"},
        "uplink": {"name": "ideal"},
        "training": {"local_steps": 3, "edge_rounds": 2, "batch_size": 5, "learning_rate": 0.1, "rounds": 2},
        "network": {"dropout": 0.2},
    }
    people = Network.uniform(cells=3, clients=7)
    ingredients = Ingredients(model_of(CASES[name]), *halves(CASES[name]), people)
    return build(checked(Config, tables, "test"), ingredients, device="cpu", engine="reference")


def assert_same(right: list[CellResult], found: list[CellResult]) -> None:
    for one, other in zip(right, found, strict=True):
        assert one.client_steps == other.client_steps > 0
        assert other.loss == pytest.approx(one.loss, rel=1e-6)  # summed in float32
        for name, value in one.state.items():
            torch.testing.assert_close(other.state[name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("name", CASES)
def test_the_engines_agree(name: str) -> None:
    made = experiment(name)
    jobs = jobs_of(made)
    trainer = choose_trainer(made.hist.task)
    assert type(trainer.stepper) is STEPPERS[name]  # type: ignore[union-attr]
    assert_same(list(ReferenceEngine().run(jobs)), list(VectorisedEngine().run(jobs)))


@pytest.mark.parametrize(
    "make", [recorded(VmappedSteps), recorded(StreamedSteps)], ids=["vmapped", "streamed"]
)
@pytest.mark.parametrize("name", ["regression", "segmentation", "language", "a dictionary", "a tuple"])
def test_the_steppers_of_a_gpu_agree(name: str, make: Callable[[Task], Trainer]) -> None:
    made = experiment(name)
    jobs = jobs_of(made)
    trainer = make(made.hist.task)
    bundles = list(bundled(jobs, trainer))
    ends = _run_in_turn([[jobs[place] for place in places] for places in bundles], trainer)
    results = _results(list(chain(*ends)), made.hist.task.local.local_steps)
    found = dict(zip(chain(*bundles), results, strict=True))
    assert_same(list(ReferenceEngine().run(jobs)), [found[place] for place in range(len(jobs))])


@pytest.mark.parametrize("name", ["regression", "multilabel", "segmentation", "language"])
def test_stacked_losses_and_gradients_are_each_clients(name: str) -> None:
    made = experiment(name)
    data, loss = made.hist.task.data, made.hist.task.loss
    with torch.no_grad():
        outputs = made.model(data.inputs[:10]).unflatten(0, (2, 5))
    targets = data.targets[:10].unflatten(0, (2, 5))
    losses, gradient = stacked_loss(loss)(outputs, targets)
    for client in range(2):
        leaf = outputs[client].clone().requires_grad_()
        value = loss(leaf, targets[client])
        torch.testing.assert_close(losses[client], value.detach())
        torch.testing.assert_close(gradient[client], torch.autograd.grad(value, leaf)[0])


@pytest.mark.parametrize("name", CASES)
def test_an_objective_goes_to_another_process(name: str) -> None:
    task = experiment(name).hist.task
    again = pickle.loads(pickle.dumps(task.objective))
    outputs = called(task.model, chosen(task.data.inputs, slice(4)))
    assert torch.equal(again.loss(outputs, task.data.targets[:4]), task.loss(outputs, task.data.targets[:4]))


def test_where_no_place_counts_the_loss_is_zero_and_so_is_its_gradient() -> None:
    loss = experiment("language").hist.task.loss
    outputs = torch.randn(2, 4, 7, dtype=torch.float64, requires_grad=True)
    value = loss(outputs, torch.full((2, 4), 5))
    assert value.item() == 0
    assert not torch.autograd.grad(value, outputs)[0].any()


def test_batchnorm_of_several_inputs_has_the_statistics_of_the_clients_data() -> None:
    class Normal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner, self.leave = nn.BatchNorm1d(5), nn.Linear(5, 10), nn.Linear(10, 1)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.leave(torch.relu(self.inner(self.norm(left)))) + right[:, :1]

    train, test = halves(CASES["a tuple"])
    tables = {
        "objective": {"name": "regression"},
        "data": {"split": "iid"},
        "training": {"local_steps": 1, "edge_rounds": 1, "batch_size": 4, "rounds": 1},
    }
    ingredients = Ingredients(Normal().double(), train, test, Network.uniform(cells=2, clients=4))
    run = execute(build(checked(Config, tables, "test"), ingredients, device="cpu"))
    left = train.inputs[0]
    torch.testing.assert_close(run.model.norm.running_mean, left.mean(dim=0))  # type: ignore[union-attr]
