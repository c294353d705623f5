"""Threads that share work."""

from collections.abc import Iterator
from itertools import count
from threading import Barrier

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.engines.threads import ThreadPool


@settings(deadline=None, max_examples=30)
@given(threads=st.integers(1, 4), sizes=st.lists(st.integers(0, 12), max_size=6))
def test_all_jobs_and_their_parts_are_done_in_order(threads: int, sizes: list[int]) -> None:
    pool = ThreadPool(threads)

    def job(size: int) -> list[int]:
        return list(pool.parts(lambda part: part**2, range(size)))

    assert pool.jobs(job, sizes) == [[part**2 for part in range(size)] for size in sizes]


def test_threads_without_a_job_help() -> None:
    pool, together = ThreadPool(3), Barrier(3, timeout=60)

    def part(_: int) -> int:
        together.wait()  # ends when three parts are in progress at once
        return torch.get_num_threads()

    assert pool.jobs(lambda parts: list(pool.parts(part, parts)), [range(3)]) == [[1, 1, 1]]


def test_no_more_parts_are_begun_than_are_read_soon() -> None:
    pool, begun = ThreadPool(2), count()

    def parts() -> Iterator[int]:
        while True:
            yield next(begun)

    def job(_: int) -> int:
        found = pool.parts(lambda part: part, parts())
        return next(found)

    assert pool.jobs(job, [0]) == [0]
    assert next(begun) <= 4


def test_an_error_ends_the_other_jobs_at_their_next_part() -> None:
    pool = ThreadPool(2)

    def job(endless: bool) -> None:
        if not endless:
            raise ValueError("of a job")
        for _ in pool.parts(lambda part: part, count()):
            pass

    with pytest.raises(ValueError, match="of a job"):
        pool.jobs(job, [False, True])
