"""The receive beamformer of HIST Sec. V-D: max over ||a|| = 1 of min_i |a^H h_i|^2 (Eq. (33)).

The problem is not convex (NP-hard in general), so it is searched from many starts, all problems of a batch
and all starts at once:

1. Search. Minimise sum_i |a^H h_i|^-p on the sphere. At p -> 0 that is proportional fairness, which has a
   fixed point iteration without a step size; at p -> infinity it is max-min. p grows geometrically while a
   gradient method with momentum follows. It needs no scale and no line search, and single precision does.
   After a third of the steps only the best points that differ from each other go on.
2. Successive convex approximation from the principal eigenvector, the method that the paper refers to, adds
   its own point, so that the result is never below that method's.
3. Polish. The best few start a primal-dual interior point method, in double precision, for the same problem
   in its least-norm form: min ||x||^2 / 2 subject to |x^H h_i|^2 >= 1, whose solution is a = x / ||x||.
   Newton steps use the curvature of the constraints, so a handful reach rounding error.

The best point ever seen is returned, so no stage can make the result worse.
"""

from __future__ import annotations

import math

import torch

from histfl.errors import UsageError
from histfl.wireless.beamforming_sca import (
    as_complex,
    as_real,
    beam_values,
    client_gains,
    min_gain,
    principal_start,
    quarter_turn,
    real_products,
    successive,
    take,
    unit,
)
from histfl.wireless.channels import check_channels

SEARCH_STEPS, SELECT_AT, SELECTED = 60, 20, 1 / 4
FIRST_EXPONENTS, LAST_EXPONENT = (1.0, 8.0), 300.0
MOMENTUM = 0.8
SMALLEST_GAIN = 1e-28  # keeps the weight of a zero channel finite in single precision
SAME = 0.99  # two beams with |a^H b|^2 above this lead to the same maximum
CANDIDATES, CANDIDATE_STEPS, FINAL_STEPS = 3, 6, 8
CENTRING = 0.1  # each Newton step aims at a tenth of the present complementarity
TO_BOUNDARY = 0.98
# Elements of the largest search tensor in one chunk: about a CPU's cache, and a quarter of a gigabyte on a GPU.
CHUNK_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}


