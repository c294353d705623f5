"""Tasks on which engines are compared: small models of every kind, and every setting of a round."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from histfl.data import TensorData
from histfl.engines.blocks import Stepper, Trainer
from histfl.engines.steps.drivers import DirectTrainer, RecordedTrainer
from histfl.models import build_model
from histfl.network import Network
from histfl.partition import draw, even_counts, extract
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.settings import checked
from histfl.training import CellJob, Task


class DenseResidual(nn.Module):
    """A user's own: normalisations, a residual sum, functions and operators in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 10)
        self.norm = nn.BatchNorm1d(10)
        self.inner = nn.Linear(10, 37)
        self.back = nn.Linear(37, 10, bias=False)
        self.layer = nn.LayerNorm(10)
        self.leave = nn.Linear(10, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        stream = torch.relu(self.norm(self.enter(torch.flatten(inputs, 1))))
        stream = stream + 0.5 * self.back(nn.functional.gelu(self.inner(stream)))
        return self.leave(self.layer(stream).tanh())


class ConvResidual(nn.Module):
    """A user's own with convolutions, pooling that overlaps, and a view of the flattened images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.inner = nn.Conv2d(6, 8, 3, padding=1)
        self.back = nn.Conv2d(8, 6, 1)
        self.leave = nn.Linear(6 * 3 * 3, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        stream = self.pool(torch.relu(self.norm(self.stem(images))))
        stream = stream + self.back(torch.relu(self.inner(stream)))
        return self.leave(stream.view(len(stream), -1))


class ImageResidual(nn.Module):
    """A user's own with few channels: convolutions in groups and with a stride, a residual sum, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.inner, self.back = nn.Conv2d(6, 7, 3, padding=1), nn.Conv2d(7, 6, 1, bias=False)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.reduce = nn.Conv2d(6, 5, 2, stride=2, padding=1)
        self.leave = nn.Linear(5 * 2 * 2, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        stream = torch.relu(self.stem(images))
        stream = self.pool(stream + self.back(torch.relu(self.inner(stream))))
        return self.leave(torch.flatten(torch.tanh(self.reduce(stream)), 1))


class Tied(nn.Module):
    """One linear layer used twice, so its gradient is a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 10)
        self.again = nn.Linear(10, 10)
        self.inner = nn.Linear(10, 40)
        self.leave = nn.Linear(40, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.enter(inputs.flatten(1)))
        twice = torch.relu(self.again(torch.relu(self.again(hidden))))
        return self.leave(torch.relu(self.inner(twice)))


class TiedWeights(nn.Module):
    """Two linear layers with one weight and a bias each."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 10)
        self.first, self.second = nn.Linear(10, 10), nn.Linear(10, 10)
        self.second.weight = self.first.weight
        self.inner = nn.Linear(10, 40)
        self.leave = nn.Linear(40, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.second(torch.relu(self.first(self.enter(inputs.flatten(1))))))
        return self.leave(torch.relu(self.inner(hidden)))


class InPlace(nn.Module):
    """Activations and sums that overwrite their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.back = nn.Linear(12, 10), nn.Linear(10, 35), nn.Linear(35, 10)
        self.leave = nn.Linear(10, 3)
        self.activation = nn.LeakyReLU(0.1, inplace=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.activation(self.enter(inputs.flatten(1)))
        stream = self.back(nn.functional.relu(self.inner(hidden), inplace=True))
        stream += hidden
        return self.leave(nn.functional.relu(stream, True))


def with_dropout() -> nn.Module:
    layers = nn.Linear(12, 9), nn.Dropout(0.3), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Dropout(0.6)
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(7, 3))


class DropoutOfChannels(nn.Module):
    """A user's own with dropout in a module of its own, of whole channels, and around a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Dropout2d(0.4), nn.ReLU()
        )
        self.inner, self.drop = nn.Conv2d(6, 8, 3, padding=1), nn.Dropout(0.2)
        self.back = nn.Conv2d(8, 6, 1)
        self.leave = nn.Linear(6 * 6 * 6, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        stream = self.stem(images)
        return self.leave(torch.flatten(stream + self.back(self.drop(torch.relu(self.inner(stream)))), 1))


class DropoutTwice(nn.Module):
    """A user's own that calls one dropout layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.leave = nn.Linear(12, 9), nn.Linear(9, 9), nn.Linear(9, 3)
        self.drop = nn.Dropout(0.3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.enter(inputs.flatten(1))))
        return self.leave(self.drop(torch.relu(self.inner(hidden))))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: build_model("mlp", {"hidden": [75, 9]}, (12,), 3, seed=1), (12,)),
    "mlp of images": (lambda: build_model("mlp", {"hidden": 30}, (1, 6, 6), 3, seed=1), (1, 6, 6)),
    "lenet5": (lambda: build_model("lenet5", {}, (1, 28, 28), 3, seed=1), (1, 28, 28)),
    "resnet18": (lambda: build_model("resnet18", {"width": 4}, (3, 8, 8), 3, seed=1), (3, 8, 8)),
    "resnet18 in groups": (
        lambda: build_model("resnet18", {"width": 8, "norm": "group"}, (3, 16, 16), 3, seed=1),
        (3, 16, 16),
    ),
    "dense residual": (DenseResidual, (3, 4)),
    "convolutional residual": (ConvResidual, (1, 6, 6)),
    "image residual": (ImageResidual, (1, 6, 6)),
    "tied": (Tied, (12,)),
    "tied weights": (TiedWeights, (12,)),
    "in place": (InPlace, (12,)),
    "dropout": (with_dropout, (12,)),
    "dropout of channels": (DropoutOfChannels, (1, 6, 6)),
    "dropout twice": (DropoutTwice, (12,)),
}


def make_data(shape: tuple[int, ...], samples: int, dtype: torch.dtype) -> TensorData:
    generator = torch.Generator().manual_seed(samples)
    inputs = torch.randn(samples, *shape, dtype=torch.float64, generator=generator).to(dtype)
    return TensorData(inputs, torch.arange(samples) % 3, ("a", "b", "c"))


def make_experiment(
    model: str,
    *,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    people: Network | None = None,
    engine: str = "reference",
    frozen: tuple[str, ...] = (),
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.cross_entropy,
    **sections: dict[str, Any],
) -> Experiment:
    """Seven clients in three cells, with 13 or 14 samples each, so that batches run over epochs."""
    make, shape = MODELS[model]
    training = {"local_steps": 3, "edge_rounds": 2, "batch_size": 8, "learning_rate": 0.1, "rounds": 2}
    tables: dict[str, Any] = {"uplink": {"name": "ideal"}, "data": {"split": "iid"}} | sections
    tables["training"] = training | sections.get("training", {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = make().to(dtype)
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)
    ingredients = Ingredients(
        module,
        make_data(shape, 95, dtype),
        make_data(shape, 9, dtype),
        people or Network.uniform(cells=3, clients=7),
    )
    return build(checked(Config, tables, "test"), ingredients, device=device, engine=engine, loss=loss)


def jobs_of(experiment: Experiment, edge_rounds: int = 2) -> list[CellJob]:
    run, network = experiment.hist, experiment.hist.network
    state = {name: value.detach() for name, value in experiment.model.named_parameters()}
    submodels = draw(run.plan, even_counts(run.plan, network.num_cells), np.random.default_rng(1))
    cells = [network.cell(index) for index in range(network.num_cells)]
    return [
        CellJob(
            run.task,
            cell,
            0,
            extract(state, submodel),
            {},
            run.participation.schedule(cell, edge_rounds, 0, run.task.seeds),
            None,
        )
        for cell, submodel in zip(cells, submodels, strict=True)
    ]


def recorded(make: Callable[[Task], Stepper]) -> Callable[[Task], Trainer]:
    """All clients of a block, as on a GPU; on a CPU a recording is the steps themselves."""
    return lambda task: RecordedTrainer(task, [make(task)])


def direct(make: Callable[[Task], Stepper]) -> Callable[[Task], Trainer]:
    return lambda task: DirectTrainer(task, make(task))
