"""The uplinks: how the clients' submodels reach their edge server, in which time, with which error.

A new uplink is a frozen dataclass with `draw`, `cost` and `aggregate` (see `histfl.training.Uplink`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from histfl.network import Network
from histfl.network.network import Floats, Ints
from histfl.seeds import Seeds
from histfl.training import CellSchedule, RoundCost, State, mean_of_clients
from histfl.wireless.channels import Channel, Rayleigh, channel_gains, draw_channels
from histfl.wireless.clock import Computing, Transmissions, round_cost
from histfl.wireless.rates import (
    DEFAULT_ANTENNAS,
    DEFAULT_BANDWIDTH_HZ,
    fdma_rates,
    tdma_rates,
    uplink_seconds,
)


@dataclass(frozen=True)
class Ideal:
    """No radio at all: an exact mean in no time. Computing still takes its time."""

    computing: Computing

    def draw(
        self, network: Network, schedules: Sequence[CellSchedule], round: int, seeds: Seeds
    ) -> Sequence[None]:
        return [None] * len(schedules)

    def cost(
        self, network: Network, schedules: Sequence[CellSchedule], links: Sequence[None], parameters: Ints
    ) -> RoundCost:
        sent = Transmissions.of(network, schedules)
        return round_cost(network, sent, parameters, self.computing, np.zeros(len(sent.slot)))

    def aggregate(
        self, start: State, finals: Iterable[State], link: None, edge_round: int
    ) -> tuple[State, torch.Tensor]:
        return mean_of_clients(finals), torch.zeros(())


@dataclass(frozen=True)
class Orthogonal:
    """Each client in its own share of the band (FDMA) or of the time (TDMA); error-free (HIST Sec. IV-A).

    Channels are drawn once a global round for the clients that send in it.
    """

    computing: Computing
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

    def cost(
        self, network: Network, schedules: Sequence[CellSchedule], links: Sequence[Floats], parameters: Ints
    ) -> RoundCost:
        sent = Transmissions.of(network, schedules)
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
        seconds = uplink_seconds(parameters[sent.place], rates, bits_per_parameter=self.bits_per_parameter)
        on_air = 1.0 if self.access == "fdma" else 1.0 / sent.senders
        return round_cost(network, sent, parameters, self.computing, seconds, on_air=on_air)

    def aggregate(
        self, start: State, finals: Iterable[State], link: Floats, edge_round: int
    ) -> tuple[State, torch.Tensor]:
        return mean_of_clients(finals), torch.zeros(())
