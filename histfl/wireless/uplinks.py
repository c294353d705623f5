"""The uplinks: how the clients' submodels reach their edge server, in which time, with which error.

A new uplink is a frozen dataclass with `draw`, `latency` and `aggregate` (`histfl.training.jobs.Uplink` and
`histfl.wireless.clock.Radio` say what they mean), and a line in UPLINKS.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_type_hints

import numpy as np
import torch

from histfl import arguments
from histfl.arrays import Floats
from histfl.errors import UsageError
from histfl.network import Network
from histfl.seeds import Seeds
from histfl.training import CellSchedule, State, mean_of_clients
from histfl.wireless.aircomp import OverTheAir
from histfl.wireless.channels import Channel, Rayleigh, channel_gains, draw_channels
from histfl.wireless.clock import Latency, Radio, Transmissions
from histfl.wireless.rates import (
    DEFAULT_ANTENNAS,
    DEFAULT_BANDWIDTH_HZ,
    fdma_rates,
    tdma_rates,
)


@dataclass(frozen=True)
class Ideal:
    """No radio at all: an exact mean in no time."""

    def draw(
        self, network: Network, schedules: Sequence[CellSchedule], round: int, seeds: Seeds
    ) -> Sequence[None]:
        return [None] * len(schedules)

    def latency(self, network: Network, sent: Transmissions, links: Sequence[None]) -> Latency:
        return Latency()

    def aggregate(
        self, start: State, finals: Iterable[State], link: None, edge_round: int, learning_rate: float
    ) -> tuple[State, torch.Tensor]:
        return mean_of_clients(finals), torch.zeros(())


@dataclass(frozen=True)
class Orthogonal:
    """Each client in its own share of the band (FDMA) or of the time (TDMA); error-free (HIST Sec. IV-A).

    Channels are drawn once a global round for the clients that send in it.
    """

    access: Literal["fdma", "tdma"] = "fdma"
    bandwidth_hz: float = DEFAULT_BANDWIDTH_HZ
    antennas: int = DEFAULT_ANTENNAS
    bits_per_parameter: float = 32.0
    channel: Channel = field(default_factory=Rayleigh)
    double_count_clients: bool = False
    noise_scales_with_band: bool = False

    def draw(
        self, network: Network, schedules: Sequence[CellSchedule], round: int, seeds: Seeds
    ) -> Sequence[Floats]:
        """A cell's link: the maximal-ratio gains ||channel||^2 of its transmissions, in their order."""
        links = []
        for schedule in schedules:
            sent = np.concatenate(schedule.sampled)
            clients, places = np.unique(sent, return_inverse=True)
            generator = seeds.torch("channel", round, schedule.cell)
            channels = draw_channels(self.channel, len(clients), self.antennas, generator)
            links.append(channel_gains(channels)[places])
        return links

    def latency(self, network: Network, sent: Transmissions, links: Sequence[Floats]) -> Latency:
        snr, gains = network.snr[sent.client], np.concatenate(links)
        if self.access == "fdma":
            rates = fdma_rates(
                snr,
                gains,
                sent.senders,
                bandwidth_hz=self.bandwidth_hz,
                noise_scales_with_band=self.noise_scales_with_band,
                double_count_clients=self.double_count_clients,
            )
        else:
            rates = tdma_rates(
                snr,
                gains,
                sent.senders,
                bandwidth_hz=self.bandwidth_hz,
                double_count_clients=self.double_count_clients,
            )
        on_air = 1.0 if self.access == "fdma" else 1.0 / sent.senders
        return Latency(rates, self.bits_per_parameter, on_air=on_air)

    def aggregate(
        self, start: State, finals: Iterable[State], link: Floats, edge_round: int, learning_rate: float
    ) -> tuple[State, torch.Tensor]:
        return mean_of_clients(finals), torch.zeros(())


