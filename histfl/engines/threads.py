"""Threads that share work: each does whole jobs, and one that finds none left helps with parts of others'."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

import torch

Job = TypeVar("Job")
Part = TypeVar("Part")
Found = TypeVar("Found")


class ThreadPool:
    """`threads` threads, each with one torch thread of its own."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        self._lock = Lock()
        self._free = threads  # fewer than none while jobs wait for a thread
        self._stopped = False

    def jobs(self, work: Callable[[Job], Found], jobs: Sequence[Job]) -> list[Found]:
        """`work` of every job, whole jobs side by side."""
        self._free -= len(jobs)
        with self._pool:
            try:
                return [future.result() for future in [self._submit(work, job) for job in jobs]]
            except BaseException:  # an interrupt too: wait for no more than the parts in progress
                self._stopped = True
                self._pool.shutdown(wait=False, cancel_futures=True)
                raise

    def parts(self, work: Callable[[Part], Found], parts: Iterable[Part]) -> Iterator[Found]:
        """`work` of a job's parts, in order: by the thread that asks, and by those that have no job.

        A few parts ahead keep the others busy, and no more results in memory than that.
        """
        ahead: deque[Future[Found]] = deque()
        for part in parts:
            if self._stopped:
                raise CancelledError
            if self._take_free():
                ahead.append(self._submit(work, part))
            elif ahead:
                ahead.append(Future())
                ahead[-1].set_result(work(part))
            else:
                yield work(part)
            while ahead and (len(ahead) > self.threads or ahead[0].done()):
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _take_free(self) -> bool:
        with self._lock:
            taken = self._free > 0
            self._free -= taken
        return taken

    def _submit(self, work: Callable[[Part], Found], part: Part) -> Future[Found]:
        def then_free() -> Found:
            try:
                return work(part)
            finally:
                with self._lock:
                    self._free += 1

        return self._pool.submit(then_free)
