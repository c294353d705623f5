"""The array types that signatures name, and memory for large ones."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def large_floats(shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Zeros [*shape], at least one, in large pages where the system has them: a data set is written there several
    times sooner."""
    # Memory that no other process shares: what Linux would share, as mmap does unless told, gets no large pages.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    memory = mmap.mmap(-1, 4 * math.prod(shape), **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.float32).reshape(shape)
