"""Successive convex approximation, the beamforming method that HIST Sec. V-D refers to.

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

from histfl.wireless.beamforming_forms import beam_values

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
