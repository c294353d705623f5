"""From a round's drawn uplink to the cost that the sizing algorithms ask (HIST Sec. IV-B, V-E)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from histfl.network import Network
from histfl.sizing.costs import AffineCost, AirCompCost
from histfl.training import CellSchedule, Uplink
from histfl.training.jobs import CellLink
from histfl.wireless.over_the_air import OverTheAir
from histfl.wireless.uplinks import Ideal


def uplink_cost(
    uplink: Uplink, network: Network, schedules: Sequence[CellSchedule], links: Sequence[CellLink]
) -> AffineCost | AirCompCost:
    """Seconds a global round takes in each of its cells, by the submodel's size.

    Computing and orthogonal uplinks take time in proportion to the size, so one measured size tells all;
    over the air, the time is a whole number of symbols in each edge round.
    """
    no_fixed_part = np.zeros(len(schedules))
    size = np.full(len(schedules), 10**6, dtype=np.int64)
    if isinstance(uplink, OverTheAir):
        computing = Ideal(uplink.computing).cost(network, schedules, [None] * len(links), size)
        edge_rounds = len(schedules[0].sampled)
        return AirCompCost(
            fixed=no_fixed_part,
            slope=computing.cell_seconds / size,
            slot_s=edge_rounds * uplink.symbol_s,
            parameters_per_slot=uplink.sub_channels,
        )
    return AffineCost(no_fixed_part, uplink.cost(network, schedules, links, size).cell_seconds / size)
