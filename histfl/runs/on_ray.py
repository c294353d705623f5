"""Runs as tasks of a Ray cluster: each into its folder, which all nodes see, and resumed where a worker was lost."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any, get_args

import torch

from histfl.devices import choose_device
from histfl.engines.cluster import (
    OFTEN,
    Cluster,
    NoWorkerLeft,
    as_ours,
    import_ray,
    lost_errors,
    share_of_a_gpu,
)
from histfl.errors import DivergedError, HistflError
from histfl.runs.jobs import Begun, Execution, Job, Message, Outcome, as_sent, finish, late

_log = logging.getLogger(__name__)


def on_ray(
    jobs: Sequence[Job], execution: Execution, deadline: float | None
) -> Iterator[tuple[Job, Message | Outcome | Exception | None]]:
    """What is to be told of the runs, as it comes: None where one begins, what it says, and what becomes of it, an
    error of its own also. Ray says which one runs where, and when."""
    if late(deadline):
        return
    cluster, device = execution.cluster, choose_device(execution.device).type
    gpus = cluster.gpus_on(device)
    there = dataclasses.replace(
        execution,
        data_dir=execution.data_dir and execution.data_dir.absolute(),
        device=device,
        parallel=1,
        cluster=Cluster(),
        cores=os.cpu_count(),  # of this machine, on every node: the runs have the bits that they have without Ray
    )
    with cluster.connected(device) as workers:
        ray: Any = import_ray(own=False)
        task = ray.remote(
            num_cpus=cluster.threads,
            num_gpus=gpus,
            max_retries=0,  # one that is retried says other things than before, of which Ray would drop the first
            scheduling_strategy="SPREAD",
        )(_messages)

        def ask(job: Job) -> None:
            placed = dataclasses.replace(job, folder=job.folder.absolute())
            asked[task.remote(sys.path, placed, there, deadline, cluster.threads, gpus)] = job

        waiting, asked, at_work = deque(jobs), dict[Any, Job](), set[Any]()
        lost = Counter[str]()  # workers, of each run
        told = set[tuple[str, type]]()  # of each run, what is said once
        while asked or (waiting and not late(deadline)):
            while waiting and len(asked) < workers and not late(deadline):
                ask(waiting.popleft())
            # Ray tells when one that works is lost. Whether one will come is another matter.
            patience = None if at_work & asked.keys() else cluster.patience_s
            ready, _ = ray.wait(list(asked), num_returns=1, timeout=patience)
            if not ready:
                raise NoWorkerLeft(cluster.patience_s)
            job = asked[ready[0]]
            try:
                said = ray.get(next(ready[0]))
            except StopIteration:
                del asked[ready[0]]
                continue
            except lost_errors(ray):
                del asked[ready[0]]
                lost[job.name] += 1
                if lost[job.name] < OFTEN:
                    _log.warning("a Ray worker was lost; the run %s goes on in another", job.name)
                    waiting.append(dataclasses.replace(job, resume=True))
                    continue
                said = HistflError(
                    f"{OFTEN} Ray workers were lost with it (memory?); all whole rounds are kept: go on with fewer "
                    "workers a machine"
                )
            except ray.exceptions.RayError as error:
                del asked[ready[0]]
                said = as_ours(error)
            at_work.add(ready[0])
            kind = job.name, type(said)
            if kind in told and isinstance(said, Begun | None):
                continue
            told.add(kind)
            yield job, said


def _messages(
    path: Sequence[str], job: Job, execution: Execution, deadline: float | None, threads: int, gpus: float
) -> Iterator[object]:
    """In a process of its own: a run is carried out, and what is to be told of it comes as it is told."""
    sys.path += [folder for folder in path if folder not in sys.path]
    yield None
    execution = dataclasses.replace(execution, memory_gb=execution.memory_gb or share_of_a_gpu(gpus))
    told: SimpleQueue[object] = SimpleQueue()

    def carry_out() -> None:
        torch.set_num_threads(threads)  # each thread has a number of its own
        try:
            told.put(finish(job, execution, deadline, told.put))
        except BaseException as error:
            told.put(as_sent(error))

    thread = threading.Thread(target=carry_out, daemon=True)
    thread.start()
    while True:
        message = told.get()
        yield as_sent(message)
        ends = isinstance(message, Exception) and not isinstance(message, DivergedError)
        if ends or message in get_args(Outcome):
            return
