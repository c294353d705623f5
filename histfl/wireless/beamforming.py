"""The receive beamformer of HIST Sec. V-D: max over ||a|| = 1 of min_i |a^H h_i|^2 (Eq. (33)).

The problem is not convex (NP-hard in general), so it is searched from many starts, all problems of a batch
and all starts at once:

1. Search. Minimise sum_i |a^H h_i|^-p on the sphere. At p -> 0 that is proportional fairness, which has a
   fixed point iteration without a step size; at p -> infinity it is max-min. p grows geometrically while a
   gradient method with momentum follows. It needs no scale and no line search, and single precision does.
2. Polish. The best few start a primal-dual interior point method, in double precision, for the same problem
   in its least-norm form: min ||x||^2 / 2 subject to |x^H h_i|^2 >= 1, whose solution is a = x / ||x||.
   Newton steps use the curvature of the constraints, so a handful reach rounding error, where the
   successive convex approximation that the paper refers to needs tens of convex problems.

The best point ever seen is returned, so no stage can make the result worse. Complex vectors are written as
real ones, a = [Re a, Im a], because real batched products are the fastest both on CPU and on GPU.
"""

from __future__ import annotations

import torch

from histfl.errors import UsageError
from histfl.wireless.channels import check_channels

SEARCH_STEPS = 60
FIRST_EXPONENTS, LAST_EXPONENT = (1.0, 8.0), 300.0
MOMENTUM = 0.8
SMALLEST_GAIN = 1e-28  # keeps the weight of a zero channel finite in single precision
CANDIDATES, CANDIDATE_STEPS, FINAL_STEPS = 3, 6, 8
CENTRING = 0.1  # each Newton step aims at a tenth of the present complementarity
TO_BOUNDARY = 0.98
# Elements of the largest search tensor in one chunk: about a CPU's cache, and a quarter of a gigabyte on a GPU.
CHUNK_ELEMENTS = {"cpu": 2**18, "cuda": 2**26}