def max_min(
    channels: torch.Tensor, *, starts: int | None = None, include: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Beams [..., antenna] of norm 1 and their values min_i |a^H h_i|^2, [...], largest that were found (HIST Eq. (33)).

    `channels` is complex [..., client, antenna], on any device; every leading index is its own problem.
    The same channels give the same beams, in whatever order the clients come. `starts` is the number of random
    starts, 32 + n^2 / 8 but at most 160 by default: more clients make more local maxima.

    `include`, complex [..., beam, antenna], are beams to improve on: the values are never below theirs.
    Their last antennas may be missing: the beams of a smaller array, given when the array grows, make it
    certain that more antennas never lower the value. Without them it is very likely, no law: an antenna more
    usually gains far more than the search is away from the best value.
    """
    check_channels(channels)
    *batch, num_clients, antennas = channels.shape
    if starts is None:
        starts = min(32 + num_clients**2 // 8, 160)
    if starts < 1:
        raise UsageError(f"starts = {starts}; the beamformer needs at least one")
    problems = channels.resolve_conj().to(torch.complex128).reshape(-1, num_clients, antennas)
    extra = _included(include, (*batch, antennas), problems)
    # Drawn on the CPU, so that every device starts at the same points.
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(starts, 2 * antennas, generator=generator).to(channels.device)
    limit = CHUNK_ELEMENTS["cuda" if channels.is_cuda else "cpu"]
    chunk = max(1, limit // (starts * max(2 * num_clients, 2 * antennas)))
    parts = [
        _solve(part, points, candidates)
        for part, candidates in zip(problems.split(chunk), extra.split(chunk), strict=True)
    ]
    beams = torch.cat([beam for beam, _ in parts]) if parts else problems.new_zeros(0, antennas)
    beams = beams.reshape(*batch, antennas).to(channels.dtype)
    return beams, min_gain(channels, beams)


def _included(include: torch.Tensor | None, shape: tuple[int, ...], problems: torch.Tensor) -> torch.Tensor:
    """The user's beams as [problem, beam, 2 antenna], none of them by default."""
    *batch, antennas = shape
    if include is None:
        return problems.real.new_zeros(len(problems), 0, 2 * antennas)
    if not include.is_complex() or include.ndim != len(batch) + 2 or include.shape[-1] > antennas:
        raise UsageError(
            f"include has shape {tuple(include.shape)} and is {include.dtype}; it needs complex "
            f"[..., beam, antenna] with leading axes {tuple(batch)} and at most {antennas} antennas"
        )
    beams = problems.new_zeros(*batch, include.shape[-2], antennas)
    beams[..., : include.shape[-1]] = include
    return as_real(beams).reshape(len(problems), -1, 2 * antennas)


def _solve(
    channels: torch.Tensor, points: torch.Tensor, extra: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Beams [problem, antenna] and values [problem] of channels [problem, client, antenna]."""
    products = real_products(channels)
    single = products.to(torch.float32)
    found = _search(single, points.expand(len(channels), -1, -1))
    best = take(found, _best_distinct(found, beam_values(found, single), CANDIDATES)).to(torch.float64)
    beams, worth = _polish(products, torch.cat([best, extra], dim=-2), CANDIDATE_STEPS, slack=3e-3)
    convex, convex_worth = successive(products, principal_start(products))
    beams = torch.cat([beams, convex[:, None]], dim=-2)
    worth = torch.cat([worth, convex_worth[:, None]], dim=-1)
    # Where all channels are zero the search has no direction; the eigenvector is a beam even there.
    best = worth.nan_to_num(nan=-1.0).argmax(-1, keepdim=True)
    beams, worth = _polish(products, take(beams, best), FINAL_STEPS, slack=1e-5)
    return as_complex(beams[:, 0]), worth[:, 0]


def _best_distinct(points: torch.Tensor, worth: torch.Tensor, count: int) -> torch.Tensor:
    """Indices [..., count] of the best points [..., point, 2 antenna]; a point that repeats a better one comes
    after all that do not."""
    overlaps = (points @ points.mT).square() + (quarter_turn(points) @ points.mT).square()
    worse = worth[..., :, None] < worth[..., None, :]
    repeated = ((overlaps > SAME) & worse).any(-1)
    return (worth - repeated * worth.amax(-1, keepdim=True)).topk(min(count, worth.shape[-1]), dim=-1).indices


def _search(products: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Points [problem, point, 2 antenna] of norm 1 near local maxima; fewer points than starts.

    The first exponent p differs from start to start: a small one leads many starts into the same few good
    maxima, a large one reaches maxima that proportional fairness does not lead to. The curvature grows
    with p, so the step shrinks with it.
    """
    transposed = products.mT.contiguous()
    spread = torch.linspace(0, 1, starts.shape[-2], dtype=products.dtype, device=products.device)[:, None]
    first = (FIRST_EXPONENTS[0] * (FIRST_EXPONENTS[1] / FIRST_EXPONENTS[0]) ** spread).expand(
        len(products), -1, -1
    )
    points = unit(_pull(unit(starts), products, transposed, torch.zeros_like(first)))
    velocity = torch.zeros_like(points)
    for step in range(SEARCH_STEPS):
        if step == SELECT_AT:
            kept = _best_distinct(
                points, beam_values(points, products), math.ceil(SELECTED * starts.shape[-2])
            )
            points, velocity, first = take(points, kept), take(velocity, kept), take(first, kept)
        exponent = first * (LAST_EXPONENT / first) ** (step / (SEARCH_STEPS - 1))
        pull = _pull(points, products, transposed, exponent)
        velocity.mul_(MOMENTUM).addcmul_(pull.sub_(points), 1 / (1 + exponent))
        points = unit(points + velocity)
    return points


def _pull(
    points: torch.Tensor, products: torch.Tensor, transposed: torch.Tensor, exponent: torch.Tensor
) -> torch.Tensor:
    """v = sum_i w_i h_i (h_i^H a) with weights w_i ~ |a^H h_i|^-(p + 2), scaled such that a^H v = 1.

    So v - a is the gradient along the sphere, and a <- v / ||v|| is the iteration of proportional fairness
    for p = 0. In place on its own tensors: memory traffic is what this costs.
    """
    responses = points @ products
    real, imaginary = responses.chunk(2, dim=-1)
    logs = (real * real).addcmul_(imaginary, imaginary).clamp_(min=SMALLEST_GAIN).log_()
    # Weights below e^-60 are as good as 0, and denormal numbers would be slow.
    weights = logs.sub_(logs.amin(-1, keepdim=True)).mul_(-(1 + exponent / 2)).clamp_(min=-60).exp_()
    real *= weights
    imaginary *= weights
    pull = responses @ transposed
    return pull.div_((points * pull).sum(-1, keepdim=True))


def _polish(
    products: torch.Tensor, starts: torch.Tensor, steps: int, *, slack: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best points [problem, start, 2 antenna], of norm 1, that Newton's method passes, and their values.

    Primal-dual interior point for min ||x||^2 / 2, s_i = (|x^H h_i|^2 - 1) / 2 >= 0, with multipliers
    lambda_i. With J the gradients of s, the step solves
        (I - sum_i lambda_i h_i h_i^H + J^T diag(lambda / s) J) dx = J^T (mu / s) - x.
    s is convex in x, so a step that keeps its linear model positive keeps s positive.
    """
    half_real, half_imaginary = products[:, None].chunk(2, dim=-1)
    identity = torch.eye(products.shape[-2], dtype=products.dtype, device=products.device)
    responses = starts @ products
    least = client_gains(responses).amin(-1, keepdim=True)
    best, best_value = unit(starts), (least / starts.square().sum(-1, keepdim=True))[..., 0]
    points = starts * ((1 + slack) / least.sqrt())
    multipliers = target = torch.zeros_like(least)
    for step in range(steps + 1):
        responses = points @ products
        gains = client_gains(responses)
        norm = points.square().sum(-1, keepdim=True)
        value = gains.amin(-1) / norm[..., 0]
        better = value > best_value  # false for what is not a number, too
        best_value = torch.where(better, value, best_value)
        best = torch.where(better[..., None], unit(points), best)
        slacks = ((gains - 1) / 2).clamp(min=1e-16)
        if step == 0:
            # At a solution x = J^T lambda, so the multipliers add up to ||x||^2.
            multipliers = norm / ((1 / slacks).sum(-1, keepdim=True) * slacks)
        if step == steps:
            break
        target = CENTRING * (multipliers * slacks).mean(-1, keepdim=True)
        # J^T diag(lambda / s) J - sum_i lambda_i h_i h_i^H = products W products^T, W of four diagonal blocks.
        real, imaginary = responses.chunk(2, dim=-1)
        barrier = multipliers / slacks
        upper = (barrier * real.square() - multipliers)[..., None, :]
        cross = (barrier * real * imaginary)[..., None, :]
        lower = (barrier * imaginary.square() - multipliers)[..., None, :]
        weighted = [half_real * upper + half_imaginary * cross, half_real * cross + half_imaginary * lower]
        matrix = (torch.cat(weighted, dim=-1).flatten(1, 2) @ products.mT).view(
            *points.shape, points.shape[-1]
        )
        # Turning x's phase changes nothing: that direction, j x, gets a curvature of its own.
        turned = quarter_turn(points)
        matrix = matrix + (1 + 1e-10) * identity + turned[..., None] * (turned / norm)[..., None, :]
        pushes = responses * torch.cat([target / slacks, target / slacks], dim=-1)
        residual = pushes @ products.mT - points
        move = torch.linalg.solve_ex(matrix, residual)[0]
        uphill = ~((move * residual).sum(-1, keepdim=True) > 0)
        move = torch.where(uphill, residual, move)
        change = torch.stack((responses * (move @ products)).chunk(2, dim=-1)).sum(0)
        turn = (target - multipliers * change) / slacks - multipliers
        points = points + move * _step_size(change / slacks)
        multipliers = multipliers + turn * _step_size(turn / multipliers)
    return best, best_value


def _step_size(relative_change: torch.Tensor) -> torch.Tensor:
    """The longest step, at most 1, after which no entry has lost more than 98 % of itself."""
    return TO_BOUNDARY / (-relative_change).amax(-1, keepdim=True).clamp(min=TO_BOUNDARY)
