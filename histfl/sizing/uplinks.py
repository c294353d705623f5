"""From a round's drawn uplink to the cost that the sizing algorithms ask (HIST Sec. IV-B, V-E)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from histfl.network import Network
from histfl.network.network import Floats
from histfl.sizing.costs import AffineCost, AirCompCost, AnyCost, tabulated
from histfl.training import CellSchedule, Uplink
from histfl.training.jobs import CellLink
from histfl.wireless.clock import Computing
from histfl.wireless.over_the_air import OverTheAir
from histfl.wireless.uplinks import Ideal


class Slots(TypedDict, total=False):
    """What a cost takes of an uplink that sends whole slots."""

    slot_s: float
    parameters_per_slot: int


def uplink_cost(
    uplink: Uplink, network: Network, schedules: Sequence[CellSchedule], links: Sequence[CellLink]
) -> AnyCost:
    """Seconds a global round takes in each of its cells, by the submodel's size.

    Over the air, sending takes a whole number of symbols in each edge round; otherwise it goes in proportion to
    the size. Computing does too where a step has the paper's cycles, so one measured size tells all. Counted
    cycles go straight between the counted sizes, and there a client's seconds do.
    """
    slots: Slots = {}
    measured, seen = uplink, links
    if isinstance(uplink, OverTheAir):
        slot_s = len(schedules[0].sampled) * uplink.symbol_s
        slots = {"slot_s": slot_s, "parameters_per_slot": uplink.sub_channels}
        measured, seen = Ideal(uplink.computing), [None] * len(links)

    def seconds(size: int) -> Floats:
        sizes = np.full(len(schedules), size, dtype=np.int64)
        return measured.cost(network, schedules, seen, sizes).cell_seconds

    computing: Computing | None = getattr(uplink, "computing", None)
    if computing is not None and computing.counted is not None:
        return tabulated(seconds, (0, *computing.counted.parameters), **slots)
    no_fixed_part, size = np.zeros(len(schedules)), 10**6
    slope = seconds(size) / size
    return AirCompCost(no_fixed_part, slope, **slots) if slots else AffineCost(no_fixed_part, slope)
