"""The fast engine: clients step together where their model allows it, and cells side by side.

On a CPU every thread, with one torch thread of its own, does whole cells (small ones in bundles), a few
clients at a time, whose weights stay in cache; the threads meet at the end of the global round. On a
GPU the clients of all cells with submodels of one shape step together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from histfl.arguments import whole
from histfl.devices import one_torch_thread, products
from histfl.engines.blocks import (
    Block,
    Part,
    Trainer,
    bundled,
    clients_per_block,
    cut_into_blocks,
    halves,
    num_clients,
)
from histfl.engines.memory import check_budget, keep_freed_memory, within
from histfl.engines.reference import ReferenceEngine
from histfl.engines.steps.choose import choose_trainer
from histfl.engines.threads import ThreadPool
from histfl.errors import UsageError
from histfl.partition import State
from histfl.training import CellJob, CellResult, Task
from histfl.training.corrections import Correction
from histfl.training.jobs import averaged, correction_of, received
from histfl.training.memory import CellMemory


@dataclass(frozen=True)
class _Trained:
    """What a block says of one of its parts: final models [client, ...] and losses [client]."""

    place: int
    final: State
    losses: torch.Tensor


@dataclass(frozen=True)
class _End:
    """A cell after its edge rounds: the edge's model, the clients' losses in blocks [client], the errors of the
    edge's estimates, and what the cell keeps."""

    state: State
    losses: list[torch.Tensor]
    errors: list[torch.Tensor]
    memory: CellMemory


_Mapper = Callable[[Iterable[Block]], Iterator[_Trained]]  # trains blocks, and gives their parts in order


class VectorisedEngine:
    """Gives the reference engine's results, to rounding; tasks that no fast way fits go to that engine."""

    name = "vectorised"

    def __init__(self, memory_gb: float | None = None, *, cores: int | None = None) -> None:
        """On a CPU, blocks are sized for so many cores (None: the machine's), whatever the number of threads."""
        check_budget(memory_gb)
        self.memory_gb = memory_gb
        self.cores = (os.cpu_count() or 1) if cores is None else whole("cores of an engine", cores, 2**20)
        self._known: tuple[Task, Trainer | None] | None = None

    def supports(self, task: Task) -> bool:
        """Whether a fast trainer fits the task."""
        return self._trainer(task) is not None

    def run(self, jobs: Sequence[CellJob], *, most: int | None = None) -> Sequence[CellResult]:
        """`most` is the number of clients in a block on a CPU, for whoever shares a round's jobs out to several
        engines (None: `clients_per_block` of these)."""
        jobs = list(jobs)
        trainer = self._trainer(jobs[0].task) if jobs else None
        if trainer is None:
            return ReferenceEngine().run(jobs)
        run = _run_in_turn
        if jobs[0].task.data.device.type == "cpu":
            most = most or clients_per_block([job.schedule for job in jobs], self.cores)
            run, trainer = _run_threads, _AtMost(most, trainer)
        bundles = list(bundled(jobs, trainer))
        with products(jobs[0].task.local.precision):
            found = run([[jobs[place] for place in places] for places in bundles], trainer)
        ends = {
            place: end
            for places, own in zip(bundles, found, strict=True)
            for place, end in zip(places, own, strict=True)
        }
        return _results([ends[place] for place in range(len(jobs))], jobs[0].task.local.local_steps)

    def bundles(self, jobs: Iterable[CellJob], task: Task, most: int) -> Iterator[list[int]]:
        """The places of the task's jobs that stay together wherever they are carried out, since sums of other blocks
        round otherwise; on a GPU and without a fast trainer, each by itself."""
        trainer = self._trainer(task)
        if trainer is None or task.data.device.type != "cpu":
            return ([place] for place, _ in enumerate(jobs))
        return bundled(jobs, _AtMost(most, trainer))

    def close(self) -> None:
        """Drop what was made for the last task: recordings hold a GPU's memory."""
        self._known = None

    def _trainer(self, task: Task) -> Trainer | None:
        if self._known is None or self._known[0] is not task:
            trainer = choose_trainer(task)
            self._known = task, trainer and within(self.memory_gb, trainer, task, self.cores)
        return self._known[1]


class _AtMost:
    """A trainer whose blocks hold at most so many clients."""

    def __init__(self, most: int, trainer: Trainer) -> None:
        self.most, self.trainer, self.train = most, trainer, trainer.train

    def clients_at_once(self, start: State) -> int | None:
        return min(self.trainer.clients_at_once(start) or self.most, self.most)


