"""Named random streams, all derived from one root seed.

A stream is named by a purpose and whole numbers such as (round, cell, client). Who draws, in which
order and on which device changes nothing, so engines agree with each other, methods are compared on
the same batches, and a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MULTIPLIER_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = -7723592293110705685  # 0x94D049BB133111EB


@dataclass(frozen=True)
class Seeds:
    """All random streams of a run."""

    root: int

    def key(self, purpose: str, *ids: int) -> int:
        """A 63-bit number that is unique to (root, purpose, ids)."""
        name = ":".join([str(self.root), purpose, *map(str, ids)])
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1

    def numpy(self, purpose: str, *ids: int) -> np.random.Generator:
        """A numpy generator for the named stream."""
        return np.random.Generator(np.random.Philox(key=self.key(purpose, *ids)))

    def torch(self, purpose: str, *ids: int) -> torch.Generator:
        """A torch generator for the named stream, on the CPU (a GPU's differs in its numbers)."""
        return torch.Generator().manual_seed(self.key(purpose, *ids))


def random_bits(key: int, *coordinates: torch.Tensor) -> torch.Tensor:
    """Pseudo-random int64 for every point of broadcast integer coordinates, the same on every device.

    A counter-based generator (SplitMix64's finaliser, chained over the coordinates): the value at a
    point depends on `key` and the point alone, so any subset can be drawn, in any order, in one
    tensor operation.
    """
    bits = torch.full((), key, dtype=torch.int64, device=coordinates[0].device)  # a copy would wait for a GPU
    for coordinate in coordinates:
        bits = _mix(bits + _GOLDEN * (coordinate.to(torch.int64) + 1))
    return bits


def random_uniform(key: int, *coordinates: torch.Tensor) -> torch.Tensor:
    """Float64 uniform in [0, 1) for every point of broadcast integer coordinates."""
    return _shift_right(random_bits(key, *coordinates), 11).to(torch.float64) * 2.0**-53


def random_normal(key: int, *coordinates: torch.Tensor) -> torch.Tensor:
    """Float64 from the normal distribution for every point of broadcast integer coordinates, by Box and Muller."""
    radius, turn = (
        random_uniform(key, *coordinates, torch.full((), which, device=coordinates[0].device))
        for which in (0, 1)
    )
    return (1 - radius).log_().mul_(-2).sqrt_().mul_((2 * math.pi * turn).cos_())


@contextmanager
def lent_to_layers(key: int, device: torch.device) -> Iterator[None]:
    """Random layers and initialisers draw from torch's global generators: lend them a stream for a while.

    Afterwards the global generators are as they were.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(key)  # torch.manual_seed formats a stack trace at every call
        if device.type == "cuda":
            torch.cuda.manual_seed(key)
        yield


def _mix(bits: torch.Tensor) -> torch.Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _MULTIPLIER_1
    bits = (bits ^ _shift_right(bits, 27)) * _MULTIPLIER_2
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: torch.Tensor, places: int) -> torch.Tensor:
    """Logical shift: torch's own >> copies the sign bit."""
    return (bits >> places) & ((1 << (64 - places)) - 1)
