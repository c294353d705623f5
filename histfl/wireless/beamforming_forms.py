"""Complex beamforming problems written in real numbers, a = [Re a, Im a].

Real batched products are the fastest both on CPU and on GPU. Points are [..., 2 antenna], and `products`
[..., 2 antenna, 2 client] give the responses of all clients to a point in one multiplication.
"""

from __future__ import annotations

import torch


def real_products(channels: torch.Tensor) -> torch.Tensor:
    """Of channels [..., client, antenna], such that [Re a, Im a] @ products = [Re a^H h, Im a^H h].

    Clients come in an order of their own and each problem in a scale of its own, so that neither the
    order in which clients are given nor the unit of the channels can change a rounding.
    """
    channels = _in_canonical_order(_unit_scale(channels))
    real, imaginary = channels.real.mT, channels.imag.mT
    return torch.cat([torch.cat([real, imaginary], dim=-1), torch.cat([imaginary, -real], dim=-1)], dim=-2)


def as_real(beams: torch.Tensor) -> torch.Tensor:
    return torch.cat([beams.real, beams.imag], dim=-1)


def as_complex(points: torch.Tensor) -> torch.Tensor:
    return torch.complex(*points.chunk(2, dim=-1))


def quarter_turn(points: torch.Tensor) -> torch.Tensor:
    """j a: the same beam, a quarter turn later."""
    real, imaginary = points.chunk(2, dim=-1)
    return torch.cat([-imaginary, real], dim=-1)


def unit(points: torch.Tensor) -> torch.Tensor:
    lengths: torch.Tensor = torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return points / lengths


def take(points: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The points [..., index, 2 antenna] at indices [..., index] of [..., point, 2 antenna]."""
    return torch.gather(points, -2, indices[..., None].expand(*indices.shape, points.shape[-1]))


def client_gains(responses: torch.Tensor) -> torch.Tensor:
    """|a^H h_i|^2, [..., client], from [Re, Im] responses [..., 2 client]."""
    real, imaginary = responses.square().chunk(2, dim=-1)
    return real + imaginary


def beam_values(points: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """min_i |a^H h_i|^2 / ||a||^2, [..., point], of points [..., point, 2 antenna]."""
    return client_gains(points @ products).amin(-1) / points.square().sum(-1)


def _unit_scale(channels: torch.Tensor) -> torch.Tensor:
    """Each problem scaled so that its weakest client has norm 1; the beam does not depend on the scale."""
    largest = torch.view_as_real(channels).abs().amax(dim=(-3, -2, -1))[..., None, None]
    channels = channels / torch.where(largest > 0, largest, 1.0)
    weakest = channels.norm(dim=-1).amin(-1)[..., None, None]
    return channels / torch.where(weakest > 0, weakest, 1.0)


def _in_canonical_order(channels: torch.Tensor) -> torch.Tensor:
    """Clients sorted along a direction that is the same for all problems and in no way special."""
    antennas = channels.shape[-1]
    direction = torch.arange(1, 2 * antennas + 1, dtype=torch.float64, device=channels.device).sin()
    keys = (torch.view_as_real(channels) * direction.view(-1, 2)).sum(dim=(-2, -1))
    return torch.gather(channels, -2, keys.argsort(dim=-1)[..., None].expand_as(channels))
