"""Seconds a global round in the setting of HIST Sec. VI-C, from formulas written out here.

60 clients, 784-300-10 network, H = 20, E = 5, V0 = 1e6 cycles, B = 10 MHz, 10 antennas, cap 1.5.
The figures were computed beforehand with another program, over 200 draws of CPUs and channels.
"""

from __future__ import annotations

import numpy as np
import pytest

from histfl.sizing import CutLayers, SizingProblem, optimised, size, uniform
from histfl.wireless.costs import AffineCost, AirCompCost, Cost

PARAMETERS = 238_510
UNITS = CutLayers(np.array([300]), np.array([784 + 1 + 10]), 10)
REFERENCE = {  # cells: FDMA uniform, optimised; AirComp uniform, optimised
    2: (4.74, 4.16, 0.113, 0.0989),
    4: (1.20, 1.03, 0.0563, 0.0490),
    6: (0.535, 0.459, 0.0375, 0.0324),
}


def draw_costs(cells: int, generator: np.random.Generator) -> tuple[AffineCost, AirCompCost]:
    clients = 60 // cells
    fast = (np.arange(cells) >= cells / 2)[:, None]
    cpu_hz = np.where(fast, 2e9, 1e9) * (1 + generator.random((cells, clients)))
    gain = generator.gamma(10, size=(cells, clients))
    rate = 10e6 / clients * np.log2(1 + np.where(fast, 1e4, 1e3) * gain)
    compute = 20 * 1e6 / (cpu_hz * PARAMETERS)
    nothing = np.zeros(cells)
    fdma = AffineCost(nothing, 5 * (compute + 32 / rate).max(axis=1))
    aircomp = AirCompCost(nothing, 5 * compute.max(axis=1), 5 * 1e-3 / 14, int(10e6 / 15e3))
    return fdma, aircomp


def mean_seconds(layers: CutLayers, costs: list[Cost]) -> tuple[float, float]:
    slowest = [
        [size(SizingProblem(layers, cost), policy).seconds.max() for policy in (uniform, optimised)]
        for cost in costs
    ]
    return tuple(np.mean(slowest, axis=0))


@pytest.mark.parametrize("cells", REFERENCE)
def test_seconds_a_round(cells: int) -> None:
    generator = np.random.default_rng(cells)
    fdma, aircomp = zip(*(draw_costs(cells, generator) for _ in range(200)), strict=True)
    expected = REFERENCE[cells]
    plain = [
        *mean_seconds(CutLayers.plain(PARAMETERS), fdma),
        *mean_seconds(CutLayers.plain(PARAMETERS), aircomp),
    ]
    assert plain == pytest.approx(expected, rel=0.03)
    units = [*mean_seconds(UNITS, fdma), *mean_seconds(UNITS, aircomp)]
    for in_units, in_parameters in zip(units, plain, strict=True):
        assert in_parameters * 0.999 <= in_units <= in_parameters * 1.015
