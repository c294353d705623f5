"""pfl's SimulatedBackend on several processes of one thread: federated averaging in every cell.

The processes share the clients of all cells. pfl has one model a run and adds up the updates of all its
clients; here each cell has a model, and a client's updates carry its cell's number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as processes
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics
from torch import nn
from turns import PeerJob, State, contender_options, load_job, take_turns, with_parameters

NEVER, STOP = 10**9, -1


class CellModule(nn.Module):
    """A cell's submodel with the loss and the metrics that pfl asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.module(inputs), targets)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        return {}


class ClientData(Dataset):
    """The batches that one client sees in one edge round."""

    def __len__(self) -> int:
        return int(self.raw_data[2].numel())

    def iter(self, batch_size: int | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        inputs, targets, batches = self.raw_data
        for batch in batches:
            yield inputs[batch], targets[batch]


class CellStatistics(MappedVectorStatistics):
    """Sums of updates by (cell, parameter); a client brings those of its own cell."""

    def __add__(self, others: CellStatistics) -> CellStatistics:
        total = dict(others.items())
        for key, value in self.items():  # pfl uses a client's tensors again for the next one: copy the first
            total[key] = total[key] + value if key in total else value.clone()
        return CellStatistics(total, self.weight + others.weight)


class CellAveraging(FederatedAveraging):
    """Federated averaging in every cell at once."""

    def __init__(self, models: list[PyTorchModel], job: PeerJob) -> None:
        super().__init__()
        self.models = models
        self.job = job
        self._initial_states: dict[int, Any] = {}

    def simulate_one_user(self, model: PyTorchModel, user_dataset: ClientData, central_context: Any) -> Any:
        cell = user_dataset.metadata["cell"]
        self._initial_model_state = self._initial_states.get(cell)
        found, metrics = super().simulate_one_user(self.models[cell], user_dataset, central_context)
        self._initial_states[cell] = self._initial_model_state
        return CellStatistics({(cell, name): value for name, value in found.items()}), metrics

    def process_aggregated_statistics(
        self,
        central_context: Any,
        aggregate_metrics: Metrics,
        model: PyTorchModel,
        statistics: CellStatistics,
    ) -> tuple[PyTorchModel, Metrics]:
        for cell, own in enumerate(self.models):
            updates = {name: value for (owner, name), value in statistics.items() if owner == cell}
            mean = MappedVectorStatistics(updates, weight=len(self.job.clients_of(cell)))
            mean.average()
            own.apply_model_update(mean)
        return model, Metrics()


class Simulation:
    """One process's part of the simulation."""

    def __init__(self, job: PeerJob) -> None:
        self.job = job
        self.edge_round = 0
        self.models = []
        for start in job.starts:
            module = CellModule(with_parameters(job.model, start))
            central = torch.optim.SGD(module.parameters(), lr=1.0)
            self.models.append(PyTorchModel(module, torch.optim.SGD, central))
        self.algorithm = CellAveraging(self.models, job)
        sampler = get_user_sampler("minimize_reuse", range(len(job.cell_of_client)))
        clients = FederatedDataset(self.client_data, sampler)
        self.backend = SimulatedBackend(clients, clients)
        self.iterations = 0

    def client_data(self, client: int) -> ClientData:
        job = self.job
        raw = (job.inputs, job.targets, job.batches[self.edge_round, client])
        return ClientData(raw, metadata={"cell": job.cell_of_client[client]})

    def global_round(self, edge_rounds: int) -> list[State]:
        for model, start in zip(self.models, self.job.starts, strict=True):
            model.set_parameters(MappedVectorStatistics({f"module.{k}": v for k, v in start.items()}))
        for self.edge_round in range(edge_rounds):
            self.iterations += 1
            self.algorithm.run(
                NNAlgorithmParams(
                    central_num_iterations=self.iterations,
                    evaluation_frequency=NEVER,
                    train_cohort_size=len(self.job.cell_of_client),
                    val_cohort_size=None,
                ),
                self.backend,
                self.models[0],
                NNTrainHyperParams(
                    local_batch_size=self.job.batches.shape[-1],
                    local_num_epochs=1,
                    local_learning_rate=self.job.learning_rate,
                ),
                send_metrics_to_platform=False,
            )
        return [
            {
                name.removeprefix("module."): value.detach().clone()
                for name, value in model.variable_map.items()
            }
            for model in self.models
        ]


def main() -> None:
    options = contender_options()
    torch.set_num_threads(1)
    asyncio.set_event_loop(asyncio.new_event_loop())
    simulation = Simulation(load_job(options.job / "job.pt"))

    def in_step(edge_rounds: int) -> list[State]:
        """The first process passes every request on to the others."""
        processes.broadcast(torch.tensor(edge_rounds), src=0)
        return simulation.global_round(edge_rounds) if edge_rounds != STOP else []

    if processes.get_rank() == 0:
        take_turns(options.socket, in_step)
        in_step(STOP)
        return
    asked = torch.tensor(0)
    while processes.broadcast(asked, src=0) is None and int(asked) != STOP:
        simulation.global_round(int(asked))


if __name__ == "__main__":
    main()
