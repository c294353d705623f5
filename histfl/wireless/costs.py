"""What a cell's submodel costs in seconds, and the largest submodel that a number of seconds allows.

The sizing algorithms ask a cost only these two questions, so a new latency model is one new class here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from histfl.arrays import Floats, Ints
from histfl.errors import UsageError

MAX_SIZE = 2**52  # a count beyond this is not exact in float64
TOLERANCE = 1e-3  # by which a chord of a table may lie above the cost
MAX_HALVINGS = 4


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

    exact: ClassVar[bool] = True  # whether these are the clock's own seconds
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

    exact: ClassVar[bool] = True  # whether these are the clock's own seconds
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


@dataclass(frozen=True, eq=False)
class TabulatedCost:
    """`table` [size, cell]: seconds at `sizes` [size], straight between them and beyond, plus whole slots as over the air.

    For clients whose computing does not go in proportion to parameters: which of them is the slowest
    depends on the size. `sizes` begin with 0, and neither they nor the seconds fall.
    """

    exact: ClassVar[bool] = False  # whether these are the clock's own seconds
    sizes: Ints
    table: Floats
    slot_s: float = 0.0
    parameters_per_slot: int = 1

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or self.sizes[0] != 0 or (np.diff(self.sizes) < 1).any():
            raise UsageError(f"sizes {self.sizes.tolist()} of a table must ascend from 0")
        if not np.isfinite(self.table).all() or (np.diff(self.table, axis=0) < 0).any():
            raise UsageError("seconds of a table must be finite and never fall as the size grows")

    @property
    def num_cells(self) -> int:
        return int(self.table.shape[1])

    def seconds(self, sizes: Ints) -> Floats:
        place = np.clip(np.searchsorted(self.sizes, sizes, side="right") - 1, 0, len(self.sizes) - 2)
        cell = np.arange(self.num_cells)
        start, left, right = self.sizes[place], self.table[place, cell], self.table[place + 1, cell]
        share = (sizes - start) / (self.sizes[place + 1] - start)
        slots = self.slot_s * -(-sizes // self.parameters_per_slot)
        return np.asarray(left * (1 - share) + right * share + slots)

    def largest_size(self, threshold: float) -> Ints:
        """By search in the interval of the table: straight to where the chord meets the threshold, else by halves."""
        ends = np.append(self.sizes, MAX_SIZE)
        at_ends = self.seconds(np.broadcast_to(ends[:, None], (len(ends), self.num_cells)))
        reached = (at_ends <= threshold).sum(axis=0)  # ends [cell] that the threshold allows
        low = np.append(-1, ends)[reached]
        high = np.append(ends, MAX_SIZE + 1)[reached]
        straight = True
        while (high - low > 1).any():
            guess = self._crossing(low, high, threshold) if straight else (low + high) // 2
            for trial in (guess, guess + 1):
                inside = (low < trial) & (trial < high)
                fits = self.seconds(trial) <= threshold
                low, high = np.where(inside & fits, trial, low), np.where(inside & ~fits, trial, high)
            straight = not straight
        return np.asarray(low, dtype=np.int64)

    def _crossing(self, low: Ints, high: Ints, threshold: float) -> Ints:
        before, after = self.seconds(low), self.seconds(high)
        share = (threshold - before) / np.maximum(after - before, np.finfo(np.float64).tiny)
        return np.asarray(low + np.floor(np.clip(share, 0, 1) * (high - low)), dtype=np.int64)


def tabulated(
    seconds: Callable[[int], Floats],
    sizes: Sequence[int],
    *,
    slot_s: float = 0.0,
    parameters_per_slot: int = 1,
) -> TabulatedCost:
    """The table of `seconds` [cell] of a size that all cells have, at `sizes` and where they are not enough.

    Between `sizes` the seconds must be convex: the slowest of clients each of whom goes straight. So they are
    straight where the middle of an interval lies on its chord. Other intervals are halved, until the middle is
    within TOLERANCE or for MAX_HALVINGS times; the chords are never below the seconds.
    """
    found = {size: seconds(size) for size in sizes}
    open_ones = [(low, high, MAX_HALVINGS) for low, high in itertools.pairwise(sorted(found))]
    while open_ones:
        low, high, left = open_ones.pop()
        middle = (low + high) // 2
        if left == 0 or low == 0 or middle == low:  # nobody asks for less than the smallest size
            continue
        found[middle] = seconds(middle)
        chord = found[low] + (found[high] - found[low]) * ((middle - low) / (high - low))
        if (chord - found[middle] > TOLERANCE * found[middle]).any():
            open_ones += [(low, middle, left - 1), (middle, high, left - 1)]
    ascending = sorted(found)
    table = np.maximum.accumulate([found[size] for size in ascending])  # rounding alone could make one fall
    return TabulatedCost(np.array(ascending), table, slot_s, parameters_per_slot)


AnyCost = AffineCost | AirCompCost | TabulatedCost


def mean_cost(costs: Sequence[AnyCost]) -> AnyCost:
    """The mean of costs that differ by what was drawn alone: seconds are linear in the slope."""
    tables = [cost for cost in costs if isinstance(cost, TabulatedCost)]
    if not tables:
        slope = np.mean([cost.slope for cost in costs if not isinstance(cost, TabulatedCost)], axis=0)
        return dataclasses.replace(costs[0], slope=slope)
    first = tables[0]
    sizes = np.unique(np.concatenate([cost.sizes for cost in tables]))
    columns = np.broadcast_to(sizes[:, None], (len(sizes), first.num_cells))
    seconds = [dataclasses.replace(cost, slot_s=0.0).seconds(columns) for cost in tables]
    return dataclasses.replace(first, sizes=sizes, table=np.mean(seconds, axis=0))


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
