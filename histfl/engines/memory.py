"""Freed memory kept for the next step."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no more on 64-bit machines
_TRIM_ABOVE = 2**31 - 1


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
