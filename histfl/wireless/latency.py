"""Seconds and joules of local work (HIST Sec. IV-A).

Pure functions of arrays that broadcast; the last axis is the client. SI units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from histfl.errors import UsageError
from histfl.network.network import Floats

CYCLES_PER_STEP = 1e6  # V0 of Sec. VI-C: one minibatch step of the full model, whichever model it is
OPERATIONS_PER_CYCLE = 4.0  # of a CPU that a phone or a small board has, in one thread
SWITCHED_CAPACITANCE = 1e-28  # kappa: joules = kappa * cycles * hertz^2


@dataclass(frozen=True)
class StepCycles:
    """CPU cycles of one local step at a few submodel sizes, both ascending; the last is the full model's.

    Between the sizes they go straight as the parameters do; below the first and beyond the last in proportion.
    """

    parameters: tuple[int, ...]
    cycles: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes, cycles = np.array((0, *self.parameters)), np.array((0.0, *self.cycles))
        if len(sizes) != len(cycles) or len(sizes) < 2 or (np.diff(sizes) <= 0).any():
            raise UsageError(f"parameters = {self.parameters}; give ascending sizes with their cycles")
        if not np.isfinite(cycles).all() or (np.diff(cycles) < 0).any():
            raise UsageError(f"cycles = {self.cycles}; a larger submodel takes no fewer, and all are finite")

    def __call__(self, parameters: npt.ArrayLike) -> Floats:
        """Of submodels of `parameters` numbers; same shape."""
        sizes = np.asarray(parameters, dtype=np.float64)
        found = np.interp(sizes, (0, *self.parameters), (0.0, *self.cycles))
        return np.asarray(found * np.maximum(sizes / self.parameters[-1], 1.0))


def step_cycles(
    parameters: npt.ArrayLike,
    *,
    full_parameters: int,
    local_steps: int,
    cycles_per_step: float = CYCLES_PER_STEP,
) -> Floats:
    """CPU cycles of one edge round at a client: H (|p_j| / d) V0, with |p_j| = `parameters`."""
    if full_parameters < 1:
        raise UsageError(f"full_parameters = {full_parameters}; a model has at least one parameter")
    if local_steps < 1:
        raise UsageError(f"local_steps = {local_steps}; a client takes at least one step")
    if not (math.isfinite(cycles_per_step) and cycles_per_step >= 0):
        raise UsageError(f"cycles_per_step = {cycles_per_step}; it must be at least 0 and finite")
    share = np.asarray(parameters, dtype=np.float64) / full_parameters
    return np.asarray(local_steps * share * cycles_per_step)


def compute_seconds(cycles: npt.ArrayLike, cpu_hz: npt.ArrayLike) -> Floats:
    """Time of `cycles` at `cpu_hz`: the first term of HIST Eq. (19)."""
    return np.asarray(np.asarray(cycles, dtype=np.float64) / _checked_cpu(cpu_hz))


def energy_joules(
    cycles: npt.ArrayLike,
    cpu_hz: npt.ArrayLike,
    *,
    transmit_power_w: npt.ArrayLike = 0.0,
    transmit_seconds: npt.ArrayLike = 0.0,
    switched_capacitance: float = SWITCHED_CAPACITANCE,
) -> Floats:
    """kappa * cycles * F^2 for computing, plus transmit power * time on air (not in the paper).

    In TDMA a client is on air for 1 / n of the uplink time: pass that share.
    """
    computing = switched_capacitance * np.asarray(cycles, dtype=np.float64) * _checked_cpu(cpu_hz) ** 2
    sending = np.asarray(transmit_power_w, dtype=np.float64) * np.asarray(transmit_seconds, dtype=np.float64)
    return np.asarray(computing + sending)


def _checked_cpu(cpu_hz: npt.ArrayLike) -> Floats:
    values = np.asarray(cpu_hz, dtype=np.float64)
    bad = ~(np.isfinite(values) & (values > 0))
    if np.any(bad):
        raise UsageError(f"a cpu_hz is {float(values[bad].flat[0])}; it must be positive and finite")
    return values
