"""AirComp, averaging over the air: the complex signal path of HIST Sec. V-A and V-B, and the uplink that takes it.

All clients of a cell send at once; the channel adds. Client i sends alpha_i delta_i, the edge server
receives y = sum_i h_i alpha_i delta_i + z on its antennas and reads m^H y, with m = a / nu, ||a|| = 1:

    alpha_i = (m^H h_i)^* / (n |m^H h_i|^2)          HIST Eq. (25), |alpha_i|^2 <= P
    estimate = Re(m^H y) = mean_i delta_i + noise    HIST Eq. (24)

Deviation: the paper's nu = sqrt(P) min |a^H h_i| leaves all but P / n^2 of the power unused, because
alpha_i already holds 1 / n; nu = n sqrt(P) min |a^H h_i| uses it, and divides the error by n^2.
Deviation: the target is real, so only the real part is read, which halves the error again.
Deviation: P bounds |alpha_i|^2, which is the sent power only for updates of unit size; so the updates
are divided by their RMS over the cell before sending and multiplied by it after (`normalise`).

`superpose` is linear in the clients: the sums over chunks of clients add up to the sum over all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from histfl.devices import one_torch_thread
from histfl.errors import UsageError
from histfl.network import Network
from histfl.seeds import Seeds
from histfl.training import CellSchedule, State
from histfl.wireless.beamforming import max_min
from histfl.wireless.channels import Channel, Rayleigh, check_channels, draw_channels
from histfl.wireless.clock import Latency, Transmissions
from histfl.wireless.rates import (
    DEFAULT_ANTENNAS,
    DEFAULT_BANDWIDTH_HZ,
    SUB_CHANNEL_HZ,
    SYMBOL_S,
    aircomp_seconds,
    num_sub_channels,
)


@dataclass(frozen=True)
class Link:
    """Power and noise of a cell: SNR = power / noise_variance, linear."""

    power: float
    noise_variance: float
    paper_power: bool = False
    normalise: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.power) and self.power > 0):
            raise UsageError(f"power = {self.power} of an over-the-air link; it must be positive and finite")
        if not (math.isfinite(self.noise_variance) and self.noise_variance >= 0):
            raise UsageError(f"noise_variance = {self.noise_variance}; it must be at least 0 and finite")


def power_factor(channels: torch.Tensor, beam: torch.Tensor, link: Link) -> torch.Tensor:
    """nu, real [...]: the largest that keeps every |alpha_i|^2 <= P, or with `paper_power` the paper's.

    `channels` is [..., client, antenna] with all the clients that send, `beam` is [..., antenna] of norm 1.
    """
    weakest = _responses(check_channels(channels), beam).abs().amin(-1)
    if bool((weakest == 0).any()):
        raise UsageError(
            "a client's channel is zero or orthogonal to the beam, so nothing it sends arrives; "
            "leave the client out or choose the beam with max_min"
        )
    senders = 1 if link.paper_power else channels.shape[-2]
    return senders * math.sqrt(link.power) * weakest


def precode(channels: torch.Tensor, beam: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """alpha, complex [..., client], for nu = `factor` (HIST Eq. (25))."""
    response = _responses(channels, beam)
    return factor[..., None] * response.conj() / (channels.shape[-2] * response.abs().square())


def superpose(updates: torch.Tensor, channels: torch.Tensor, precoders: torch.Tensor) -> torch.Tensor:
    """sum_i h_i alpha_i delta_i, complex [..., antenna, entry]: what arrives before noise.

    `updates` is real [..., client, entry]; clients may come in chunks, whose results add up.
    """
    sent = (channels * precoders[..., None]).mT  # [..., antenna, client]
    # Two real products: a complex one would first copy the updates into complex numbers.
    updates = updates.to(sent.real.dtype)
    return torch.complex(sent.real @ updates, sent.imag @ updates)


def draw_noise(signal: torch.Tensor, noise_variance: float, generator: torch.Generator) -> torch.Tensor:
    """z of `signal`'s shape, CN(0, noise_variance) an antenna and entry."""
    noise = torch.randn(signal.shape, generator=generator, device=signal.device, dtype=signal.dtype)
    return math.sqrt(noise_variance) * noise


