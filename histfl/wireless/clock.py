"""The clock of a global round: who waits for whom, in seconds, and what it takes in joules (HIST Sec. IV-A).

What depends on arrays alone are pure functions that broadcast; the last axis is the client. SI units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from histfl import arguments
from histfl.arrays import Floats, Ints
from histfl.errors import UsageError, shown
from histfl.network import Network
from histfl.settings import SMALLEST
from histfl.training import CellSchedule, RoundCost, Uplink
from histfl.training.jobs import CellLink
from histfl.wireless.costs import AffineCost, AirCompCost, AnyCost, tabulated
from histfl.wireless.rates import MOST_SUB_CHANNELS, checked_array, uplink_seconds

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
    return checked_array(cpu_hz, "a cpu_hz", "it must be positive and finite", lambda hertz: hertz > 0)


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


@dataclass(frozen=True)
class Latency:
    """Seconds of the transmissions of a round by the numbers s that each of them sends:

        bits_per_parameter s coded / rates + fixed_s + slot_s ceil(s / parameters_per_slot)

    `rates` is [transmission], or one, in bits a second (HIST Eq. (18)); the rest is alike for all of them. `coded` is
    1 where a number takes its average bits, and more or less where a codec writes an update in others. `on_air` is the
    share of the seconds in which the client transmits.
    """

    rates: Floats | float = math.inf
    bits_per_parameter: float = 32.0
    fixed_s: float = 0.0
    slot_s: float = 0.0
    parameters_per_slot: int = 1
    on_air: Floats | float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("bits_per_parameter", SMALLEST), ("fixed_s", 0.0), ("slot_s", 0.0)):
            object.__setattr__(self, name, arguments.between(name, getattr(self, name), least, 1 / SMALLEST))
        arguments.whole("parameters_per_slot", self.parameters_per_slot, MOST_SUB_CHANNELS)
        if not (arguments.numbers("rates", self.rates) >= SMALLEST).all():
            raise UsageError(f"rates = {shown(self.rates)}; they must be positive, in bits a second")
        on_air = arguments.numbers("on_air", self.on_air)
        if not ((on_air >= 0) & (on_air <= 1)).all():
            raise UsageError(f"on_air = {shown(self.on_air)}; a share of the seconds is from 0 to 1")

    def seconds(self, parameters: Ints, *, coded: Floats | float = 1.0) -> Floats:
        """[transmission], of as many numbers each."""
        slots = np.ceil(parameters / self.parameters_per_slot)
        sending = uplink_seconds(parameters * coded, self.rates, bits_per_parameter=self.bits_per_parameter)
        return sending + (self.fixed_s + slots * self.slot_s)

    @property
    def proportional(self) -> Latency:
        """The part of it that goes in proportion to the numbers sent."""
        return replace(self, fixed_s=0.0, slot_s=0.0)


class Radio(Uplink, Protocol):
    """An uplink whose clock can be told: what a run, the sizes and a plan ask."""

    def latency(self, network: Network, sent: Transmissions, links: Sequence[CellLink]) -> Latency:
        """How long the transmissions take by what is sent; `links` are those that `draw` gave."""
        ...


def latency_of(uplink: Radio, network: Network, sent: Transmissions, links: Sequence[CellLink]) -> Latency:
    """How long the transmissions take, or a UsageError where an uplink of the user's own does not say it."""
    whose = f"latency of the uplink {type(uplink).__name__}"
    try:
        found: Any = uplink.latency(network, sent, links)
    except UsageError as error:
        raise UsageError(f"{whose}: {error}") from error
    if not isinstance(found, Latency):
        raise UsageError(f"{whose} returns {shown(found)}; it must return a histfl.wireless.clock.Latency")
    for name in ("rates", "on_air"):
        if (shape := np.shape(getattr(found, name))) not in ((), sent.client.shape):
            raise UsageError(
                f"{whose} has {name} of shape {shape} for {len(sent.client)} transmissions; give one number, or one for each"
            )
    return found


