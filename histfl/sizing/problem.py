"""What is to be sized: the cut layers of a model, the cells' costs and the cap; and the answer, `Sizes`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from histfl.arrays import Floats, Ints
from histfl.errors import UsageError
from histfl.partition import check_enough_units
from histfl.wireless.costs import Cost

DEFAULT_CAP_RATIO = 1.5  # eps_th = 9 delta1^2, HIST Sec. VI-C


@dataclass(frozen=True)
class CutLayers:
    """The layers whose units are shared out: arrays [layer], and the parameters that every cell holds.

    Cell j's submodel has replicated + sum_l parameters_per_unit_l k_jl parameters. Plain parameters are
    one layer of d units of one parameter each (`CutLayers.plain`).
    """

    units: Ints
    parameters_per_unit: Ints
    replicated: int = 0
    names: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("units", "parameters_per_unit"):
            values = np.asarray(getattr(self, name), dtype=np.int64)
            object.__setattr__(self, name, values)
            if values.ndim != 1 or values.size == 0:
                raise UsageError(f"{name} has shape {values.shape}; it needs one number a layer")
            if (bad := np.flatnonzero(values < 1)).size:
                raise UsageError(f"{name} of layer {bad[0]} is {values[bad[0]]}; it must be at least 1")
        if not self.names:
            object.__setattr__(self, "names", tuple(f"layer {index}" for index in range(len(self.units))))
        if not len(self.units) == len(self.parameters_per_unit) == len(self.names):
            raise UsageError(
                f"{len(self.units)} units, {len(self.parameters_per_unit)} parameters_per_unit and "
                f"{len(self.names)} names; give one of each a layer"
            )
        if self.replicated < 0:
            raise UsageError(f"replicated = {self.replicated}; it cannot be negative")

    @classmethod
    def plain(cls, parameters: int) -> CutLayers:
        """HIST's own model: d parameters, any of which may go to any cell."""
        return cls(np.array([parameters]), np.array([1]), names=("parameters",))

    @property
    def num_layers(self) -> int:
        return len(self.units)

    def parameters(self, counts: Ints) -> Ints:
        """Submodel sizes [cell] in parameters for unit counts [cell, layer]."""
        return self.replicated + counts @ self.parameters_per_unit


@dataclass(frozen=True)
class SizingProblem:
    """Share the units out so that the slowest cell ends soonest, HIST Eq. (21) and (39).

    `cap_ratio` is rho = eps_th / (6 delta1^2): no cell may hold more than rho / num_cells of any layer.
    """

    layers: CutLayers
    cost: Cost
    cap_ratio: float = DEFAULT_CAP_RATIO

    @property
    def num_cells(self) -> int:
        return self.cost.num_cells

    def caps(self) -> Ints:
        """[layer]: the most units a cell may hold, floor(rho K_l / N); `UsageError` where that cannot do."""
        if not self.cap_ratio >= 1:
            raise UsageError(
                f"cap ratio eps_th / (6 delta1^2) = {self.cap_ratio:g}: cells that hold at most "
                f"{self.cap_ratio:g}/{self.num_cells} of the model cannot cover it; it must be at least 1"
            )
        check_enough_units(self.layers.units, self.num_cells, self.layers.names)
        units = self.layers.units
        # An infinite ratio means no cap. The nudge keeps a cap such as 1.2 * 10 / 4 whole.
        caps = np.floor(np.minimum(self.cap_ratio * units / self.num_cells * (1 + 1e-12), units)).astype(
            np.int64
        )
        if (short := np.flatnonzero(caps * self.num_cells < units)).size:
            layer = int(short[0])
            need = math.ceil(units[layer] / self.num_cells) * self.num_cells / units[layer]
            raise UsageError(
                f"{self.layers.names[layer]}: {units[layer]} units do not fit {self.num_cells} cells of at "
                f"most {caps[layer]} each (cap ratio {self.cap_ratio:g}); raise the cap ratio to at least "
                f"{need:.4g}, or cut {caps[layer] * self.num_cells} units or fewer"
            )
        return caps


@dataclass(frozen=True)
class Sizes:
    """Units for every cell, what they amount to, and a certificate.

    counts [cell, layer]; parameters [cell]; seconds [cell] a global round; `bound`: no sizes within the
    cap are faster than this many seconds; `gap`: slowest cell / bound - 1 (0: proven optimal).
    """

    counts: Ints
    parameters: Ints
    seconds: Floats
    bound: float
    gap: float


def cap_ratio(threshold: float, cell_divergence: float) -> float:
    """rho = eps_th / (6 delta1^2), HIST Eq. (21c)."""
    if not (threshold > 0 and cell_divergence > 0):
        raise UsageError(f"eps_th = {threshold:g} and delta1^2 = {cell_divergence:g} must both be positive")
    return threshold / (6 * cell_divergence)


def imbalance(counts: Ints, layers: CutLayers) -> float:
    """N max_{j,l} k_jl / K_l: 1 for equal cells, at most the cap ratio; N d_max / d for plain parameters."""
    return float(len(counts) * (counts / layers.units).max())
