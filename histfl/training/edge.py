"""Edge aggregation (HIST Eq. (6)) and one cell's global round, in its plainest form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from histfl.partition import State
from histfl.seeds import lent_to_layers
from histfl.training.batches import client_batches, variants_of_clients
from histfl.training.dropout import key_names, step_keys
from histfl.training.jobs import CellJob, CellResult
from histfl.training.local import client_steps


def mean_of_clients(finals: Iterable[State]) -> State:
    """The mean over all clients of chunks whose tensors are [client, ...]."""
    total: State = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for chunk in finals:
        count += len(next(iter(chunk.values())))
        for name, tensor in chunk.items():
            # Half precision is too coarse to add up many clients in.
            partial = tensor.sum(dim=0, dtype=torch.promote_types(tensor.dtype, torch.float32))
            total[name] = total[name] + partial if name in total else partial
            dtypes[name] = tensor.dtype
    torch._foreach_div_(list(total.values()), count)
    return {name: tensor.to(dtypes[name]) for name, tensor in total.items()}


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
    for position in job.schedule.arrived[edge_round]:
        client = job.cell.first_client + int(position)
        batches = _batches(job, client, edge_round)
        key = torch.zeros((), dtype=torch.int64, device=device)
        if names:
            batches = _with_keys(batches, key, job, client, edge_round)
        with lent_to_layers(task.seeds.key("layers", job.round, edge_round, client), device):
            final, loss = client_steps(
                task.model,
                state,
                _own_buffers(task.model) | job.constants | dict.fromkeys(names, key),
                batches,
                loss=task.loss,
                training=task.local,
            )
        losses.append(loss)
        yield {name: tensor.unsqueeze(0) for name, tensor in final.items()}


def _own_buffers(model: nn.Module) -> State:
    """A client's copy of the module's buffers: what a forward pass changes in them ends with its local steps."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _batches(job: CellJob, client: int, edge_round: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs [batch, ...] and targets [batch] of one step after another."""
    task, local = job.task, job.task.local
    device = task.data.inputs.device
    steps = {
        "first_step": edge_round * local.local_steps,
        "steps": local.local_steps,
        "batch_size": local.batch_size,
    }
    samples = torch.from_numpy(task.split.client(client))
    positions = client_batches(task.seeds.key("batches", job.round), client, len(samples), **steps)
    indices = samples[positions].to(device)
    if task.augment is None:
        yield from ((task.data.inputs[step], task.data.targets[step]) for step in indices)
        return
    key, number = task.seeds.key("augment", job.round), torch.tensor([client], device=device)
    (variants,) = variants_of_clients(key, number, task.augment.num_variants, **steps)
    for step, chosen in zip(indices, variants, strict=True):
        yield task.augment.apply(task.data.inputs[step], chosen), task.data.targets[step]


def _with_keys(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    key: torch.Tensor,
    job: CellJob,
    client: int,
    edge_round: int,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches, with the step's own number in `key`, which the random layers read."""
    steps = job.task.local.local_steps
    number = torch.tensor([client], device=key.device)
    keys = step_keys(
        job.task.seeds.key("layers", job.round), number, first_step=edge_round * steps, steps=steps
    )
    for batch, own in zip(batches, keys, strict=True):
        key.copy_(own[0])
        yield batch
