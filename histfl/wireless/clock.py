"""The clock of a global round: who waits for whom, in seconds, and what it takes in joules (HIST Sec. IV-A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from histfl.network import Network
from histfl.network.network import Floats, Ints
from histfl.training import CellSchedule, RoundCost
from histfl.wireless.latency import (
    CYCLES_PER_STEP,
    SWITCHED_CAPACITANCE,
    StepCycles,
    compute_seconds,
    energy_joules,
    step_cycles,
)


@dataclass(frozen=True)
class Computing:
    """The clients' local work: `cycles_per_step` CPU cycles for a step on the full model of
    `full_parameters`, less for a submodel in proportion, or as `counted` by its size; kappa = `energy_coefficient`."""

    local_steps: int
    full_parameters: int
    cycles_per_step: float = CYCLES_PER_STEP
    energy_coefficient: float = SWITCHED_CAPACITANCE
    counted: StepCycles | None = None

    def cycles(self, parameters: Ints) -> Floats:
        """Of one edge round of a client that trains `parameters` numbers."""
        if self.counted is not None:
            return self.local_steps * self.counted(parameters)
        return step_cycles(
            parameters,
            full_parameters=self.full_parameters,
            local_steps=self.local_steps,
            cycles_per_step=self.cycles_per_step,
        )


@dataclass(frozen=True)
class Transmissions:
    """Every transmission of a global round, flat: the sampled clients of each cell and edge round.

    `place` is the cell's among the round's; `client` counts in the whole network. `slot` counts (cell,
    edge round) pairs; the transmissions of a slot stand next to each other and happen at the same time.
    All arrays are [transmission].
    """

    place: Ints
    client: Ints
    slot: Ints
    senders: Ints

    @classmethod
    def of(cls, network: Network, schedules: Sequence[CellSchedule]) -> Transmissions:
        counts = np.array([len(clients) for schedule in schedules for clients in schedule.sampled])
        first_client = network.offsets[[schedule.cell for schedule in schedules]]
        place_of_slot = np.repeat(np.arange(len(schedules)), [len(s.sampled) for s in schedules])
        slot = np.repeat(np.arange(len(counts)), counts)
        position = np.concatenate([clients for schedule in schedules for clients in schedule.sampled])
        place = place_of_slot[slot]
        return cls(place=place, client=first_client[place] + position, slot=slot, senders=counts[slot])


def round_cost(
    network: Network,
    sent: Transmissions,
    parameters: Ints,
    computing: Computing,
    uplink_seconds: Floats,
    *,
    on_air: Floats | float = 1.0,
) -> RoundCost:
    """A global round in which cell j's clients train and send parameters[j] numbers (HIST Eq. (20)).

    `uplink_seconds` [transmission]; `on_air` is the share of that time in which the client transmits.
    An edge round lasts as long as its slowest client's computing and uplink (HIST Eq. (19)); a cell's edge rounds
    follow each other, and the cloud waits for the slowest cell.
    """
    cycles = computing.cycles(parameters[sent.place])
    cpu_hz = network.cpu_hz[sent.client]
    working = compute_seconds(cycles, cpu_hz)
    total = working + uplink_seconds
    # The slowest transmission of each slot: the last one after sorting by (slot, seconds).
    order = np.lexsort((total, sent.slot))
    slowest = order[np.flatnonzero(np.diff(sent.slot[order], append=-1))]
    cell_seconds = np.bincount(sent.place[slowest], total[slowest], len(parameters)).astype(np.float64)
    waited_for = slowest[sent.place[slowest] == cell_seconds.argmax()]
    energy = energy_joules(
        cycles,
        cpu_hz,
        transmit_power_w=network.transmit_power_w[sent.client],
        transmit_seconds=uplink_seconds * on_air,
        switched_capacitance=computing.energy_coefficient,
    )
    return RoundCost(
        cell_seconds=cell_seconds,
        compute_seconds=float(working[waited_for].sum()),
        uplink_seconds=float(uplink_seconds[waited_for].sum()),
        energy_joules=float(energy.sum()),
    )
