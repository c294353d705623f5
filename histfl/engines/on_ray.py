"""Cells on a Ray cluster: a worker keeps the task and what was chosen to train it, and answers lots of jobs.

Bits are the vectorised engine's for any number of workers: cells that go in step stay together, and the size of blocks
is computed here, of all jobs and a stated number of cores. Results go on in the order of the jobs.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from histfl.engines.blocks import clients_of, clients_per_block
from histfl.engines.cluster import (
    OFTEN,
    Cluster,
    NoWorkerLeft,
    as_ours,
    import_ray,
    lost_errors,
    share_of_a_gpu,
)
from histfl.engines.sending import numbers_sent, send_numbers
from histfl.engines.vectorised import VectorisedEngine
from histfl.errors import HistflError, UsageError, in_one_line, shown
from histfl.training import CellJob, CellResult, Task
from histfl.training.jobs import RoundJobs

_log = logging.getLogger(__name__)
LOTS_A_WORKER = 4  # in a round on a CPU, where there are so many cells: the last ones end at about one time
BYTES_A_LOT = 2**23  # of submodels, about: a few of them for each worker are in memory


class RayEngine:
    """`cluster` says which workers there are. It is joined, or made, at the first jobs, and left at `close`.

    `memory_gb` are those of each worker's clients in training on a GPU; on a CPU all share them. `cores` decide the
    size of blocks, on every node alike (None: as many as this machine has).
    """

    name = "ray"

    def __init__(
        self, memory_gb: float | None = None, cluster: Cluster | None = None, *, cores: int | None = None
    ) -> None:
        if not isinstance(cluster, Cluster | None):
            raise UsageError(f"cluster = {shown(cluster)}; give a Cluster, such as Cluster(workers=2)")
        self.cluster = cluster or Cluster()
        self.lost_workers = 0
        self._here = VectorisedEngine(memory_gb, cores=cores)  # trains nothing: it knows how cells are cut
        self._stack = ExitStack()
        self._pool: _Pool | None = None

    def supports(self, task: Task) -> bool:
        """Whether a fast trainer fits the task; others go to the reference engine, on every worker."""
        return self._here.supports(task)

    def run(self, jobs: Sequence[CellJob]) -> Iterator[CellResult]:
        if len(jobs) == 0:
            return
        all_jobs = RoundJobs.of(jobs)
        pool = self._pool_for(all_jobs.task)
        most = clients_per_block(all_jobs.schedules, self._here.cores)
        made: dict[int, CellJob] = {}  # that nobody has been asked for
        lots = self._lots(all_jobs, most, pool.workers, made)
        lost = deque[_Lot]()
        found: dict[int, CellResult] = {}  # those whose turn has not come
        turn = 0
        try:
            while turn < len(jobs):
                # More than two lots a worker out of turn wait for one that is slow, and fill memory. One that is made,
                # and not yet in a lot, comes into one by going on.
                most_waiting = 2 * pool.workers * pool.lot_size
                while pool.idle and (lost or not pool.busy or turn in made or len(found) <= most_waiting):
                    lot = lost.popleft() if lost else next(lots, None)
                    if lot is None:
                        break
                    pool.ask(lot, [made.pop(p) if p in made else all_jobs[p] for p in lot.places], most)
                while turn in found:
                    yield found.pop(turn)
                    turn += 1
                if turn < len(jobs):
                    self._take(pool, found, lost)
        finally:
            pool.leave()

    def _take(self, pool: _Pool, found: dict[int, CellResult], lost: deque[_Lot]) -> None:
        """The next lot's results into `found`, or the lot itself into `lost`."""
        lot, results = pool.answer()
        if lot is None:
            return
        if results is not None:
            found |= zip(lot.places, results, strict=True)
            return
        self.lost_workers += 1
        if (lot := dataclasses.replace(lot, lost=lot.lost + 1)).lost >= OFTEN:
            raise HistflError(
                f"{OFTEN} Ray workers were lost with the same {len(lot.places)} cells (memory?); all whole rounds are "
                "kept: go on with --resume and fewer workers a machine, or less --memory-gb"
            )
        _log.warning("a Ray worker was lost; its %d cells are done again by another", len(lot.places))
        lost.append(lot)

    def close(self) -> None:
        """Leave the cluster; one that was made for this engine ends."""
        self._here.close()
        if self._pool is not None:
            self._pool.close()
        self._pool = None
        self._stack.close()

    def _pool_for(self, task: Task) -> _Pool:
        if self._pool is None:
            device, cluster = task.data.device.type, self.cluster
            workers = self._stack.enter_context(cluster.connected(device))
            settings = (cluster.threads, self._here.cores, self._here.memory_gb, cluster.gpus_on(device))
            self._pool = _Pool(workers, settings, cluster.patience_s)
        self._pool.keep(task)
        return self._pool

    def _lots(self, jobs: RoundJobs, most: int, workers: int, made: dict[int, CellJob]) -> Iterator[_Lot]:
        """The places of jobs that go to a worker together, whole bundles; the jobs themselves go into `made`."""
        on_cpu = jobs.task.data.device.type == "cpu"
        total = sum(map(clients_of, jobs.schedules))
        share = max(1, -(-total // (workers * (LOTS_A_WORKER if on_cpu else 1))))

        def each() -> Iterator[CellJob]:
            for place, job in enumerate(jobs):
                made[place] = job
                yield job

        places: list[int] = []
        clients = size = 0
        for bundle in self._here.bundles(each(), jobs.task, most):
            places += bundle
            clients += sum(clients_of(jobs.schedules[place]) for place in bundle)
            size += sum(x.numel() * x.element_size() for p in bundle for x in made[p].start.values())
            if clients >= share or size >= BYTES_A_LOT:
                yield _Lot(tuple(sorted(places)))
                places, clients, size = [], 0, 0
        if places:
            yield _Lot(tuple(sorted(places)))


@dataclasses.dataclass(frozen=True)
class _Lot:
    """Jobs by their places, and how many workers were lost with them."""

    places: tuple[int, ...]
    lost: int = 0


class _Pool:
    """The workers, by what they are about: `idle`, `busy` with a lot, or away: they start, or end something else."""

    def __init__(
        self, workers: int, settings: tuple[int, int, float | None, float], patience_s: float
    ) -> None:
        self._ray: Any = import_ray(own=False)
        threads, _, _, gpus = settings
        make = self._ray.remote(
            num_cpus=threads,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=0,  # Ray would wait for the place where a worker was, if another has none
            scheduling_strategy="SPREAD",
        )(_Worker)
        self.workers, self.patience_s, self.lot_size = workers, patience_s, 1
        self._all = [make.remote(sys.path, *settings) for _ in range(workers)]
        self.idle: list[Any] = []
        self.busy: dict[Any, tuple[Any, _Lot]] = {}
        self._away: dict[Any, Any] = {}
        for worker in self._all:
            self._send_away(worker)
        self._task: Task | None = None
        self._kept: list[Any] = []

    def keep(self, task: Task) -> None:
        """Give the task to the cluster, once: its data lie in a node's memory for all workers there."""
        if self._task is task:
            return
        bare = dataclasses.replace(task, data=None)  # type: ignore[arg-type]
        try:
            with numbers_sent():
                kept = [self._ray.put(bare)]
            with numbers_sent(shared=True):
                kept.append(self._ray.put(task.data))
        except Exception as error:  # what a user's object may answer to being pickled
            raise UsageError(
                f"the run cannot be sent to Ray workers: {in_one_line(error)}; make the model, loss or channel of "
                "what can be pickled, or use --engine vectorised"
            ) from error
        self._kept, self._task = kept, task

    def ask(self, lot: _Lot, jobs: Sequence[CellJob], most: int) -> None:
        worker = self.idle.pop()
        sent = [dataclasses.replace(job, task=None) for job in jobs]  # type: ignore[arg-type]
        with numbers_sent():
            self.busy[worker.run.remote(self._kept, sent, most)] = worker, lot
        self.lot_size = max(self.lot_size, len(jobs))

    def answer(self) -> tuple[_Lot | None, Sequence[CellResult] | None]:
        """A lot and its results, or without them where its worker was lost; nothing where a worker is back."""
        # Ray tells when one that works is lost. Whether one will come is another matter.
        patience = None if self.busy else self.patience_s
        ready, _ = self._ray.wait([*self.busy, *self._away], num_returns=1, timeout=patience)
        if not ready:
            raise NoWorkerLeft(self.patience_s)
        worker, lot = self.busy.pop(ready[0], None) or (self._away.pop(ready[0]), None)
        try:
            found = self._ray.get(ready[0])
        except lost_errors(self._ray) as error:
            if getattr(error, "actor_init_failed", False):
                raise UsageError(
                    f"a Ray worker cannot start: {str(error).strip().splitlines()[-1][-200:]}; every node needs "
                    "histfl, of this version"
                ) from None
            self._send_away(worker)
            return lot, None
        except self._ray.exceptions.RayError as error:
            self.idle.append(worker)  # as good as before
            raise as_ours(error) from None
        self.idle.append(worker)
        return lot, found

    def _send_away(self, worker: Any) -> None:
        """It is back when it has started, where Ray finds room for it, and done what it was asked before."""
        self._away[worker.ready.options(max_task_retries=-1).remote()] = worker

    def leave(self) -> None:
        """Nobody waits any more for what the workers are busy with."""
        for worker, _ in self.busy.values():
            self._send_away(worker)
        self.busy.clear()

    def close(self) -> None:
        for worker in self._all:
            self._ray.kill(worker)
        # Or `leave`, which may come later, would ask them: Ray would begin anew, with whatever cluster is there.
        self.busy.clear()
        self._kept.clear()


class _Worker:
    """Runs in a process of its own. It has the last task of those that it was asked to work on."""

    def __init__(
        self, path: Sequence[str], threads: int, cores: int, memory_gb: float | None, gpus: float
    ) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        torch.set_num_threads(threads)
        send_numbers()
        self._engine = VectorisedEngine(memory_gb or share_of_a_gpu(gpus), cores=cores)
        self._kept: Sequence[Any] = ()
        self._task: Task | None = None

    def ready(self) -> None:
        """Answers when all that was asked before is done."""

    def run(self, kept: Sequence[Any], jobs: Sequence[CellJob], most: int) -> Sequence[CellResult]:
        """Results of jobs that come without their task; `kept` is where it is."""
        task = self._task_of(kept)
        return [*self._engine.run([dataclasses.replace(job, task=task) for job in jobs], most=most)]

    def _task_of(self, kept: Sequence[Any]) -> Task:
        if self._task is None or self._kept != kept:
            bare, data = import_ray(own=False).get(list(kept))
            # Ray's arrays are read only, and a user's object may write into its own.
            own = copy.deepcopy(bare)
            self._task, self._kept = dataclasses.replace(own, data=data), kept
        return self._task