@dataclass(frozen=True)
class Clock:
    """The clients' computing and their uplink, together: HIST Eq. (20) by the submodels' sizes."""

    computing: Computing
    uplink: Radio

    def cost(
        self,
        network: Network,
        schedules: Sequence[CellSchedule],
        links: Sequence[CellLink],
        parameters: Ints,
        *,
        coded: Floats | float = 1.0,
    ) -> RoundCost:
        """What a round costs when cell j's clients train and send parameters[j] numbers, in `coded` [cell] times the
        bits of as many average ones."""
        sent = Transmissions.of(network, schedules)
        latency = latency_of(self.uplink, network, sent, links)
        return _cost(network, sent, parameters, self.computing, latency, coded)

    def joules(
        self,
        network: Network,
        schedules: Sequence[CellSchedule],
        links: Sequence[CellLink],
        parameters: Ints,
        coded: Floats,
    ) -> Floats:
        """[choice], those of the rounds that `cost` knows, for some choices of submodels [choice, cell]: who waits for
        whom is not asked, which takes longest."""
        sent = Transmissions.of(network, schedules)
        latency, computing = self.uplink.latency(network, sent, links), self.computing
        found = []
        for sizes, bits in zip(parameters, coded, strict=True):
            trained = sizes[sent.place]
            on_air = latency.seconds(trained, coded=bits[sent.place]) * latency.on_air
            found.append(_joules(network, sent, computing, computing.cycles(trained), on_air))
        return np.array(found)

    def foretold(
        self,
        cost: AnyCost,
        network: Network,
        schedules: Sequence[CellSchedule],
        links: Sequence[CellLink],
        parameters: Ints,
        coded: Floats,
    ) -> float:
        """The seconds of a round of those submodels, whose `cost` by size is there already: that of it where it says
        all, for it has no bits of single submodels and may be a table."""
        if cost.exact and (coded == 1.0).all():
            return float(cost.seconds(parameters).max())
        return self.cost(network, schedules, links, parameters, coded=coded).seconds

    def cost_by_size(
        self, network: Network, schedules: Sequence[CellSchedule], links: Sequence[CellLink]
    ) -> AnyCost:
        """Seconds of a global round in each of its cells, by the submodel's size (HIST Sec. IV-B, V-E).

        What is alike for all transmissions adds up over the edge rounds. The rest is in proportion to the size where
        a step has the paper's cycles, so that one measured size tells all. Counted cycles go straight between the
        counted sizes, and there a client's seconds do.
        """
        sent = Transmissions.of(network, schedules)
        latency, cells = latency_of(self.uplink, network, sent, links), len(schedules)
        edge_rounds = np.array([len(schedule.sampled) for schedule in schedules])
        fixed = edge_rounds * latency.fixed_s
        slot_s, per_slot = int(edge_rounds[0]) * latency.slot_s, latency.parameters_per_slot

        def seconds(size: int) -> Floats:
            sizes = np.full(cells, size, dtype=np.int64)
            return _cost(network, sent, sizes, self.computing, latency.proportional).cell_seconds

        if (counted := self.computing.counted) is not None:
            sizes = (0, *counted.parameters)
            return tabulated(
                lambda size: seconds(size) + fixed, sizes, slot_s=slot_s, parameters_per_slot=per_slot
            )
        slope = seconds(10**6) / 10**6
        return AirCompCost(fixed, slope, slot_s, per_slot) if slot_s else AffineCost(fixed, slope)


def _cost(
    network: Network,
    sent: Transmissions,
    parameters: Ints,
    computing: Computing,
    latency: Latency,
    coded: Floats | float = 1.0,
) -> RoundCost:
    of_cells = np.broadcast_to(coded, parameters.shape)
    seconds = latency.seconds(parameters[sent.place], coded=of_cells[sent.place])
    return round_cost(network, sent, parameters, computing, seconds, on_air=latency.on_air)


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
    working = compute_seconds(cycles, network.cpu_hz[sent.client])
    total = working + uplink_seconds
    # The slowest transmission of each slot: the last one after sorting by (slot, seconds).
    order = np.lexsort((total, sent.slot))
    slowest = order[np.flatnonzero(np.diff(sent.slot[order], append=-1))]
    cell_seconds = np.bincount(sent.place[slowest], total[slowest], len(parameters)).astype(np.float64)
    waited_for = slowest[sent.place[slowest] == cell_seconds.argmax()]
    return RoundCost(
        cell_seconds=cell_seconds,
        compute_seconds=float(working[waited_for].sum()),
        uplink_seconds=float(uplink_seconds[waited_for].sum()),
        energy_joules=_joules(network, sent, computing, cycles, uplink_seconds * on_air),
    )


def _joules(
    network: Network, sent: Transmissions, computing: Computing, cycles: Floats, transmit_seconds: Floats
) -> float:
    """Of all clients together in a global round, by what computing and sending take them, both [transmission]."""
    energy = energy_joules(
        cycles,
        network.cpu_hz[sent.client],
        transmit_power_w=network.transmit_power_w[sent.client],
        transmit_seconds=transmit_seconds,
        switched_capacitance=computing.energy_coefficient,
    )
    return float(energy.sum())