def _run_threads(bundles: Sequence[Sequence[CellJob]], trainer: Trainer) -> list[list[_End]]:
    """Bundles of cells side by side, on as many threads as torch may use."""
    keep_freed_memory()
    with one_torch_thread() as threads:
        if threads == 1:
            return _run_in_turn(bundles, trainer)
        pool = ThreadPool(threads)

        def mapper(blocks: Iterable[Block]) -> Iterator[_Trained]:
            for trained in pool.parts(lambda block: list(_train(trainer, block)), blocks):
                yield from trained

        return pool.jobs(lambda jobs: _run_cells(jobs, trainer, mapper), bundles)


def _run_in_turn(bundles: Sequence[Sequence[CellJob]], trainer: Trainer) -> list[list[_End]]:
    """One bundle after another, in this thread."""
    return [
        _run_cells(
            jobs, trainer, lambda blocks: (part for block in blocks for part in _train(trainer, block))
        )
        for jobs in bundles
    ]


def _run_cells(jobs: Sequence[CellJob], trainer: Trainer, mapper: _Mapper) -> list[_End]:
    """Lines 3 to 9 of Algorithm 1 for cells of one submodel shape, in step with each other."""
    states, memories = [job.start for job in jobs], [CellMemory(job.memory) for job in jobs]
    corrections = [correction_of(job, memory) for job, memory in zip(jobs, memories, strict=True)]
    losses: list[list[torch.Tensor]] = [[] for _ in jobs]
    errors: list[list[torch.Tensor]] = [[] for _ in jobs]
    most = trainer.clients_at_once(states[0])
    for edge_round in range(len(jobs[0].schedule.arrived)):
        parts = [
            Part(place, job, states[place], edge_round, job.clients(edge_round), corrections[place])
            for place, job in enumerate(jobs)
            if len(job.schedule.arrived[edge_round])
        ]
        trained = mapper(cut_into_blocks(parts, most))
        # They come in the order of the parts, so an uplink reads its cell's without waiting for all.
        for place, own in groupby(trained, key=lambda part: part.place):
            job, start, correction = jobs[place], states[place], corrections[place]
            finals = _finals(job, memories[place], correction, edge_round, start, own, losses[place])
            states[place], error = averaged(job, edge_round, start, finals)
            if correction is not None:
                correction.averaged(job.clients(edge_round), start, states[place])
            errors[place].append(error)
    return [_End(*end) for end in zip(states, losses, errors, memories, strict=True)]


def _finals(
    job: CellJob,
    memory: CellMemory,
    correction: Correction | None,
    edge_round: int,
    state: State,
    trained: Iterable[_Trained],
    losses: list[torch.Tensor],
) -> Iterator[State]:
    """The models that reach the edge, in the order of the clients."""
    clients, heard = job.clients(edge_round), 0
    for part in trained:
        losses.append(part.losses)
        own = clients[heard : heard + len(part.losses)]
        if correction is not None:
            correction.trained(own, state, part.final)
        yield received(job, memory, edge_round, state, part.final, own)
        heard += len(own)


def _results(ends: Sequence[_End], local_steps: int) -> list[CellResult]:
    """What the cells report; a GPU has had no reason to wait until the losses are read here, all at once."""
    heard = [end for end in ends if end.losses]
    losses = torch.stack([torch.cat(end.losses).double().sum() for end in heard]).tolist() if heard else []
    errors = torch.stack([torch.stack(end.errors).mean() for end in heard]).tolist() if heard else []
    numbers = iter(zip(losses, errors, strict=True))
    results = []
    for end in ends:
        steps = sum(map(len, end.losses)) * local_steps
        loss, error = next(numbers) if end.losses else (None, 0.0)
        mean = None if loss is None else loss / steps
        results.append(CellResult(end.state, mean, steps, error, end.memory.kept()))
    return results


def _train(trainer: Trainer, block: Block) -> Iterator[_Trained]:
    """One block; where a GPU's memory is too small for it, its halves, one after the other is read."""
    try:
        final, losses = trainer.train(block)
    except torch.OutOfMemoryError:
        if num_clients(block) == 1:
            raise UsageError(
                "the GPU's memory is too small for the step of a single client; give it more (--memory-gb), "
                "or lower training.batch_size"
            ) from None
    else:
        sizes = [len(part.clients) for part in block]
        finals = {name: tensor.split(sizes) for name, tensor in final.items()}
        for index, (part, own) in enumerate(zip(block, losses.split(sizes), strict=True)):
            yield _Trained(part.place, {name: rows[index] for name, rows in finals.items()}, own)
        return
    for half in halves(block):
        yield from _train(trainer, half)