@dataclass(frozen=True)
class UplinkKind:
    """An uplink as the rest of the package knows it.

    `make` gives it, from those settings of the section `uplink` that its signature names; a name that is none of the
    section's own is an option of this kind, checked by its annotation. `network` are the keys of the section `network`
    that it reads. `noisy`: the edge has the mean with an error, which Theorem 3 counts. `instant`: sending takes no
    time. `undrawn_time`: the time depends on nothing that is drawn. `redrawn`: channels are drawn in every edge round,
    not once a global one. `analog`: numbers are sent as amplitudes, which no codec turns into bits. A plan compares the
    kinds of different `plan_as` (None: the own name).
    """

    make: Callable[..., Radio]
    about: str
    network: tuple[str, ...] = ("snr_db", "transmit_power_w")
    noisy: bool = False
    instant: bool = False
    undrawn_time: bool = False
    redrawn: bool = False
    analog: bool = False
    plan_as: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The keys of the section `uplink` that it reads."""
        return tuple(inspect.signature(self.make).parameters)

    @property
    def of(self) -> Any:
        """The class of what `make` gives, as far as it says so."""
        return self.make if inspect.isclass(self.make) else get_type_hints(self.make).get("return")


def fdma(
    bandwidth_hz: float,
    antennas: int,
    bits_per_parameter: float,
    channel: Channel,
    double_count_clients: bool,
    noise_scales_with_band: bool,
) -> Orthogonal:
    return Orthogonal(
        "fdma",
        bandwidth_hz,
        antennas,
        bits_per_parameter,
        channel,
        double_count_clients,
        noise_scales_with_band,
    )


def tdma(
    bandwidth_hz: float,
    antennas: int,
    bits_per_parameter: float,
    channel: Channel,
    double_count_clients: bool,
) -> Orthogonal:
    return Orthogonal("tdma", bandwidth_hz, antennas, bits_per_parameter, channel, double_count_clients)


def aircomp(
    bandwidth_hz: float,
    antennas: int,
    channel: Channel,
    paper_power: bool,
    normalise: bool,
    signal: str,
) -> OverTheAir:
    return OverTheAir(
        bandwidth_hz, antennas, channel, paper_power, normalise, simulated=signal == "simulated"
    )


UPLINKS: dict[str, UplinkKind] = {
    "fdma": UplinkKind(fdma, "a share of the band for each client (FDMA)", plan_as="oma"),
    "tdma": UplinkKind(tdma, "a share of the time for each client (TDMA)", plan_as="oma"),
    "aircomp": UplinkKind(
        aircomp,
        "all clients at once, added up by the air (AirComp)",
        noisy=True,
        undrawn_time=True,
        redrawn=True,
        analog=True,
    ),
    "ideal": UplinkKind(Ideal, "free and instant", network=(), instant=True, undrawn_time=True),
}


def _given() -> NoReturn:
    raise UsageError("an uplink given in Python is not in a configuration; give it to histfl.train")


OWN = UplinkKind(_given, "of the user's own, given in Python", network=())


def kind_of(name: str) -> UplinkKind:
    """What the rest of the package knows of the uplink of that name, or of one that is given in Python."""
    return UPLINKS.get(name, OWN)


PARTS = {
    "draw": ("network", "schedules", "round", "seeds"),
    "latency": ("network", "sent", "links"),
    "aggregate": ("start", "finals", "link", "edge_round", "learning_rate"),
}


def check_uplink(uplink: Any, place: str) -> Radio:
    """`uplink`, or a UsageError where it is none."""
    for method, given in PARTS.items():
        if not callable(found := getattr(uplink, method, None)):
            raise UsageError(
                f"{place} has no method {method}; give a name, a table, or an object with {', '.join(PARTS)} "
                "(histfl.training.jobs.Uplink, histfl.wireless.clock.Radio)"
            )
        arguments.takes(f"{place}: {method}", found, given)
    return uplink  # type: ignore[no-any-return]


def plan_key(name: str) -> str:
    """Under which a plan has the seconds of the uplink of that name."""
    return kind_of(name).plan_as or name
