"""The semidefinite relaxation of the beamforming problem, and the bound that it certifies.

With X in place of a a^H, max over tr X = 1, X >= 0 of min_i h_i^H X h_i is convex, and its dual is
    min over the simplex of lambda_max(sum_i lambda_i h_i h_i^H).
Any lambda on the simplex bounds every beam from above, so the bound needs no trust in the solver.
"""

from __future__ import annotations

import torch

from histfl.errors import UsageError
from histfl.wireless.beamforming_sca import Beams, min_gain
from histfl.wireless.channels import check_channels

FIRST_STEPS = 12  # Newton steps to reach the central path
STAGES, STEPS_A_STAGE, GROWTH = 15, 4, 3.0  # to follow it until the gap is below 3^-15 (n + antennas)
LAST_STEPS = 8  # to return to it, where the relaxation's matrix is feasible


def upper_bound(channels: torch.Tensor) -> torch.Tensor:
    """A bound on min_i |a^H h_i|^2 over all ||a|| = 1, real [...], for channels [..., client, antenna]."""
    weights, _ = relax(channels)
    return certify(channels, weights)


def certify(channels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """lambda_max(sum_i weights_i h_i h_i^H) for weights [..., client] on the simplex: a bound, [...]."""
    channels = check_channels(channels).to(torch.complex128)
    bound: torch.Tensor = torch.linalg.eigvalsh(_covariance(channels, weights))[..., -1]
    return bound


def relax(channels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The dual's weights [..., client] and the relaxation's matrix X [..., antenna, antenna], trace 1.

    Scaled so that lambda_max = 1, the dual is max sum_i lambda_i, lambda >= 0, sum_i lambda_i h_i h_i^H <= I.
    Newton's method follows the central path of its logarithmic barrier; a step of 1 / (1 + decrement)
    never leaves the feasible set (the barrier is self-concordant), so there is no line search.
    """
    channels = check_channels(channels).to(torch.complex128)
    norms = channels.norm(dim=-1)
    weakest = norms.amin(-1)
    scaled = channels / torch.where(weakest > 0, weakest, 1.0)[..., None, None]
    num_clients, antennas = channels.shape[-2:]
    identity = torch.eye(antennas, dtype=scaled.dtype, device=scaled.device)
    ridge = torch.eye(num_clients, dtype=norms.dtype, device=scaled.device)
    weights = (0.5 / num_clients) / scaled.norm(dim=-1).square().clamp(min=1e-300)
    inverse = identity.expand(*weights.shape[:-1], antennas, antennas)
    sharpness = 1.0
    following = range(FIRST_STEPS, FIRST_STEPS + STAGES * STEPS_A_STAGE, STEPS_A_STAGE)
    for step in range(following.stop + LAST_STEPS):
        if step in following:
            sharpness *= GROWTH
        inverse = torch.linalg.inv(identity - _covariance(scaled, weights))
        cross = scaled.conj() @ inverse @ scaled.mT  # h_i^H Z h_j
        # In units of the weights themselves, where the Hessian is I + something and well conditioned.
        gradient = weights * (cross.diagonal(dim1=-2, dim2=-1).real - sharpness) - 1
        hessian = ridge + cross.abs().square() * weights[..., None] * weights[..., None, :]
        move = -torch.linalg.solve_ex(hessian, gradient)[0]
        decrement = (-(gradient * move).sum(-1, keepdim=True)).clamp(min=0).sqrt()
        weights = weights * (1 + move / (1 + decrement))
    matrix = inverse / inverse.diagonal(dim1=-2, dim2=-1).real.sum(-1)[..., None, None]
    return weights / weights.sum(-1, keepdim=True), matrix


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


def _covariance(channels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return channels.mT @ (weights[..., None] * channels.conj())
