"""What the system does with this process' memory: large pages for random reads, freed memory kept for the next step."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import torch

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
