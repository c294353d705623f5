"""Averaging over the air: the complex signal path of HIST Sec. V-A and V-B.

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
from dataclasses import dataclass

import torch

from histfl.errors import UsageError
from histfl.wireless.channels import check_channels


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
    """Re(m^H (signal / rms + noise)) rms, real [..., entry]: the estimate of the mean update.

    The clients send updates / rms; `signal` is [..., antenna, entry] of the updates themselves, so that it
    can be summed before the RMS of all clients is known. An RMS of 0 (no update at all) gives exactly 0.
    """
    size = torch.as_tensor(rms, dtype=factor.dtype, device=factor.device)
    divisor = torch.where(size > 0, size, 1.0)[..., None, None]
    received = (beam.conj()[..., None, :] @ (signal / divisor + noise))[..., 0, :]
    return received.real / factor[..., None] * size[..., None]


def update_rms(updates: torch.Tensor) -> torch.Tensor:
    """RMS over all clients and entries, [...], of updates [..., client, entry]."""
    return updates.square().mean(dim=(-2, -1)).sqrt()


def aggregate(
    updates: torch.Tensor, channels: torch.Tensor, beam: torch.Tensor, link: Link, generator: torch.Generator
) -> torch.Tensor:
    """The mean update [..., entry] of [..., client, entry] as the edge server reads it, signal by signal."""
    factor = power_factor(channels, beam, link)
    signal = superpose(updates, channels, precode(channels, beam, factor))
    noise = draw_noise(signal, link.noise_variance, generator)
    rms = update_rms(updates.to(factor.dtype)) if link.normalise else 1.0
    return receive(signal, noise, beam, factor, rms=rms)


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

    Equal in distribution to `aggregate`; exactly the mean where the variance is 0.
    """
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return mean + variance.sqrt()[..., None].to(mean.dtype) * noise


def _responses(channels: torch.Tensor, beam: torch.Tensor) -> torch.Tensor:
    """a^H h_i, complex [..., client]."""
    return (channels @ beam.conj()[..., None])[..., 0]
