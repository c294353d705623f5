"""The plain engine, and the oracle of every other one: a loop over cells, and clients within them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from histfl.arrays import Ints
from histfl.data.inputs import Inputs
from histfl.devices import one_torch_thread, products
from histfl.partition import State
from histfl.seeds import lent_to_layers
from histfl.training.batches import BatchKeys, batch_numbers, load_batch
from histfl.training.corrections import Correction, added
from histfl.training.dropout import key_names, step_keys
from histfl.training.jobs import CellJob, CellResult, averaged, correction_of, sent, taken
from histfl.training.local import client_steps
from histfl.training.memory import CellMemory


class ReferenceEngine:
    """Runs the jobs one after another in this process, on one torch thread: a client's batches are too small for more.
    It trains one client at a time, whatever memory there is."""

    name = "reference"

    def __init__(self, memory_gb: float | None = None) -> None:
        pass

    def run(self, jobs: Sequence[CellJob]) -> Sequence[CellResult]:
        jobs = list(jobs)
        if not jobs:
            return []
        with products(jobs[0].task.local.precision), one_torch_thread():
            return [run_cell(job) for job in jobs]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Heard:
    """What an edge gets in an edge round: the numbers of the clients whose updates arrive and, one after another in
    their order, what is decoded of each one's model, tensors [1, ...], with the sum of its batch losses."""

    clients: Ints
    updates: Iterable[tuple[State, torch.Tensor]]


Hear = Callable[[CellJob, CellMemory, Correction | None, State, int], Heard]


def run_cell(job: CellJob, hear: Hear | None = None) -> CellResult:
    """Lines 3 to 9 of Algorithm 1 for one cell, one client after another; `hear` brings their updates (None: they
    train here).

    An edge round in which no update arrives leaves the edge's model as it is.
    """
    hear = hear or _train_here
    state, memory = job.start, CellMemory(job.memory)
    correction = correction_of(job, memory)
    losses: list[torch.Tensor] = []
    errors: list[torch.Tensor] = []
    for edge_round in range(len(job.schedule.arrived)):
        heard = hear(job, memory, correction, state, edge_round)
        if len(heard.clients) == 0:
            continue
        start, own = state, job.with_arrived(edge_round, heard.clients)
        state, error = averaged(own, edge_round, start, _as_taken(own, edge_round, start, heard, losses))
        if correction is not None:
            correction.averaged(heard.clients, start, state)
        errors.append(error)
    steps = len(losses) * job.task.local.local_steps
    return CellResult(
        state=state,
        loss=torch.stack(losses).sum().item() / steps if steps else None,
        client_steps=steps,
        edge_error=torch.stack(errors).mean().item() if errors else 0.0,
        memory=memory.kept(),
    )


def _as_taken(
    job: CellJob, edge_round: int, state: State, heard: Heard, losses: list[torch.Tensor]
) -> Iterator[State]:
    """What the edge averages of those that it heard; their losses go into `losses`."""
    for client, (decoded, loss) in zip(heard.clients, heard.updates, strict=True):
        losses.append(loss)
        yield taken(job, edge_round, state, decoded, np.array([client]))


def _train_here(
    job: CellJob, memory: CellMemory, correction: Correction | None, state: State, edge_round: int
) -> Heard:
    """All whose updates arrive by the schedule train in this process, one after another."""
    clients = job.clients(edge_round)

    def updates() -> Iterator[tuple[State, torch.Tensor]]:
        for client in map(int, clients):
            who = np.array([client])
            given = added(correction, who, state)
            final, loss = train_client(job, state, edge_round, client, given)
            if correction is not None:
                correction.trained(who, state, final)
            yield sent(job, memory, edge_round, state, final, who), loss

    return Heard(clients, updates())


def train_client(
    job: CellJob, state: State, edge_round: int, client: int, correction: State | None = None
) -> tuple[State, torch.Tensor]:
    """A client's model after the local steps of an edge round from the edge's model `state`, tensors [1, ...], and
    the sum of its batch losses; its `correction`, [1, ...], is added to its gradients."""
    task = job.task
    device, names = task.data.device, key_names(task.model)
    key = torch.zeros((), dtype=torch.int64, device=device) if names else None
    with lent_to_layers(task.seeds.key("layers", job.round, edge_round, client), device):
        final, loss = client_steps(
            task.model,
            state,
            _own_buffers(task.model) | job.constants | ({} if key is None else dict.fromkeys(names, key)),
            _batches(job, client, edge_round, key),
            loss=task.loss,
            training=task.local.at(job.round),
            correction=None
            if correction is None
            else {name: tensor[0] for name, tensor in correction.items()},
        )
    return {name: tensor.unsqueeze(0) for name, tensor in final.items()}, loss


def _own_buffers(model: nn.Module) -> State:
    """A client's copy of the module's buffers: what a forward pass changes in them ends with its local steps."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _batches(
    job: CellJob, client: int, edge_round: int, key: torch.Tensor | None
) -> Iterator[tuple[Inputs, torch.Tensor]]:
    """Inputs and targets [batch, ...] of one step after another, while `key` [], which random layers read
    if there are any, has the step's own number."""
    task, steps = job.task, job.task.local.local_steps
    first = edge_round * steps
    streams = BatchKeys.of_round(task, job.round)
    (numbers,) = batch_numbers(task, np.array([client]), streams, first_step=first, steps=steps)
    numbers = numbers.to(task.data.device)
    if key is None:
        yield from (load_batch(task, step) for step in numbers)
        return
    who = torch.tensor([client], device=key.device)
    keys = step_keys(task.seeds.key("layers", job.round), who, first_step=first, steps=steps)
    for step, own in zip(numbers, keys, strict=True):
        key.copy_(own[0])
        yield load_batch(task, step)
