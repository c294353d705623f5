"""What every contender's process does: load the job, then a global round whenever it is asked for one.

Imported by processes of other environments too, so it needs torch and the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

State = dict[str, torch.Tensor]
GlobalRound = Callable[[int], Sequence[State]]  # the edge rounds to do -> every cell's submodel after them


@dataclass(frozen=True)
class PeerJob:
    """One global round as plain tensors. `starts` are the cells' submodels, `cell_of_client` is [client],
    `batches` the samples [edge round, client, step, batch] that each client sees."""

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    starts: list[State]
    cell_of_client: list[int]
    batches: torch.Tensor
    learning_rate: float
    precision: str

    def clients_of(self, cell: int) -> list[int]:
        return [client for client, own in enumerate(self.cell_of_client) if own == cell]


def save_job(job: PeerJob, path: Path) -> None:
    torch.save(vars(job), path)


def load_job(path: Path) -> PeerJob:
    return PeerJob(**torch.load(path, weights_only=False))  # our own file, written a moment ago


def with_parameters(model: nn.Module, state: State) -> nn.Module:
    """A copy of the module with these tensors as its parameters; they may be smaller than its own."""
    model = deepcopy(model)
    for name, value in state.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(value.detach().clone()))
    return model


def train_client(job: PeerJob, state: State, client: int, edge_round: int) -> State:
    """What one writes first: a module and torch.optim.SGD a client, on tensors already in memory."""
    model = with_parameters(job.model, state)
    optimiser = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
    lower = contextlib.nullcontext()
    if job.precision == "bf16":
        lower = torch.autocast(job.inputs.device.type, torch.bfloat16)
    for batch in job.batches[edge_round, client]:
        optimiser.zero_grad()
        with lower:
            loss = nn.functional.cross_entropy(model(job.inputs[batch]), job.targets[batch])
        loss.backward()
        optimiser.step()
    return {name: value.detach() for name, value in model.named_parameters()}


def set_arithmetic(precision: str) -> None:
    """How exact a GPU multiplies: in float32 alone, or with factors rounded to TF32 where they are float32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"


def contender_options() -> argparse.Namespace:
    """The command line that all contenders share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", type=Path, required=True, help="folder of the job")
    parser.add_argument("--socket", type=Path, required=True, help="where turns are asked for")
    parser.add_argument("--name", required=True)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def requests(path: Path) -> Iterator[tuple[dict[str, object], Callable[[dict[str, object]], None]]]:
    """(request, answer) as they come, until the other side closes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        channel = connection.makefile("rw", encoding="utf-8")

        def answer(values: dict[str, object]) -> None:
            channel.write(json.dumps(values) + "\n")
            channel.flush()

        answer({"ready": True})
        for line in channel:
            yield json.loads(line), answer


def take_turns(path: Path, global_round: GlobalRound) -> None:
    """Answer every request for a global round with its seconds; keep its submodels where it says so."""
    for request, answer in requests(path):
        states, seconds = timed(global_round, int(str(request["edge_rounds"])))
        if save := request.get("save"):
            torch.save([{name: value.cpu() for name, value in state.items()} for state in states], str(save))
        answer({"seconds": seconds, "cuda_bytes": cuda_bytes()})


def timed(global_round: GlobalRound, edge_rounds: int) -> tuple[Sequence[State], float]:
    """What a round returns, and its seconds until the device has done all of it."""
    synchronise()
    start = time.perf_counter()
    states = global_round(edge_rounds)
    synchronise()
    return states, time.perf_counter() - start


def synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def cuda_bytes() -> int | None:
    """The most memory that tensors have taken on the GPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
