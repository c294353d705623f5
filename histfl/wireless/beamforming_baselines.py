"""Other receive beamformers, to compare `max_min` with; each gives (beams, values) like it."""

from __future__ import annotations

import torch

from histfl.errors import UsageError
from histfl.wireless.beamforming import min_gain
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


def sca(
    channels: torch.Tensor,
    start: torch.Tensor | None = None,
    *,
    iterations: int = 40,
    inner_iterations: int = 200,
) -> Beams:
    """Successive convex approximation from one start [..., antenna] (the principal eigenvector if none).

    The method that HIST Sec. V-D refers to, in the least-norm form: |x^H h_i|^2 >= 1 is replaced by its
    linearisation at the last x, and the convex problem min ||x||^2 / 2, Re(g_i^H x) >= b_i is solved through
    its dual max b^T lambda - ||sum_i lambda_i g_i||^2 / 2, lambda >= 0, by accelerated projected gradient
    with restarts. Monotone: a step that lowers the value is not taken.
    """
    channels = check_channels(channels).to(torch.complex128)
    beams = principal_eigenvector(channels)[0] if start is None else start.to(channels.dtype)
    beams = beams / beams.norm(dim=-1, keepdim=True)
    values = min_gain(channels, beams)
    multipliers = torch.zeros(channels.shape[:-1], dtype=torch.float64, device=channels.device)
    for _ in range(iterations):
        points = beams / values.clamp(min=1e-300).sqrt()[..., None]
        responses = (channels.conj() @ points[..., None])[..., 0]  # h_i^H x
        normals = responses[..., None] * channels
        offsets = (1 + responses.abs().square()) / 2
        multipliers = _least_norm_dual(normals, offsets, multipliers, inner_iterations)
        moved = (multipliers[..., None] * normals).sum(-2)
        moved = moved / moved.norm(dim=-1, keepdim=True)
        moved_values = min_gain(channels, moved)
        better = moved_values > values
        beams = torch.where(better[..., None], moved, beams)
        values = torch.where(better, moved_values, values)
    return beams, min_gain(channels, beams)


def _least_norm_dual(
    normals: torch.Tensor, offsets: torch.Tensor, multipliers: torch.Tensor, iterations: int
) -> torch.Tensor:
    """max over lambda >= 0 of b^T lambda - lambda^T G lambda / 2, G = Re(g_i^H g_j), [..., client]."""
    gram = (normals.conj() @ normals.mT).real
    step = 1 / torch.linalg.eigvalsh(gram)[..., -1:].clamp(min=1e-300)
    ahead, momentum = multipliers, torch.ones_like(step)
    for _ in range(iterations):
        slope = offsets - (gram @ ahead[..., None])[..., 0]
        updated = (ahead + step * slope).clamp(min=0)
        # Restart where the momentum points downhill.
        restart = (slope * (updated - multipliers)).sum(-1, keepdim=True) < 0
        following = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        pushed = updated + (momentum - 1) / following * (updated - multipliers)
        ahead = torch.where(restart, updated, pushed)
        momentum = torch.where(restart, 1.0, following)
        multipliers = updated
    return multipliers
