"""The plain engine, and the oracle of every other one: a loop over cells, and clients within them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from histfl.devices import one_torch_thread, products
from histfl.partition import State
from histfl.seeds import lent_to_layers
from histfl.training.batches import BatchKeys, batch_numbers, load_batch
from histfl.training.dropout import key_names, step_keys
from histfl.training.jobs import CellJob, CellResult, received
from histfl.training.local import client_steps


class ReferenceEngine:
    """Runs the jobs one after another in this process, on one torch thread: a client's batches are too small for more.
    It trains one client at a time, whatever memory there is."""

    name = "reference"

    def __init__(self, memory_gb: float | None = None) -> None:
        pass

    def run(self, jobs: Sequence[CellJob]) -> Sequence[CellResult]:
        if not jobs:
            return []
        with products(jobs[0].task.local.precision), one_torch_thread():
            return [run_cell(job) for job in jobs]

    def close(self) -> None:
        pass


def run_cell(job: CellJob) -> CellResult:
    """Lines 3 to 9 of Algorithm 1 for one cell, one client after another.

    An edge round in which no update arrives leaves the edge's model as it is.
    """
    state = job.start
    losses: list[torch.Tensor] = []
    errors: list[torch.Tensor] = []
    for edge_round, clients in enumerate(job.schedule.arrived):
        if len(clients) == 0:
            continue
        trained = _train_clients(job, state, edge_round, losses)
        state, error = job.task.uplink.aggregate(
            state, trained, job.link, edge_round, job.task.local.learning_rate
        )
        errors.append(error)
    steps = len(losses) * job.task.local.local_steps
    return CellResult(
        state=state,
        loss=torch.stack(losses).sum().item() / steps if steps else None,
        client_steps=steps,
        edge_error=torch.stack(errors).mean().item() if errors else 0.0,
    )


def _train_clients(
    job: CellJob, state: State, edge_round: int, losses: list[torch.Tensor]
) -> Iterator[State]:
    """The arrived clients' models after their local steps, in chunks of one client."""
    task = job.task
    device = task.data.inputs.device
    names = key_names(task.model)
    key = torch.zeros((), dtype=torch.int64, device=device) if names else None
    for position in job.schedule.arrived[edge_round]:
        client = job.cell.first_client + int(position)
        with lent_to_layers(task.seeds.key("layers", job.round, edge_round, client), device):
            final, loss = client_steps(
                task.model,
                state,
                _own_buffers(task.model) | job.constants | ({} if key is None else dict.fromkeys(names, key)),
                _batches(job, client, edge_round, key),
                loss=task.loss,
                training=task.local,
            )
        losses.append(loss)
        one = {name: tensor.unsqueeze(0) for name, tensor in final.items()}
        yield received(job, edge_round, state, one, np.array([client]))


def _own_buffers(model: nn.Module) -> State:
    """A client's copy of the module's buffers: what a forward pass changes in them ends with its local steps."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _batches(
    job: CellJob, client: int, edge_round: int, key: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs [batch, ...] and targets [batch] of one step after another, while `key` [], which random layers read
    if there are any, has the step's own number."""
    task, steps = job.task, job.task.local.local_steps
    first = edge_round * steps
    streams = BatchKeys.of_round(task, job.round)
    (numbers,) = batch_numbers(task, np.array([client]), streams, first_step=first, steps=steps)
    numbers = numbers.to(task.data.inputs.device)
    if key is None:
        yield from (load_batch(task, step) for step in numbers)
        return
    who = torch.tensor([client], device=key.device)
    keys = step_keys(task.seeds.key("layers", job.round), who, first_step=first, steps=steps)
    for step, own in zip(numbers, keys, strict=True):
        key.copy_(own[0])
        yield load_batch(task, step)