def receive(
    signal: torch.Tensor,
    noise: torch.Tensor,
    beam: torch.Tensor,
    factor: torch.Tensor,
    *,
    rms: torch.Tensor | float = 1.0,
) -> torch.Tensor:
    """Re(m^H (signal / rms + noise)) rms, real [..., entry]: the estimate of the mean update (HIST Eq. (24)).

    The clients send updates / rms; `signal` is [..., antenna, entry] of the updates themselves, so that it
    can be summed before the RMS of all clients is known. An RMS of 0 (no update at all) gives exactly 0.
    """
    size = torch.as_tensor(rms, dtype=factor.dtype, device=factor.device)
    divisor = torch.where(size > 0, size, 1.0)[..., None, None]
    received = (beam.conj()[..., None, :] @ (signal / divisor + noise))[..., 0, :]
    return received.real / factor[..., None] * size[..., None]


def equivalent_noise_variance(
    channels: torch.Tensor, beam: torch.Tensor, link: Link, *, rms: torch.Tensor | float = 1.0
) -> torch.Tensor:
    """Mean squared error of the estimate, an entry, [...]: sigma0^2 / (2 nu^2), times rms^2 if normalised.

    With `paper_power` and no normalisation it is half of HIST Eq. (26), which also counts the imaginary
    part of the error.
    """
    variance = link.noise_variance / (2 * power_factor(channels, beam, link).square())
    return variance * torch.as_tensor(rms, device=variance.device) ** 2 if link.normalise else variance


