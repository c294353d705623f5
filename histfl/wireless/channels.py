"""How the radio channels between clients and their edge server are drawn (HIST Sec. V-A, VI-C).

A channel is anything with a `draw` method; drawing it and sending signals through it are separate, and
only the drawing is here. All gains are relative: a gain of 1 is the one at which the client's SNR, the
ratio of its transmit power to the noise power, is stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from histfl import arguments
from histfl.errors import UsageError, in_one_line
from histfl.factories import CHANNEL, call_factory, find_factory
from histfl.settings import check_given

Shape = int | tuple[int, ...]


class Channel(Protocol):
    """A fading model; a user's own is any object with this method."""

    def draw(
        self,
        clients: Shape,
        antennas: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.complex128,
    ) -> torch.Tensor:
        """Channels [..., client, antenna] on the generator's device.

        `clients` is the number of clients, or a shape whose last axis is the client.
        """
        ...


@dataclass(frozen=True)
class Rayleigh:
    """No line of sight: every antenna sees an independent CN(0, 1), the paper's channel."""

    def draw(
        self,
        clients: Shape,
        antennas: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.complex128,
    ) -> torch.Tensor:
        """Channels [..., client, antenna]; the mean of ||channel||^2 is the number of antennas."""
        shape = (*_leading(clients), _checked_antennas(antennas))
        return torch.randn(shape, generator=generator, device=generator.device, dtype=_checked_dtype(dtype))


@dataclass(frozen=True)
class Rician:
    """A line of sight `k_factor_db` stronger than the scattered rest; unit mean power an antenna.

    The line of sight meets a uniform linear array of half-wavelength spacing, from a direction and with
    a phase that are uniform and independent for each client.
    """

    k_factor_db: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.k_factor_db):
            raise UsageError(
                f"k_factor_db = {self.k_factor_db}; it must be finite (0 dB: as strong as the rest)"
            )

    def draw(
        self,
        clients: Shape,
        antennas: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.complex128,
    ) -> torch.Tensor:
        """Channels [..., client, antenna] = sqrt(K/(K+1)) line of sight + sqrt(1/(K+1)) CN(0, I)."""
        scattered = Rayleigh().draw(clients, antennas, generator, dtype)
        direction, phase = 2 * torch.pi * _uniform((2, *_leading(clients)), generator)
        position = torch.arange(antennas, dtype=torch.float64, device=generator.device)
        angle = phase[..., None] + torch.pi * torch.sin(direction)[..., None] * position
        line_of_sight = torch.polar(torch.ones_like(angle), angle).to(dtype)
        k_factor = 10.0 ** (self.k_factor_db / 10)
        return (
            math.sqrt(k_factor / (k_factor + 1)) * line_of_sight + math.sqrt(1 / (k_factor + 1)) * scattered
        )


@dataclass(frozen=True)
class PathLoss:
    """Clients uniform over a ring around the edge server, log-normal shadowing, Rayleigh fading.

    Power gain = (distance / reference_m)^-exponent * 10^(shadowing_db * normal / 10): 1 at the reference
    distance without shadowing. A channel drawn once is one placement of the clients.
    """

    exponent: float = 3.0
    nearest_m: float = 10.0
    farthest_m: float = 250.0
    reference_m: float = 100.0
    shadowing_db: float = 8.0

    def __post_init__(self) -> None:
        for name in ("exponent", "nearest_m", "farthest_m", "reference_m"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} = {value} of the path loss; it must be positive and finite")
        if not (math.isfinite(self.shadowing_db) and self.shadowing_db >= 0):
            raise UsageError(f"shadowing_db = {self.shadowing_db}; it must be finite and at least 0")
        if self.nearest_m > self.farthest_m:
            raise UsageError(
                f"nearest_m = {self.nearest_m} is beyond farthest_m = {self.farthest_m}; swap them"
            )

    def gains(self, distance_m: torch.Tensor, shadow: torch.Tensor) -> torch.Tensor:
        """Power gains at distances in metres; `shadow` is standard normal, of the same shape."""
        mean = (distance_m / self.reference_m) ** -self.exponent
        return mean * 10.0 ** (self.shadowing_db * shadow / 10)

    def draw(
        self,
        clients: Shape,
        antennas: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.complex128,
    ) -> torch.Tensor:
        """Channels [..., client, antenna]; all antennas of a client share its distance and shadow."""
        fading = Rayleigh().draw(clients, antennas, generator, dtype)
        # Uniform over the ring's area: the squared distance is uniform.
        area = _uniform(_leading(clients), generator)
        distance_m = (self.nearest_m**2 + (self.farthest_m**2 - self.nearest_m**2) * area).sqrt()
        shadow = torch.randn(area.shape, generator=generator, device=generator.device, dtype=torch.float64)
        return fading * self.gains(distance_m, shadow).sqrt()[..., None].to(dtype)


