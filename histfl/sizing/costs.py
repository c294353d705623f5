"""What a cell's submodel costs in seconds, and the largest submodel that a number of seconds allows.

The sizing algorithms ask a cost only these two questions, so a new latency model is one new class here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from histfl.errors import UsageError
from histfl.network.network import Floats, Ints

MAX_SIZE = 2**52  # a count beyond this is not exact in float64


class Cost(Protocol):
    """Seconds a global round takes in every cell, non-decreasing in the cell's number of parameters."""

    @property
    def num_cells(self) -> int:
        """How many cells there are."""
        ...

    def seconds(self, sizes: Ints) -> Floats:
        """Seconds for sizes [..., cell]; same shape."""
        ...

    def largest_size(self, threshold: float) -> Ints:
        """[cell]: the largest whole size with `seconds <= threshold`, in -1..MAX_SIZE (-1: not even 0)."""
        ...


@dataclass(frozen=True)
class AffineCost:
    """fixed_j + slope_j s seconds for s parameters: HIST Eq. (20), the OMA uplink. Arrays [cell].

    With FDMA, slope_j = E max_i (H V0 / (F_i d) + 32 / R_i) and nothing is fixed. Exact as long as a
    cell's fixed seconds would not pay for 10^15 parameters of its own.
    """

    fixed: Floats
    slope: Floats

    def __post_init__(self) -> None:
        _check(fixed=self.fixed, slope=self.slope)

    @property
    def num_cells(self) -> int:
        return len(self.slope)

    def seconds(self, sizes: Ints) -> Floats:
        return self.fixed + self.slope * sizes

    def largest_size(self, threshold: float) -> Ints:
        return _settle(self, np.floor((threshold - self.fixed) / self.slope), threshold)


@dataclass(frozen=True)
class AirCompCost:
    """fixed_j + slope_j s + slot_s ceil(s / parameters_per_slot) seconds: HIST Eq. (38). Arrays [cell].

    `slope` is the computation, E max_i H V0 / (F_i d); `slot_s` is E symbol durations; a slot carries
    floor(B / sub-channel) parameters. Deviation: Eq. (37) divides without rounding up; a slot that is
    partly filled lasts as long as a full one.
    """

    fixed: Floats
    slope: Floats
    slot_s: float
    parameters_per_slot: int

    def __post_init__(self) -> None:
        _check(fixed=self.fixed, slope=self.slope)
        if not (np.isfinite(self.slot_s) and self.slot_s >= 0):
            raise UsageError(f"slot_s = {self.slot_s}; a slot lasts zero seconds or more")
        if self.parameters_per_slot < 1:
            raise UsageError(
                f"parameters_per_slot = {self.parameters_per_slot}; a slot must carry at least one: "
                "widen the band to at least one sub-channel"
            )

    @property
    def num_cells(self) -> int:
        return len(self.slope)

    def seconds(self, sizes: Ints) -> Floats:
        return self.fixed + self.slope * sizes + self.slot_s * -(-sizes // self.parameters_per_slot)

    def largest_size(self, threshold: float) -> Ints:
        left = threshold - self.fixed
        per_slot = self.parameters_per_slot
        full = np.maximum(np.floor(left / (self.slope * per_slot + self.slot_s)), -1)
        partly = np.floor((left - self.slot_s * (full + 1)) / self.slope)
        return _settle(self, np.clip(partly, full * per_slot, (full + 1) * per_slot), threshold)


@dataclass(frozen=True)
class UnitCost:
    """Another cost counted in units of `weight` parameters on top of `offset` parameters, [cell] or one."""

    cost: Cost
    weight: int
    offset: Ints | int

    @property
    def num_cells(self) -> int:
        return self.cost.num_cells

    def seconds(self, sizes: Ints) -> Floats:
        return self.cost.seconds(self.offset + self.weight * sizes)

    def largest_size(self, threshold: float) -> Ints:
        left: Ints = self.cost.largest_size(threshold) - self.offset
        return np.maximum(left // self.weight, -1)


def _settle(cost: Cost, guess: Floats, threshold: float) -> Ints:
    """`guess` is right but for rounding: step to the size that `seconds` itself puts at the threshold."""
    sizes = np.clip(guess, -1, MAX_SIZE).astype(np.int64)
    sizes += cost.seconds(sizes + 1) <= threshold
    sizes -= (cost.seconds(sizes) > threshold) & (sizes >= 0)
    return np.minimum(sizes, MAX_SIZE)


def _check(**arrays: Floats) -> None:
    lengths = {name: np.shape(values) for name, values in arrays.items()}
    if len(set(lengths.values())) != 1 or any(len(shape) != 1 or shape[0] < 1 for shape in lengths.values()):
        raise UsageError(f"costs need arrays [cell] of one length, not {lengths}")
    for name, values in arrays.items():
        good = np.isfinite(values) & ((values > 0) if name == "slope" else (values >= 0))
        if (bad := np.flatnonzero(~good)).size:
            need = "positive" if name == "slope" else "zero or more"
            raise UsageError(f"{name} of cell {bad[0]} is {values[bad[0]]:g}; it must be {need} and finite")
