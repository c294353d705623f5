"""Other receive beamformers, to compare `max_min` with; each gives (beams, values) like it."""

from __future__ import annotations

import torch

from histfl.errors import UsageError
from histfl.wireless.beamforming import min_gain
from histfl.wireless.beamforming_forms import as_complex, as_real, real_products, unit
from histfl.wireless.beamforming_sca import ITERATIONS, principal_start, successive
from histfl.wireless.channels import check_channels
from histfl.wireless.relaxation import relax

Beams = tuple[torch.Tensor, torch.Tensor]


def principal_eigenvector(channels: torch.Tensor) -> Beams:
    """The beam that receives the most power in total, with no regard to the weakest client."""
    check_channels(channels)
    beams = torch.linalg.eigh(channels.mT @ channels.conj())[1][..., -1]
    return beams, min_gain(channels, beams)


def sdr_randomised(channels: torch.Tensor, *, draws: int = 200, seed: int = 0) -> Beams:
    """Semidefinite relaxation, then the best of `draws` Gaussian beams of the relaxed covariance."""
    if draws < 1:
        raise UsageError(f"draws = {draws}; randomisation needs at least one")
    channels = check_channels(channels).to(torch.complex128)
    eigenvalues, vectors = torch.linalg.eigh(relax(channels)[1])
    root = vectors * eigenvalues.clamp(min=0).sqrt()[..., None, :]
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(draws, channels.shape[-1], generator=generator, dtype=channels.dtype)
    # The principal direction is the relaxation's own answer wherever it has rank one.
    directions = torch.cat([points.to(channels.device) @ root.mT, vectors[..., -1:].mT], dim=-2)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    values = (directions.conj() @ channels.mT).abs().square().amin(-1)
    best = values.argmax(-1)[..., None, None].expand(*values.shape[:-1], 1, channels.shape[-1])
    beams = torch.gather(directions, -2, best)[..., 0, :]
    return beams, min_gain(channels, beams)


def sca(channels: torch.Tensor, start: torch.Tensor | None = None, *, iterations: int = ITERATIONS) -> Beams:
    """Successive convex approximation from one start [..., antenna] (the principal eigenvector if none)."""
    channels = check_channels(channels).to(torch.complex128)
    *batch, num_clients, antennas = channels.shape
    products = real_products(channels.reshape(-1, num_clients, antennas))
    if start is None:
        points = principal_start(products)
    else:
        points = unit(as_real(start.to(channels.dtype)).expand(*batch, -1).reshape(-1, 2 * antennas))
    beams = as_complex(successive(products, points, iterations=iterations)[0]).reshape(*batch, antennas)
    return beams, min_gain(channels, beams)
