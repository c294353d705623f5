"""Batch normalisation of many clients on a GPU, with what often follows, a sum and a ReLU, in two passes each way.

Values are [client, row, channel] in memory, a row being a place of an image of the batch. Every client's
channels have their own mean and variance over the rows, taken in parts side by side and then combined.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from histfl.engines.layout import innermost, outermost

PARTS = 32  # of the rows, so that even a few clients fill a GPU
ROWS = 64  # of 64 channels read at once; more of fewer


@triton.jit
def _moments(
    values, counts, means, squares, rows, rows_each,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Number, mean and sum of squared deviations of a part's rows, from their distances to the first one."""
    client, part = tl.program_id(2), tl.program_id(1)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = channel < CHANNELS
    values += client.to(tl.int64) * rows * CHANNELS
    begin, end = part * rows_each, tl.minimum((part + 1) * rows_each, rows)
    origin = tl.load(values + begin * CHANNELS + channel, mask=inside & (begin < end), other=0.0).to(
        tl.float32
    )
    distances = tl.zeros((ROWS, WIDE), tl.float32)
    products = tl.zeros((ROWS, WIDE), tl.float32)
    for first in range(begin, end, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < end)[:, None] & inside[None, :]
        block = tl.load(values + row[:, None] * CHANNELS + channel[None, :], mask=known, other=0.0)
        apart = tl.where(known, block.to(tl.float32) - origin[None, :], 0.0)
        distances += apart
        products += apart * apart
    count = tl.maximum(end - begin, 0).to(tl.float32)
    distance = tl.sum(distances, axis=0)
    centre = distance / tl.maximum(count, 1.0)
    at = (client * tl.num_programs(1) + part) * CHANNELS + channel
    tl.store(counts + at, count + tl.zeros((WIDE,), tl.float32), mask=inside)
    tl.store(means + at, origin + centre, mask=inside)
    tl.store(squares + at, tl.maximum(tl.sum(products, axis=0) - distance * centre, 0.0), mask=inside)


@triton.jit
def _combined(
    counts, means, squares, client, channel, rows, eps, CHANNELS: tl.constexpr, PARTS: tl.constexpr
):
    """Mean and inverse deviation of the channels from their parts."""
    at = (client * PARTS + tl.arange(0, PARTS))[:, None] * CHANNELS + channel[None, :]
    known = (channel < CHANNELS)[None, :]
    count = tl.load(counts + at, mask=known, other=0.0)
    mean = tl.load(means + at, mask=known, other=0.0)
    square = tl.load(squares + at, mask=known, other=0.0)
    whole = tl.sum(count * mean, axis=0) / rows
    apart = mean - whole[None, :]
    variance = (tl.sum(square, axis=0) + tl.sum(count * apart * apart, axis=0)) / rows
    return whole, 1.0 / tl.sqrt(variance + eps)


