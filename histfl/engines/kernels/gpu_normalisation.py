"""Batch normalisation of many clients on a GPU, with what often follows, a sum and a ReLU, in few passes.

Values are [client, row, channel] in memory, a row being a place of an image of the batch. Every client's
channels have their own mean and variance over the rows, taken in parts side by side and then combined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from histfl.engines.kernels.layout import innermost, outermost

PARTS = 32  # of the rows, so that even a few clients fill a GPU
ROWS = 64  # of 64 channels read at once; more of fewer


@dataclass(frozen=True)
class Moments:
    """Means and sums of squared deviations [client, part, channel] of every `rows_each` rows."""

    means: torch.Tensor
    squares: torch.Tensor
    rows_each: int

    @classmethod
    def empty(cls, values: torch.Tensor, rows_each: int) -> Moments:
        """Empty ones, for values [client, batch, height, width, channel]."""
        parts = triton.cdiv(values.shape[1:4].numel(), rows_each)
        shape = 2, len(values), parts, values.shape[-1]
        means, squares = torch.empty(shape, dtype=torch.float32, device=values.device)
        return cls(means, squares, rows_each)


@triton.jit
def _moments(
    values, means, squares, rows, rows_each,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of a part's rows, from their distances to the first one."""
    client, part = tl.program_id(2), tl.program_id(1)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = channel < CHANNELS
    values += client.to(tl.int64) * rows * CHANNELS
    begin, end = part * rows_each, tl.minimum((part + 1) * rows_each, rows)
    origin = tl.load(values + begin * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
    distances = tl.zeros((ROWS, WIDE), tl.float32)
    products = tl.zeros((ROWS, WIDE), tl.float32)
    for first in range(begin, end, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < end)[:, None] & inside[None, :]
        block = tl.load(values + row[:, None] * CHANNELS + channel[None, :], mask=known, other=0.0)
        apart = tl.where(known, block.to(tl.float32) - origin[None, :], 0.0)
        distances += apart
        products += apart * apart
    distance = tl.sum(distances, axis=0)
    centre = distance / (end - begin)
    at = (client * tl.num_programs(1) + part) * CHANNELS + channel
    tl.store(means + at, origin + centre, mask=inside)
    tl.store(squares + at, tl.maximum(tl.sum(products, axis=0) - distance * centre, 0.0), mask=inside)


@triton.jit
def _some_parts(first, channel, parts, rows, rows_each, CHANNELS: tl.constexpr, SOME: tl.constexpr):
    """Where some parts' moments lie, which of them there are, and how many rows each has."""
    part = first + tl.arange(0, SOME)
    at = (tl.program_id(1) * parts + part)[:, None] * CHANNELS + channel[None, :]
    known = (part < parts)[:, None] & (channel < CHANNELS)[None, :]
    return at, known, tl.minimum(rows_each, rows - part * rows_each).to(tl.float32)


@triton.jit
def _combine(
    means, squares, mean, inverse, parts, rows, rows_each, eps,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Mean and inverse deviation of the channels from those of their parts."""
    client = tl.program_id(1)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = channel < CHANNELS
    total = tl.zeros((SOME, WIDE), tl.float32)
    for first in range(0, parts, SOME):
        at, known, count = _some_parts(first, channel, parts, rows, rows_each, CHANNELS, SOME)
        total += count[:, None] * tl.load(means + at, mask=known, other=0.0)
    centre = tl.sum(total, axis=0) / rows
    total = tl.zeros((SOME, WIDE), tl.float32)
    for first in range(0, parts, SOME):
        at, known, count = _some_parts(first, channel, parts, rows, rows_each, CHANNELS, SOME)
        apart = tl.load(means + at, mask=known, other=0.0) - centre[None, :]
        square = tl.load(squares + at, mask=known, other=0.0)
        total += tl.where(known, square + count[:, None] * apart * apart, 0.0)
    variance = tl.sum(total, axis=0) / rows
    tl.store(mean + client * CHANNELS + channel, centre, mask=inside)
    tl.store(inverse + client * CHANNELS + channel, 1.0 / tl.sqrt(variance + eps), mask=inside)


@triton.jit
def _channels(mean, inverse, weight, bias, CHANNELS: tl.constexpr, WIDE: tl.constexpr):
    """A program's channels, which of them there are, and their mean, inverse deviation, weight and bias."""
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = channel < CHANNELS
    at = tl.program_id(2) * CHANNELS + channel
    own_mean = tl.load(mean + at, mask=inside, other=0.0)
    own_inverse = tl.load(inverse + at, mask=inside, other=0.0)
    own_weight = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    own_bias = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    return channel, inside, own_mean, own_inverse, own_weight, own_bias


@triton.jit
def _normalise(
    values, mean, inverse, weight, bias, added, result, rows, rows_each,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    ADDED: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    client, part = tl.program_id(2), tl.program_id(1)
    channel, inside, own_mean, own_inverse, own_weight, own_bias = _channels(
        mean, inverse, weight, bias, CHANNELS, WIDE
    )
    scale = own_inverse * own_weight
    shift = own_bias - own_mean * scale
    before = client.to(tl.int64) * rows * CHANNELS
    end = tl.minimum((part + 1) * rows_each, rows)
    for first in range(part * rows_each, end, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < end)[:, None] & inside[None, :]
        at = row[:, None] * CHANNELS + channel[None, :]
        block = tl.load(values + before + at, mask=known, other=0.0).to(tl.float32)
        found = block * scale[None, :] + shift[None, :]
        if ADDED:
            found += tl.load(added + before + at, mask=known, other=0.0).to(tl.float32)
        if RELU:
            found = tl.maximum(found, 0.0)
        tl.store(result + before + at, found.to(result.dtype.element_ty), mask=known)


@triton.jit
def _grad_and_normal(values, gradient, at, known, mean, inverse, weight, bias, RELU: tl.constexpr):
    """The gradient at some entries, behind the RELU if there is one, and the values normalised."""
    grad = tl.load(gradient + at, mask=known, other=0.0).to(tl.float32)
    normal = (tl.load(values + at, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    if RELU:
        grad = tl.where(normal * weight[None, :] + bias[None, :] > 0.0, grad, 0.0)
    return grad, normal


@triton.jit
def _grad_sums(
    values, gradient, further, mean, inverse, weight, bias, output, cut, grads, products, rows, rows_each,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    RELU: tl.constexpr, CUT: tl.constexpr, FURTHER: tl.constexpr,
):  # fmt: skip
    """Sums over a part's rows of the gradient, and of its product with the normalised values.

    With CUT, `output` tells what passed the ReLU, and the gradient before it (with FURTHER, of the sum of two
    gradients) is left in `cut`.
    """
    client, part = tl.program_id(2), tl.program_id(1)
    channel, inside, own_mean, own_inverse, own_weight, own_bias = _channels(
        mean, inverse, weight, bias, CHANNELS, WIDE
    )
    before = client.to(tl.int64) * rows * CHANNELS
    total = tl.zeros((ROWS, WIDE), tl.float32)
    product = tl.zeros((ROWS, WIDE), tl.float32)
    end = tl.minimum((part + 1) * rows_each, rows)
    for first in range(part * rows_each, end, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < end)[:, None] & inside[None, :]
        at = row[:, None] * CHANNELS + channel[None, :]
        grad, normal = _grad_and_normal(
            values + before, gradient + before, at, known, own_mean, own_inverse, own_weight, own_bias, RELU
        )
        if FURTHER:
            grad += tl.load(further + before + at, mask=known, other=0.0).to(tl.float32)
        if CUT:
            grad = tl.where(tl.load(output + before + at, mask=known, other=0.0) > 0.0, grad, 0.0)
            tl.store(cut + before + at, grad.to(cut.dtype.element_ty), mask=known)
        total += grad
        product += grad * normal
    to = (client * tl.num_programs(1) + part) * CHANNELS + channel
    tl.store(grads + to, tl.sum(total, axis=0), mask=inside)
    tl.store(products + to, tl.sum(product, axis=0), mask=inside)


@triton.jit
def _value_gradient(
    values, gradient, mean, inverse, weight, bias, grads, products, result, rows, rows_each,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    client, part = tl.program_id(2), tl.program_id(1)
    channel, inside, own_mean, own_inverse, own_weight, own_bias = _channels(
        mean, inverse, weight, bias, CHANNELS, WIDE
    )
    mean_grad = tl.load(grads + client * CHANNELS + channel, mask=inside, other=0.0) / rows
    mean_product = tl.load(products + client * CHANNELS + channel, mask=inside, other=0.0) / rows
    before = client.to(tl.int64) * rows * CHANNELS
    end = tl.minimum((part + 1) * rows_each, rows)
    for first in range(part * rows_each, end, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < end)[:, None] & inside[None, :]
        at = row[:, None] * CHANNELS + channel[None, :]
        grad, normal = _grad_and_normal(
            values + before, gradient + before, at, known, own_mean, own_inverse, own_weight, own_bias, RELU
        )
        found = (own_weight * own_inverse)[None, :] * (
            grad - mean_grad[None, :] - normal * mean_product[None, :]
        )
        tl.store(result + before + at, found.to(result.dtype.element_ty), mask=known)


def stacked_normalisation(
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    added: torch.Tensor | None = None,
    *,
    moments: Moments | None = None,
    relu: bool = False,
    twice: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Client i's values [client, batch, channel, height, width], channels innermost in memory, normalised by
    their own mean and variance a channel, times weight[i] [channel], plus bias[i]; then, where wanted, plus
    `added`, and ReLU. Where they are known, the values' moments need not be computed.

    `twice` gives the outputs two times, for two readers: their gradients are then added on the way.
    """
    if added is not None and (added.shape, added.dtype) != (values.shape, values.dtype):
        plain = _StackedNormalisation.apply(values, weight, bias, None, eps, moments, False, False)
        return summed(plain, added, relu=relu, twice=twice)
    return _StackedNormalisation.apply(values, weight, bias, added, eps, moments, relu, twice)  # type: ignore[no-any-return]


def summed(
    normal: torch.Tensor, added: torch.Tensor, *, relu: bool, twice: bool
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """What follows a normalisation, by torch: for numbers or shapes that the kernels do not add."""
    found = torch.relu(normal + added) if relu else normal + added
    return (found, found) if twice else found


class _StackedNormalisation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        added: torch.Tensor | None,
        eps: float,
        moments: Moments | None,
        relu: bool,
        twice: bool,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        inner = innermost(values)
        grid, shape, rows, rows_each = _launch(inner)
        if moments is None:
            moments = Moments.empty(inner, rows_each)
            _moments[grid](inner, moments.means, moments.squares, rows, rows_each, **shape)
        spread = _combined(moments, rows, eps)
        result = torch.empty_like(inner)
        more = None if added is None else innermost(added)
        _normalise[grid](
            inner, *spread, weight, bias, more, result, rows, rows_each,
            **shape, ADDED=more is not None, RELU=relu,
        )  # fmt: skip
        ctx.cut = relu and (twice or more is not None)
        ctx.save_for_backward(inner, weight, bias, spread, *((result,) if ctx.cut else ()))
        ctx.relu, ctx.added = relu, more is not None
        return (outermost(result), outermost(result)) if twice else outermost(result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inner, weight, bias, spread, *output = ctx.saved_tensors
        grad, *more = map(innermost, gradients)
        if more and not ctx.cut:
            grad = grad + more.pop()
        further = more[0] if more else None
        grid, shape, rows, rows_each = _launch(inner)
        parts = torch.empty(2, len(inner), grid[1], inner.shape[-1], dtype=torch.float32, device=inner.device)
        cut = torch.empty_like(inner) if ctx.cut else None
        relu = ctx.relu and not ctx.cut
        _grad_sums[grid](
            inner, grad, further, *spread, weight, bias, *(output or [None]), cut, *parts,
            rows, rows_each, **shape, RELU=relu, CUT=ctx.cut, FURTHER=further is not None,
        )  # fmt: skip
        grad = grad if cut is None else cut
        sums = parts.sum(dim=2)
        result = torch.empty_like(inner)
        _value_gradient[grid](
            inner, grad, *spread, weight, bias, *sums, result, rows, rows_each, **shape, RELU=relu
        )
        for_bias, for_weight = sums
        for_added = outermost(grad) if ctx.added else None
        of_affine = for_weight.to(weight.dtype), for_bias.to(bias.dtype)
        return outermost(result), *of_affine, for_added, None, None, None, None


def _combined(moments: Moments, rows: int, eps: float) -> torch.Tensor:
    """Means and inverse deviations of all rows, [2, client, channel]."""
    clients, parts, channels = moments.means.shape
    spread = torch.empty(2, clients, channels, dtype=torch.float32, device=moments.means.device)
    wide = min(32, triton.next_power_of_2(channels))
    _combine[(triton.cdiv(channels, wide), clients)](
        moments.means, moments.squares, *spread, parts, rows, moments.rows_each, eps,
        CHANNELS=channels, WIDE=wide, SOME=64,
    )  # fmt: skip
    return spread


def _launch(inner: torch.Tensor) -> tuple[tuple[int, int, int], dict[str, int], int, int]:
    """Grid and shape of a launch, the rows of a client, and those of a part."""
    channels, rows = inner.shape[-1], inner.shape[1:4].numel()
    wide = min(64, triton.next_power_of_2(channels))
    height = ROWS * 64 // wide
    rows_each = triton.cdiv(triton.cdiv(rows, PARTS), height) * height
    grid = triton.cdiv(channels, wide), triton.cdiv(rows, rows_each), len(inner)
    return grid, {"CHANNELS": channels, "WIDE": wide, "ROWS": height}, rows, rows_each
