"""Beamforming problems in real numbers, and successive convex approximation, the method that HIST Sec. V-D
refers to.

A complex beam a is written [Re a, Im a]: real batched products are the fastest both on CPU and on GPU. Points
are [..., 2 antenna], and `products` [..., 2 antenna, 2 client] give the responses of all clients to a point in
one multiplication.

In the least-norm form, min ||x||^2 / 2 subject to |x^H h_i|^2 >= 1, the constraints are replaced by their
linearisation at the last x, g_i^T x >= b_i with g_i = Re(h_i h_i^H x) and b_i = (1 + |x^H h_i|^2) / 2, which
is stricter, so every solution of the approximation is feasible and no longer than the last x.

The approximation is solved through its dual, min over lambda >= 0 of ||sum_i lambda_i g_i||^2 / 2 - b^T lambda,
by block pivoting: solve for the multipliers that are taken to be positive, then drop the negative ones and take
up the violated constraints. The active constraints hardly change from one approximation to the next, so that a
few small linear systems do, all problems of a batch together.
"""

from __future__ import annotations

import torch

from histfl.wireless.channels import check_channels


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


ITERATIONS = 40
PIVOTS = 2  # a constraint that these do not settle is settled in the next approximation
ENOUGH = 1e-6  # an approximation that gains less than this share is the last one
CHECK_EVERY = 4
EIGENVECTORS_AT_ONCE = 4096
RIDGE = 1e-12  # more active constraints than dimensions leave multipliers undetermined


def principal_start(products: torch.Tensor) -> torch.Tensor:
    """The beam that receives the most power in total, [problem, 2 antenna] of norm 1."""
    # In parts: cuSOLVER fails on tens of thousands of matrices at once.
    parts = (products @ products.mT).split(EIGENVECTORS_AT_ONCE)
    return torch.cat([torch.linalg.eigh(part)[1][..., -1] for part in parts])


def successive(
    products: torch.Tensor, starts: torch.Tensor, *, iterations: int = ITERATIONS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Beams [problem, 2 antenna] of norm 1 and their values [problem], from one start for each problem.

    Monotone: a step that lowers the value is not taken. Problems that are done leave the batch.
    """
    done_beams, done_values = starts.clone(), beam_values(starts[:, None], products)[:, 0]
    beams, best = done_beams, done_values
    problems = torch.arange(len(products), device=products.device)
    active = torch.ones(len(products), products.shape[-1] // 2, dtype=torch.bool, device=products.device)
    for iteration in range(iterations):
        moved, active, settled = _approximate(products, beams, best, active)
        moved_values = beam_values(moved[:, None], products)[:, 0]
        better = moved_values > best  # false for what is not a number, too
        settled &= ~(moved_values > best * (1 + ENOUGH))
        beams = torch.where(better[:, None], moved, beams)
        best = torch.where(better, moved_values, best)
        if iteration % CHECK_EVERY == CHECK_EVERY - 1 or iteration == iterations - 1:
            done_beams[problems], done_values[problems] = beams, best
            going = ~settled
            products, beams, best, active = products[going], beams[going], best[going], active[going]
            problems = problems[going]
            if len(problems) == 0:
                break
    return done_beams, done_values


def _approximate(
    products: torch.Tensor, beams: torch.Tensor, best: torch.Tensor, active: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The approximation's beams, its active constraints, and where those did not change any more."""
    rows_real, rows_imaginary = products.mT.chunk(2, dim=-2)
    points = beams / best.clamp(min=1e-300).sqrt()[:, None]
    real, imaginary = (points[:, None] @ products)[:, 0].chunk(2, dim=-1)
    normals = real[..., None] * rows_real + imaginary[..., None] * rows_imaginary
    offsets = (1 + real.square() + imaginary.square()) / 2
    gram = normals @ normals.mT
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    diagonal += RIDGE * diagonal.amax(-1, keepdim=True)
    multipliers, settled = offsets, active.any(-1)
    for _ in range(PIVOTS):
        # An inactive row keeps its diagonal alone, and with a right side of 0 it gives a multiplier of 0.
        matrix = gram * (active[:, :, None] & active[:, None, :])
        matrix.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
        multipliers = torch.linalg.solve_ex(matrix, offsets * active)[0]
        excess = (gram @ multipliers[..., None])[..., 0] - offsets
        pivoted = torch.where(active, multipliers > 0, excess < -1e-12 * offsets)
        settled = (pivoted == active).all(-1)
        active = pivoted
    moved = (multipliers.clamp(min=0)[:, None] @ normals)[:, 0]
    return moved / moved.norm(dim=-1, keepdim=True), active, settled


Beams = tuple[torch.Tensor, torch.Tensor]  # beams [..., antenna] and their values [...]


def principal_eigenvector(channels: torch.Tensor) -> Beams:
    """The beam that receives the most power in total, with no regard to the weakest client."""
    check_channels(channels)
    beams = torch.linalg.eigh(channels.mT @ channels.conj())[1][..., -1]
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


def min_gain(channels: torch.Tensor, beams: torch.Tensor) -> torch.Tensor:
    """min_i |a^H h_i|^2, [...], of channels [..., client, antenna] and beams [..., antenna]."""
    return (channels @ beams.conj()[..., None])[..., 0].abs().square().amin(-1)