CHANNELS: dict[str, Callable[..., Channel]] = {"rayleigh": Rayleigh, "rician": Rician, "path-loss": PathLoss}
"""Each takes those of the uplink's settings that its signature names."""


def build_channel(name: str, k_factor_db: float) -> Channel:
    """The fading model by its name, a plugin's or a user's own; ours are given `k_factor_db` where they take it."""
    check_given("uplink.channel", "uplink", name, CHANNELS)
    known = CHANNELS.get(name)
    factory = known or find_factory(CHANNEL, name, CHANNELS)
    offered = {"k_factor_db": k_factor_db} if known else {}
    return check_channel(call_factory(factory, {}, offered, place=f"channel {name!r}"), f"channel {name!r}")


def check_channel(channel: Any, place: str) -> Channel:
    """`channel`, or a UsageError where it is none."""
    if not callable(draw := getattr(channel, "draw", None)):
        raise UsageError(f"{place} has no draw method; see histfl.wireless.Channel")
    arguments.takes(f"{place}: draw", draw, ("clients", "antennas", "generator", "dtype"))
    return channel  # type: ignore[no-any-return]


def draw_channels(channel: Channel, clients: int, antennas: int, generator: torch.Generator) -> torch.Tensor:
    """One draw [client, antenna] of `channel`, which may be a user's own and is checked as such."""
    place = f"the channel {type(channel).__name__}"
    try:
        drawn = channel.draw(clients, antennas, generator, torch.complex128)
    except Exception as error:  # a user's own may fail in any way
        raise UsageError(
            f"{place} cannot be drawn: {in_one_line(error)}; see histfl.wireless.Channel"
        ) from error
    if not isinstance(drawn, torch.Tensor) or drawn.shape != (clients, antennas):
        shape = tuple(drawn.shape) if isinstance(drawn, torch.Tensor) else type(drawn).__name__
        raise UsageError(
            f"{place} drew {shape}; it must be a tensor [client, antenna], here ({clients}, {antennas})"
        )
    try:
        return check_channels(drawn)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None


def check_channels(channels: torch.Tensor) -> torch.Tensor:
    """`channels`, known to be complex, finite and [..., client, antenna] with at least one of each."""
    if not channels.is_complex():
        raise UsageError(f"channels are {channels.dtype}; they must be complex (torch.complex128)")
    if channels.ndim < 2 or channels.shape[-1] < 1 or channels.shape[-2] < 1:
        raise UsageError(
            f"channels have shape {tuple(channels.shape)}; they need [..., client, antenna] with at least "
            "one client and one antenna"
        )
    finite = torch.isfinite(channels)
    if not bool(finite.all()):
        place = tuple(torch.nonzero(~finite)[0].tolist())
        raise UsageError(
            f"channel {channels[place].item()} at {place} ([..., client, antenna]) is not finite; "
            "check what drew it"
        )
    return channels


def channel_gains(channels: torch.Tensor) -> npt.NDArray[np.float64]:
    """The maximal-ratio gains ||channel||^2, [..., client], of channels [..., client, antenna]."""
    power = torch.view_as_real(check_channels(channels).resolve_conj()).to(torch.float64).square()
    gains: npt.NDArray[np.float64] = power.sum(dim=(-2, -1)).cpu().numpy()
    return gains


def _leading(clients: Shape) -> tuple[int, ...]:
    shape = (clients,) if isinstance(clients, int) else tuple(clients)
    if not shape or min(shape) < 0 or shape[-1] < 1:
        raise UsageError(f"clients = {clients}; give a number of at least 1, or a shape that ends in one")
    return shape


def _checked_antennas(antennas: int) -> int:
    if antennas < 1:
        raise UsageError(f"antennas = {antennas}; an edge server needs at least one")
    return antennas


def _checked_dtype(dtype: torch.dtype) -> torch.dtype:
    if not dtype.is_complex:
        raise UsageError(f"dtype = {dtype}; channels are complex (torch.complex64 or torch.complex128)")
    return dtype


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
