"""Memory: how much of it the clients in training may take, and what the system does with this process' own (large pages
for random reads, freed memory kept for the next step)."""

from __future__ import annotations

import ctypes
import numbers
import sys
from functools import cache

import torch

from histfl.data.inputs import bytes_of_a_sample
from histfl.engines.blocks import Trainer
from histfl.errors import UsageError
from histfl.partition import State
from histfl.training import Task

COPIES = 3  # of a client's model during a step: itself, its gradient, what is handed on, and one more for each slot
MOST_GIGABYTES = 1e9  # far beyond any machine


def check_budget(gigabytes: object) -> None:
    """A UsageError where a budget (None: all there is) is not a positive number of gigabytes."""
    if gigabytes is None:
        return
    number = isinstance(gigabytes, numbers.Real) and not isinstance(gigabytes, bool)
    if not number or not 0 < gigabytes <= MOST_GIGABYTES:  # type: ignore[operator]
        shown = f"{gigabytes!r:.80}" if not isinstance(gigabytes, int) else f"{min(gigabytes, 10**100):.3g}"
        raise UsageError(
            f"--memory-gb {shown}: it must be a positive number of gigabytes, at most {MOST_GIGABYTES:g}, such as 4; "
            "leave it out for all there is"
        )


def within(gigabytes: float | None, trainer: Trainer, task: Task, cores: int) -> Trainer:
    """`trainer` that keeps to so many gigabytes (10^9 bytes; None: all there is) by training fewer clients at
    once. On a CPU they are shared by the blocks of all cores in training or waiting to be read: of all cores, since
    the result must not depend on threads."""
    device = task.data.device
    if device.type == "cpu":
        return (
            trainer if gigabytes is None else _FewerClients(gigabytes * 1e9 / (2 * cores + 1), trainer, task)
        )
    # Beyond the fraction torch's allocator reports a full memory, and blocks are halved until they fit.
    total = torch.cuda.get_device_properties(device).total_memory
    fraction = 1.0 if gigabytes is None else min(1.0, gigabytes * 1e9 / total)
    torch.cuda.set_per_process_memory_fraction(fraction, device)
    return trainer


class _FewerClients:
    """A trainer whose blocks fit into so many bytes each, or hold one client."""

    def __init__(self, bytes_per_block: float, trainer: Trainer, task: Task) -> None:
        self.trainer, self.task, self.bytes_per_block = trainer, task, bytes_per_block
        self.train = trainer.train

    def clients_at_once(self, start: State) -> int | None:
        model = sum(tensor.numel() * tensor.element_size() for tensor in start.values())
        batch = self.task.local.batch_size * bytes_of_a_sample(self.task.data.inputs)
        copies = COPIES + max(1, len(self.task.local.slots([next(iter(start.values())).new_zeros(1, 1)])))
        fitting = max(1, int(self.bytes_per_block / (copies * model + batch)))
        most = self.trainer.clients_at_once(start)
        return fitting if most is None else min(most, fitting)


_PAGE = 2**21  # bytes of a large page on x86-64 and most others
_HUGEPAGE, _COLLAPSE = 14, 25  # MADV_HUGEPAGE and MADV_COLLAPSE of linux/mman.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no more on 64-bit machines
_TRIM_ABOVE = 2**31 - 1


def put_in_large_pages(tensor: torch.Tensor) -> bool:
    """Ask Linux (6.1 or later) to hold a tensor's memory in large pages; whether it does.

    A batch of 50 images lies at 50 random places. In pages of 4 kB almost every place is one that the
    processor must look up first, which makes up a fifth to a third of the time of copying them.
    """
    start = -(-tensor.data_ptr() // _PAGE) * _PAGE
    end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // _PAGE * _PAGE
    if sys.platform != "linux" or tensor.device.type != "cpu" or end <= start:
        return False
    try:
        madvise = ctypes.CDLL("libc.so.6").madvise
    except (OSError, AttributeError):
        return False
    span = ctypes.c_void_p(start), ctypes.c_size_t(end - start)
    return all(madvise(*span, advice) == 0 for advice in (_HUGEPAGE, _COLLAPSE))


@cache
def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for good; whether that is possible here (glibc alone).

    A training step allocates and frees the same few megabytes again and again. By default glibc hands
    them back to the system each time, and the system clears each page anew: a fifth of a LeNet-5 step.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, _TRIM_ABOVE))