@triton.jit
def _normalise(
    values, counts, means, squares, weight, bias, added, result, rows, rows_each, eps,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    ADDED: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    client, part = tl.program_id(2), tl.program_id(1)
    channel, inside, mean, inverse, own_weight, own_bias = _channels(
        counts, means, squares, weight, bias, rows, eps, CHANNELS, WIDE, PARTS
    )
    scale = inverse * own_weight
    shift = own_bias - mean * scale
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
def _channels(
    counts, means, squares, weight, bias, rows, eps,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A program's channels, which of them there are, and their mean, inverse deviation, weight and bias."""
    client = tl.program_id(2)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = channel < CHANNELS
    mean, inverse = _combined(counts, means, squares, client, channel, rows, eps, CHANNELS, PARTS)
    own_weight = tl.load(weight + client * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
    own_bias = tl.load(bias + client * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
    return channel, inside, mean, inverse, own_weight, own_bias


@triton.jit
def _pulled(values, gradient, at, known, mean, inverse, weight, bias, RELU: tl.constexpr):
    """The gradient at some entries, behind the RELU if there is one, and the values normalised."""
    pull = tl.load(gradient + at, mask=known, other=0.0).to(tl.float32)
    normal = (tl.load(values + at, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    if RELU:
        pull = tl.where(normal * weight[None, :] + bias[None, :] > 0.0, pull, 0.0)
    return pull, normal


@triton.jit
def _pull_sums(
    values, gradient, counts, means, squares, weight, bias, output, cut, pulls, products, rows, rows_each, eps,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    RELU: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    """Sums over a part's rows of the gradient, and of its product with the normalised values.

    With CUT, where the ReLU came after a sum, `output` tells what passed it, and the gradient before it is left
    in `cut`.
    """
    client, part = tl.program_id(2), tl.program_id(1)
    channel, inside, mean, inverse, own_weight, own_bias = _channels(
        counts, means, squares, weight, bias, rows, eps, CHANNELS, WIDE, PARTS
    )
    before = client.to(tl.int64) * rows * CHANNELS
    total = tl.zeros((ROWS, WIDE), tl.float32)
    product = tl.zeros((ROWS, WIDE), tl.float32)
    end = tl.minimum((part + 1) * rows_each, rows)
    for first in range(part * rows_each, end, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < end)[:, None] & inside[None, :]
        at = row[:, None] * CHANNELS + channel[None, :]
        pull, normal = _pulled(
            values + before,
            gradient + before,
            at,
            known,
            mean,
            inverse,
            own_weight,
            own_bias,
            RELU,
        )
        if CUT:
            pull = tl.where(tl.load(output + before + at, mask=known, other=0.0) > 0.0, pull, 0.0)
            tl.store(cut + before + at, pull.to(cut.dtype.element_ty), mask=known)
        total += pull
        product += pull * normal
    to = (client * PARTS + part) * CHANNELS + channel
    tl.store(pulls + to, tl.sum(total, axis=0), mask=inside)
    tl.store(products + to, tl.sum(product, axis=0), mask=inside)


@triton.jit
def _value_gradient(
    values, gradient, counts, means, squares, weight, bias, pulls, products, result, rows, rows_each, eps,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    client, part = tl.program_id(2), tl.program_id(1)
    channel, inside, mean, inverse, own_weight, own_bias = _channels(
        counts, means, squares, weight, bias, rows, eps, CHANNELS, WIDE, PARTS
    )
    parts = (client * PARTS + tl.arange(0, PARTS))[:, None] * CHANNELS + channel[None, :]
    mean_pull = tl.sum(tl.load(pulls + parts, mask=inside[None, :], other=0.0), axis=0) / rows
    mean_product = tl.sum(tl.load(products + parts, mask=inside[None, :], other=0.0), axis=0) / rows
    before = client.to(tl.int64) * rows * CHANNELS
    end = tl.minimum((part + 1) * rows_each, rows)
    for first in range(part * rows_each, end, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < end)[:, None] & inside[None, :]
        at = row[:, None] * CHANNELS + channel[None, :]
        pull, normal = _pulled(
            values + before, gradient + before, at, known, mean, inverse, own_weight, own_bias, RELU
        )
        found = (own_weight * inverse)[None, :] * (pull - mean_pull[None, :] - normal * mean_product[None, :])
        tl.store(result + before + at, found.to(result.dtype.element_ty), mask=known)


def stacked_normalisation(
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    added: torch.Tensor | None = None,
    *,
    relu: bool = False,
) -> torch.Tensor:
    """Client i's values [client, batch, channel, height, width], channels innermost in memory, normalised by
    their own mean and variance a channel, times weight[i] [channel], plus bias[i]; then, where wanted, plus
    `added`, and ReLU."""
    if added is not None and (added.shape, added.dtype) != (values.shape, values.dtype):
        found = stacked_normalisation(values, weight, bias, eps) + added
        return torch.relu(found) if relu else found
    return _StackedNormalisation.apply(values, weight, bias, added, eps, relu)  # type: ignore[no-any-return]


class _StackedNormalisation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        added: torch.Tensor | None,
        eps: float,
        relu: bool,
    ) -> torch.Tensor:
        inner = innermost(values)
        grid, shape, rows, rows_each = _launch(inner)
        moments = torch.empty(3, len(inner), PARTS, inner.shape[-1], dtype=torch.float32, device=inner.device)
        _moments[grid](inner, *moments, rows, rows_each, **shape)
        result = torch.empty_like(inner)
        more = None if added is None else innermost(added)
        _normalise[grid](
            inner, *moments, weight, bias, more, result, rows, rows_each, eps,
            **shape, PARTS=PARTS, ADDED=more is not None, RELU=relu,
        )  # fmt: skip
        ctx.save_for_backward(inner, weight, bias, moments, *((result,) if relu and more is not None else ()))
        ctx.eps, ctx.relu, ctx.added = eps, relu, more is not None
        return outermost(result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inner, weight, bias, moments, *output = ctx.saved_tensors
        pull = innermost(gradient)
        grid, shape, rows, rows_each = _launch(inner)
        sums = torch.empty(2, len(inner), PARTS, inner.shape[-1], dtype=torch.float32, device=inner.device)
        cut = torch.empty_like(inner) if output else None
        _pull_sums[grid](
            inner, pull, *moments, weight, bias, *(output or [None]), cut, *sums, rows, rows_each, ctx.eps,
            **shape, PARTS=PARTS, RELU=ctx.relu and not ctx.added, CUT=cut is not None,
        )  # fmt: skip
        pull = pull if cut is None else cut
        result = torch.empty_like(inner)
        _value_gradient[grid](
            inner, pull, *moments, weight, bias, *sums, result, rows, rows_each, ctx.eps,
            **shape, PARTS=PARTS, RELU=ctx.relu and not ctx.added,
        )  # fmt: skip
        for_bias, for_weight = sums.sum(dim=2)
        for_added = outermost(pull) if ctx.added else None
        return outermost(result), for_weight.to(weight.dtype), for_bias.to(bias.dtype), for_added, None, None


def _launch(inner: torch.Tensor) -> tuple[tuple[int, int, int], dict[str, int], int, int]:
    """Grid and shape of a launch, the rows of a client, and those of a part."""
    channels, rows = inner.shape[-1], inner.shape[1:4].numel()
    wide = min(64, triton.next_power_of_2(channels))
    height = ROWS * 64 // wide
    rows_each = triton.cdiv(triton.cdiv(rows, PARTS), height) * height
    grid = triton.cdiv(channels, wide), PARTS, len(inner)
    return grid, {"CHANNELS": channels, "WIDE": wide, "ROWS": height}, rows, rows_each