def add_equivalent_noise(
    mean: torch.Tensor, variance: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """The fast path: the exact mean [..., entry] plus real noise of `variance` [...].

    Equal in distribution to what is received signal by signal; exactly the mean where the variance is 0.
    """
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return mean + variance.sqrt()[..., None].to(mean.dtype) * noise


def _responses(channels: torch.Tensor, beam: torch.Tensor) -> torch.Tensor:
    """a^H h_i, complex [..., client]."""
    return (channels @ beam.conj()[..., None])[..., 0]


@dataclass(frozen=True)
class AirLink:
    """One cell's global round, an entry an edge round: channels [arrived client, antenna], each scaled by
    the root of its client's SNR so that power and noise are 1, the beam [antenna] and the noise's seed.
    None where no client's update arrives."""

    channels: tuple[torch.Tensor | None, ...]
    beams: tuple[torch.Tensor | None, ...]
    noise_seeds: tuple[int, ...]


@dataclass(frozen=True)
class OverTheAir:
    """Channels are drawn and beams optimised in every edge round. Clients send their updates
    delta_i = (x_start - x_i) / learning_rate and the edge moves to x_start - learning_rate * estimate; the rate is that
    of the clients, which `aggregate` is told.

    `simulated` computes every received signal; otherwise noise of the same distribution is added to the
    exact mean. Deviation: the paper's update x_i - x_start would make its own edge step ascend.
    """

    bandwidth_hz: float = DEFAULT_BANDWIDTH_HZ
    antennas: int = DEFAULT_ANTENNAS
    channel: Channel = field(default_factory=Rayleigh)
    paper_power: bool = False
    normalise: bool = True
    simulated: bool = False
    noiseless: bool = False
    sub_channel_hz: float = SUB_CHANNEL_HZ
    symbol_s: float = SYMBOL_S

    def __post_init__(self) -> None:
        # Before any client has trained in vain.
        aircomp_seconds(
            0, bandwidth_hz=self.bandwidth_hz, sub_channel_hz=self.sub_channel_hz, symbol_s=self.symbol_s
        )

    @property
    def signal(self) -> str:
        """As the settings have it."""
        return "simulated" if self.simulated else "equivalent"

    @property
    def sub_channels(self) -> int:
        """Parameters that one symbol carries."""
        return num_sub_channels(self.bandwidth_hz, self.sub_channel_hz)

    @property
    def _link(self) -> Link:
        noise_variance = 0.0 if self.noiseless else 1.0
        return Link(1.0, noise_variance, paper_power=self.paper_power, normalise=self.normalise)

    def draw(
        self, network: Network, schedules: Sequence[CellSchedule], round: int, seeds: Seeds
    ) -> Sequence[AirLink]:
        channels: dict[tuple[int, int], torch.Tensor] = {}
        for schedule in schedules:
            cell = schedule.cell
            generator = seeds.torch("channel", round, cell)
            snr = torch.from_numpy(network.cell(cell).snr)
            for edge_round, clients in enumerate(schedule.arrived):
                if len(clients):
                    drawn = draw_channels(self.channel, len(clients), self.antennas, generator)
                    channels[cell, edge_round] = drawn * snr[clients].sqrt()[:, None]
        with one_torch_thread():
            beams = _beams(channels)
        return [
            AirLink(
                channels=tuple(channels.get((schedule.cell, e)) for e in range(len(schedule.arrived))),
                beams=tuple(beams.get((schedule.cell, e)) for e in range(len(schedule.arrived))),
                noise_seeds=tuple(
                    seeds.key("noise", round, schedule.cell, e) for e in range(len(schedule.arrived))
                ),
            )
            for schedule in schedules
        ]

    def latency(self, network: Network, sent: Transmissions, links: Sequence[AirLink]) -> Latency:
        """Whole symbols of as many numbers as there are sub-channels (HIST Eq. (37)); nothing drawn matters."""
        return Latency(slot_s=self.symbol_s, parameters_per_slot=self.sub_channels)

    def aggregate(
        self, start: State, finals: Iterable[State], link: AirLink, edge_round: int, learning_rate: float
    ) -> tuple[State, torch.Tensor]:
        device = next(iter(start.values())).device
        channels, beam = link.channels[edge_round], link.beams[edge_round]
        if channels is None or beam is None:  # the caller skips edge rounds in which nobody is heard
            raise ValueError(f"edge round {edge_round} has no client to hear")
        channels, beam = channels.to(device), beam.to(device)
        generator = torch.Generator(device=device).manual_seed(link.noise_seeds[edge_round])
        before = _flat(start)
        # `mean`, `rms` and the superposed signal are sums over clients, so chunks of them add up.
        clients = 0
        total = torch.zeros_like(before, dtype=torch.float64)
        square = torch.zeros((), dtype=torch.float64, device=device)
        factor = power_factor(channels, beam, self._link)
        precoders = precode(channels, beam, factor)
        signal: torch.Tensor | None = None
        for chunk in finals:
            updates = (before - _flat_rows(chunk)) / learning_rate
            total += updates.sum(dim=0, dtype=torch.float64)
            square += updates.double().square().sum()
            if self.simulated:
                here = slice(clients, clients + len(updates))
                arriving = superpose(updates, channels[here], precoders[here])
                signal = arriving if signal is None else signal + arriving
            clients += len(updates)
        mean = total / clients
        rms = (square / (clients * len(before))).sqrt() if self.normalise else 1.0
        if signal is not None:
            noise = draw_noise(signal, self._link.noise_variance, generator)
            estimate = receive(signal, noise, beam, factor, rms=rms)
        else:
            variance = equivalent_noise_variance(channels, beam, self._link, rms=rms)
            estimate = add_equivalent_noise(mean, variance, generator)
        after = before.double() - learning_rate * estimate
        return _unflat(after, start), (estimate - mean).square().mean()


def _beams(channels: dict[tuple[int, int], torch.Tensor]) -> dict[tuple[int, int], torch.Tensor]:
    """The max-min beams of all problems, those of equally many clients solved together."""
    by_clients: dict[int, list[tuple[int, int]]] = {}
    for key, problem in channels.items():
        by_clients.setdefault(len(problem), []).append(key)
    beams: dict[tuple[int, int], torch.Tensor] = {}
    for keys in by_clients.values():
        solved, _ = max_min(torch.stack([channels[key] for key in keys]))
        beams.update(zip(keys, solved, strict=True))
    return beams


def _flat(state: State) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in state.values()])


def _flat_rows(chunk: State) -> torch.Tensor:
    """[client, entry] of tensors [client, ...]."""
    return torch.cat([tensor.flatten(start_dim=1) for tensor in chunk.values()], dim=1)


def _unflat(flat: torch.Tensor, like: State) -> State:
    parts = flat.split([tensor.numel() for tensor in like.values()])
    return {
        name: part.view(tensor.shape).to(tensor.dtype)
        for part, (name, tensor) in zip(parts, like.items(), strict=True)
    }
