"""The job that all contenders do: one global round of HIST, as histfl builds it and as plain tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from contenders.turns import PeerJob, save_job, train_client
from torch.utils.flop_counter import FlopCounterMode

from histfl import data as datasets
from histfl.data import TensorData
from histfl.errors import DataError
from histfl.models import build_model
from histfl.network import Network
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.settings import checked
from histfl.training import CellJob, CellResult, hist
from histfl.training.batches import batches_of_clients

METHODS = {"full": "hfedavg", "hist": "hist"}
SETS = {"resnet18": ("cifar10",)}  # of the other models: Fashion-MNIST, or the images that come with histfl
FASHION = ("fashion-mnist", "fashion-mnist-mini")
SEED = 1


@dataclass(frozen=True)
class Settings:
    """One job. `case` is `full` (every cell holds the whole model) or `hist` (disjoint submodels)."""

    model: str = "mlp"
    case: str = "full"
    clients: int = 60
    cells: int = 4
    batch_size: int = 50
    local_steps: int = 20
    edge_rounds: int = 5
    device: str = "cpu"
    precision: str = "float32"
    data_dir: str | None = None

    @property
    def client_steps(self) -> int:
        """Of a global round; every client takes part in every edge round."""
        return self.clients * self.local_steps * self.edge_rounds


def load_data(settings: Settings) -> tuple[str, TensorData]:
    """The first data set that this machine has, or noise of CIFAR-10's shape, since speed does not see it."""
    for name in SETS.get(settings.model, FASHION):
        try:
            return name, datasets.load(name, settings.data_dir)[0]
        except DataError:
            continue
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(50_000, 3, 32, 32, generator=generator)
    targets = torch.randint(10, (50_000,), generator=generator)
    return "noise", TensorData(inputs, targets, tuple(map(str, range(10))))


def experiment(settings: Settings, engine: str) -> Experiment:
    """The job for one of our engines. No radio is simulated, since no peer does."""
    name, data = load_data(settings)
    tables = {
        "model": {"name": settings.model},
        "data": {"name": name, "split": "iid"},
        "network": {"cells": settings.cells, "clients": settings.clients},
        "method": {"name": METHODS[settings.case]},
        "uplink": {"name": "ideal"},
        "training": {
            "local_steps": settings.local_steps,
            "edge_rounds": settings.edge_rounds,
            "batch_size": settings.batch_size,
            "precision": settings.precision,
            "seed": SEED,
        },
    }
    model = build_model(settings.model, {}, tuple(data.inputs.shape[1:]), data.num_classes, seed=SEED)
    network = Network.uniform(settings.cells, clients=settings.clients)
    config = checked(Config, tables, "benchmark")
    return build(config, Ingredients(model, data, data, network), device=settings.device, engine=engine)


def write_job(settings: Settings, folder: Path) -> dict[str, int | str]:
    """The job's files for all contenders, and what the tables say of it: parameters and operations a step."""
    built = experiment(settings, "reference")
    task = built.hist.task
    cells = _cell_jobs(built)
    job = PeerJob(
        model=task.model,
        inputs=task.data.inputs,
        targets=task.data.targets,
        starts=[cell.start for cell in cells],
        cell_of_client=built.hist.network.cell_of_client.tolist(),
        batches=_batches(settings, built),
        learning_rate=built.config.training.learning_rate,
        precision=settings.precision,
    )
    save_job(job, folder / "job.pt")
    (folder / "settings.json").write_text(json.dumps(asdict(settings)), encoding="utf-8")
    return {
        "data": built.config.data.name,
        "parameters": sum(value.numel() for value in job.starts[0].values()),
        "operations_per_step": _operations(job),
    }


def _cell_jobs(built: Experiment) -> Sequence[CellJob]:
    """What round 0 asks of its cells."""
    asked: list[CellJob] = []

    class Listener:
        name = "listener"

        def run(self, jobs: Sequence[CellJob]) -> Sequence[CellResult]:
            asked.extend(jobs)
            return [CellResult(job.start, None, 0, 0.0) for job in jobs]

    state = {name: value.detach() for name, value in built.model.named_parameters()}
    next(hist(built.hist, state, Listener(), first_round=0, rounds=1))
    return asked


def _batches(settings: Settings, built: Experiment) -> torch.Tensor:
    """The samples [edge round, client, step, batch] that our engines draw in round 0."""
    task = built.hist.task
    rows = []
    for client in range(settings.clients):
        samples = torch.from_numpy(task.split.client(client))
        (positions,) = batches_of_clients(
            task.seeds.key("batches", 0),
            torch.tensor([client]),
            len(samples),
            first_step=0,
            steps=settings.edge_rounds * settings.local_steps,
            batch_size=settings.batch_size,
        )
        rows.append(samples[positions].view(settings.edge_rounds, settings.local_steps, settings.batch_size))
    return torch.stack(rows, dim=1).to(task.data.inputs.device)


def _operations(job: PeerJob) -> int:
    """Multiplications and additions of the first cell's step, as its products and convolutions have them."""
    one = replace(job, batches=job.batches[:1, :1, :1])
    with FlopCounterMode(display=False) as counter:
        train_client(one, job.starts[0], 0, 0)
    return counter.get_total_flops()