def max_min(
    channels: torch.Tensor,
    *,
    starts: int | None = None,
    include: torch.Tensor | None = None,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Beams [..., antenna] of norm 1 and their values min_i |a^H h_i|^2, [...], largest that were found.

    `channels` is complex [..., client, antenna], on any device; every leading index is its own problem.
    The same channels and seed give the same beams, in whatever order the clients come. `starts` is the
    number of random starts, 16 + n^2 / 8 but at most 128 by default: more clients make more local maxima.

    `include`, complex [..., beam, antenna], are beams to improve on: the values are never below theirs.
    Their last antennas may be missing: the beams of a smaller array, given when the array grows, make it
    certain that more antennas never lower the value. Without them it is very likely, no law: an antenna more
    usually gains far more than the search is away from the best value.
    """
    check_channels(channels)
    *batch, num_clients, antennas = channels.shape
    if starts is None:
        starts = min(16 + num_clients**2 // 8, 128)
    if starts < 1:
        raise UsageError(f"starts = {starts}; the beamformer needs at least one")
    problems = channels.resolve_conj().to(torch.complex128).reshape(-1, num_clients, antennas)
    extra = _included(include, (*batch, antennas), problems)
    # Drawn on the CPU, so that every device starts at the same points.
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(starts + 1, 2 * antennas, generator=generator).to(channels.device)
    limit = CHUNK_ELEMENTS["cuda" if channels.is_cuda else "cpu"]
    chunk = max(1, limit // (starts * max(2 * num_clients, 2 * antennas)))
    parts = [
        _solve(part, points, candidates)
        for part, candidates in zip(problems.split(chunk), extra.split(chunk), strict=True)
    ]
    beams = torch.cat([beam for beam, _ in parts]) if parts else problems.new_zeros(0, antennas)
    beams = beams.reshape(*batch, antennas).to(channels.dtype)
    return beams, min_gain(channels, beams)


def min_gain(channels: torch.Tensor, beams: torch.Tensor) -> torch.Tensor:
    """min_i |a^H h_i|^2, [...], of channels [..., client, antenna] and beams [..., antenna]."""
    return (channels @ beams.conj()[..., None])[..., 0].abs().square().amin(-1)


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
    return torch.cat([beams.real, beams.imag], dim=-1).reshape(len(problems), -1, 2 * antennas)


def _solve(
    channels: torch.Tensor, points: torch.Tensor, extra: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Beams [problem, antenna] and values [problem] of channels [problem, client, antenna]."""
    products = _real_products(_in_canonical_order(_unit_scale(channels), points[-1]))
    starts = points[:-1].expand(len(channels), -1, -1)
    found = _search(products.to(torch.float32), starts)
    values = _values(found, products.to(torch.float32))
    best = values.topk(min(CANDIDATES, values.shape[-1]), dim=-1).indices
    candidates = torch.cat([_take(found, best).to(torch.float64), extra], dim=-2)
    beams, values = _polish(products, candidates, CANDIDATE_STEPS, slack=3e-3)
    best = values.argmax(-1, keepdim=True)
    beams, values = _polish(products, _take(beams, best), FINAL_STEPS, slack=1e-5)
    real, imaginary = beams[:, 0].chunk(2, dim=-1)
    return torch.complex(real, imaginary), values[:, 0]


def _unit_scale(channels: torch.Tensor) -> torch.Tensor:
    """Each problem scaled so that its weakest client has norm 1; the beam does not depend on the scale."""
    largest = torch.view_as_real(channels).abs().amax(dim=(-3, -2, -1))[..., None, None]
    channels = channels / torch.where(largest > 0, largest, 1.0)
    weakest = channels.norm(dim=-1).amin(-1)[..., None, None]
    return channels / torch.where(weakest > 0, weakest, 1.0)


def _in_canonical_order(channels: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Clients sorted along a fixed direction, so that their order in the input cannot change a rounding."""
    keys = (torch.view_as_real(channels) * direction.view(-1, 2)).sum(dim=(-2, -1))
    return torch.gather(channels, 1, keys.argsort(dim=-1)[..., None].expand_as(channels))


def _real_products(channels: torch.Tensor) -> torch.Tensor:
    """[..., 2 antenna, 2 client], such that [Re a, Im a] @ products = [Re a^H h, Im a^H h]."""
    real, imaginary = channels.real.mT, channels.imag.mT
    return torch.cat([torch.cat([real, imaginary], dim=-1), torch.cat([imaginary, -real], dim=-1)], dim=-2)


def _take(points: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.gather(points, -2, indices[..., None].expand(*indices.shape, points.shape[-1]))


def _gains(responses: torch.Tensor) -> torch.Tensor:
    """|a^H h_i|^2, [..., client], from [Re, Im] responses [..., 2 client]."""
    real, imaginary = responses.square().chunk(2, dim=-1)
    return real + imaginary


def _values(points: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    return _gains(points @ products).amin(-1) / points.square().sum(-1)


def _unit(points: torch.Tensor) -> torch.Tensor:
    lengths: torch.Tensor = torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return points / lengths


def _search(products: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Points [problem, start, 2 antenna] of norm 1 near local maxima.

    The first exponent p differs from start to start: a small one leads many starts into the same few good
    maxima, a large one reaches maxima that proportional fairness does not lead to. The curvature grows
    with p, so the step shrinks with it.
    """
    transposed = products.mT.contiguous()
    spread = torch.linspace(0, 1, starts.shape[-2], dtype=products.dtype, device=products.device)[:, None]
    first = FIRST_EXPONENTS[0] * (FIRST_EXPONENTS[1] / FIRST_EXPONENTS[0]) ** spread
    points = _unit(_pull(_unit(starts), products, transposed, torch.zeros_like(first)))
    velocity = torch.zeros_like(points)
    for step in range(SEARCH_STEPS):
        exponent = first * (LAST_EXPONENT / first) ** (step / (SEARCH_STEPS - 1))
        pull = _pull(points, products, transposed, exponent)
        velocity.mul_(MOMENTUM).add_(pull.sub_(points).mul_(1 / (1 + exponent)))
        points = _unit(points + velocity)
    return points


def _pull(
    points: torch.Tensor, products: torch.Tensor, transposed: torch.Tensor, exponent: torch.Tensor
) -> torch.Tensor:
    """v = sum_i w_i h_i (h_i^H a) / |h_i^H a|^2 with weights w_i ~ |a^H h_i|^-p that add up to 1.

    a^H v = 1, so v - a is the gradient along the sphere, and a <- v / ||v|| is the iteration of
    proportional fairness for p = 0. In place on its own tensors: memory traffic is what this costs.
    """
    responses = points @ products
    real, imaginary = responses.chunk(2, dim=-1)
    gains = (real * real).addcmul_(imaginary, imaginary).clamp_(min=SMALLEST_GAIN)
    # Weights below e^-60 are as good as 0, and denormal numbers would be slow.
    weights = (gains.amin(-1, keepdim=True) / gains).log_().mul_(exponent / 2).clamp_(min=-60).exp_()
    weights /= gains * weights.sum(-1, keepdim=True)
    real *= weights
    imaginary *= weights
    return responses @ transposed


def _polish(
    products: torch.Tensor, starts: torch.Tensor, steps: int, *, slack: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best points [problem, start, 2 antenna], of norm 1, that Newton's method passes, and their values.

    Primal-dual interior point for min ||x||^2 / 2, s_i = (|x^H h_i|^2 - 1) / 2 >= 0, with multipliers
    lambda_i. With J the gradients of s, the step solves
        (I - sum_i lambda_i h_i h_i^H + J^T diag(lambda / s) J) dx = J^T (mu / s) - x.
    s is convex in x, so a step that keeps its linear model positive keeps s positive.
    """
    products = products[:, None]
    rows_real, rows_imaginary = products.mT.chunk(2, dim=-2)
    identity = torch.eye(products.shape[-2], dtype=products.dtype, device=products.device)
    responses = (starts[..., None, :] @ products)[..., 0, :]
    least = _gains(responses).amin(-1, keepdim=True)
    best, best_value = _unit(starts), (least / starts.square().sum(-1, keepdim=True))[..., 0]
    points = starts * ((1 + slack) / least.sqrt())
    multipliers = target = torch.zeros_like(least)
    for step in range(steps + 1):
        responses = (points[..., None, :] @ products)[..., 0, :]
        gains = _gains(responses)
        norm = points.square().sum(-1, keepdim=True)
        value = gains.amin(-1) / norm[..., 0]
        better = value > best_value  # false for what is not a number, too
        best_value = torch.where(better, value, best_value)
        best = torch.where(better[..., None], _unit(points), best)
        slacks = ((gains - 1) / 2).clamp(min=1e-16)
        if step == 0:
            # At a solution x = J^T lambda, so the multipliers add up to ||x||^2.
            multipliers = norm / ((1 / slacks).sum(-1, keepdim=True) * slacks)
        if step == steps:
            break
        target = CENTRING * (multipliers * slacks).mean(-1, keepdim=True)
        real, imaginary = responses.chunk(2, dim=-1)
        gradients = real[..., None] * rows_real + imaginary[..., None] * rows_imaginary
        curvature = (products * torch.cat([multipliers, multipliers], dim=-1)[..., None, :]) @ products.mT
        matrix = gradients.mT @ ((multipliers / slacks)[..., None] * gradients) - curvature
        # Turning x's phase changes nothing: that direction, j x, gets a curvature of its own.
        turned = _turned(points)
        matrix = matrix + (1 + 1e-10) * identity + turned[..., None] * (turned / norm)[..., None, :]
        residual = (gradients.mT @ (target / slacks)[..., None])[..., 0] - points
        move = torch.linalg.solve_ex(matrix, residual)[0]
        uphill = ~((move * residual).sum(-1, keepdim=True) > 0)
        move = torch.where(uphill, residual, move)
        change = (gradients @ move[..., None])[..., 0]
        turn = (target - multipliers * change) / slacks - multipliers
        points = points + move * _step_size(change / slacks)
        multipliers = multipliers + turn * _step_size(turn / multipliers)
    return best, best_value


def _turned(points: torch.Tensor) -> torch.Tensor:
    """j a, for a = [Re a, Im a]."""
    real, imaginary = points.chunk(2, dim=-1)
    return torch.cat([-imaginary, real], dim=-1)


def _step_size(relative_change: torch.Tensor) -> torch.Tensor:
    """The longest step, at most 1, after which no entry has lost more than 98 % of itself."""
    return TO_BOUNDARY / (-relative_change).amax(-1, keepdim=True).clamp(min=TO_BOUNDARY)
