"""Batch normalisation of many clients on a GPU, with the ReLU that often follows, in two passes each way.

Values are [client, row, channel] in memory, a row being a place of an image of the batch. Every client's
channels have their own mean and variance over the rows, taken in parts side by side and then combined.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

PARTS = 16  # of the rows, so that even a few clients fill a GPU
ROWS = 64  # read at once


@triton.jit
def _moments(
    values, counts, means, squares, rows, rows_each,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Number, mean and sum of squared deviations of a part's rows, merged block by block (Chan et al.)."""
    client, part = tl.program_id(2), tl.program_id(1)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    values += client.to(tl.int64) * rows * CHANNELS
    count = tl.zeros((WIDE,), tl.float32)
    mean = tl.zeros((WIDE,), tl.float32)
    square = tl.zeros((WIDE,), tl.float32)
    last = tl.minimum((part + 1) * rows_each, rows)
    for first in range(part * rows_each, last, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < last)[:, None] & (channel < CHANNELS)[None, :]
        block = tl.load(values + row[:, None] * CHANNELS + channel[None, :], mask=known, other=0.0).to(
            tl.float32
        )
        number = tl.minimum(last - first, ROWS).to(tl.float32)
        centre = tl.sum(block, axis=0) / number
        apart = tl.where(known, block - centre[None, :], 0.0)
        difference = centre - mean
        together = count + number
        mean += difference * (number / together)
        square += tl.sum(apart * apart, axis=0) + difference * difference * (count * number / together)
        count = together
    at = (client * tl.num_programs(1) + part) * CHANNELS + channel
    tl.store(counts + at, count, mask=channel < CHANNELS)
    tl.store(means + at, mean, mask=channel < CHANNELS)
    tl.store(squares + at, square, mask=channel < CHANNELS)


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
    values, counts, means, squares, weight, bias, result, rows, eps,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    mean, scale = _combined(counts, means, squares, client, channel, rows, eps, CHANNELS, PARTS)
    inside = channel < CHANNELS
    scale *= tl.load(weight + client * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + client * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32) - mean * scale
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = client.to(tl.int64) * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
    known = (row < rows)[:, None] & inside[None, :]
    found = tl.load(values + at, mask=known, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if RELU:
        found = tl.maximum(found, 0.0)
    tl.store(result + at, found.to(result.dtype.element_ty), mask=known)


@triton.jit
def _pulled(values, gradient, at, known, mean, inverse, weight, bias, RELU: tl.constexpr):
    """The gradient of the normalised, scaled values, and the values normalised."""
    normal = (tl.load(values + at, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    pull = tl.load(gradient + at, mask=known, other=0.0).to(tl.float32)
    if RELU:
        pull = tl.where(normal * weight[None, :] + bias[None, :] > 0.0, pull, 0.0)
    return pull, tl.where(known, normal, 0.0)


@triton.jit
def _pull_sums(
    values, gradient, counts, means, squares, weight, bias, pulls, products, rows, rows_each, eps,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Sums over a part's rows of the gradient, and of its product with the normalised values."""
    client, part = tl.program_id(2), tl.program_id(1)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = channel < CHANNELS
    mean, inverse = _combined(counts, means, squares, client, channel, rows, eps, CHANNELS, PARTS)
    own_weight = tl.load(weight + client * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
    own_bias = tl.load(bias + client * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((WIDE,), tl.float32)
    product = tl.zeros((WIDE,), tl.float32)
    last = tl.minimum((part + 1) * rows_each, rows)
    for first in range(part * rows_each, last, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < last)[:, None] & inside[None, :]
        at = client.to(tl.int64) * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
        pull, normal = _pulled(values, gradient, at, known, mean, inverse, own_weight, own_bias, RELU)
        total += tl.sum(pull, axis=0)
        product += tl.sum(pull * normal, axis=0)
    to = (client * PARTS + part) * CHANNELS + channel
    tl.store(pulls + to, total, mask=inside)
    tl.store(products + to, product, mask=inside)


@triton.jit
def _value_gradient(
    values, gradient, counts, means, squares, weight, bias, pulls, products, result, rows, eps,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = channel < CHANNELS
    mean, inverse = _combined(counts, means, squares, client, channel, rows, eps, CHANNELS, PARTS)
    own_weight = tl.load(weight + client * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
    own_bias = tl.load(bias + client * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
    parts = (client * PARTS + tl.arange(0, PARTS))[:, None] * CHANNELS + channel[None, :]
    mean_pull = tl.sum(tl.load(pulls + parts, mask=inside[None, :], other=0.0), axis=0) / rows
    mean_product = tl.sum(tl.load(products + parts, mask=inside[None, :], other=0.0), axis=0) / rows
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = client.to(tl.int64) * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
    known = (row < rows)[:, None] & inside[None, :]
    pull, normal = _pulled(values, gradient, at, known, mean, inverse, own_weight, own_bias, RELU)
    found = (own_weight * inverse)[None, :] * (pull - mean_pull[None, :] - normal * mean_product[None, :])
    tl.store(result + at, found.to(result.dtype.element_ty), mask=known)


def stacked_normalisation(
    values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, *, relu: bool = False
) -> torch.Tensor:
    """Client i's values [client, batch, channel, height, width], channels innermost in memory, normalised by
    their own mean and variance a channel, times weight[i] [channel], plus bias[i]; then `relu`."""
    found: torch.Tensor = _StackedNormalisation.apply(values, weight, bias, eps, relu)  # type: ignore[no-untyped-call]
    return found


class _StackedNormalisation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, relu: bool
    ) -> torch.Tensor:
        inner = values.permute(0, 1, 3, 4, 2).contiguous()
        clients, channels, rows = len(inner), inner.shape[-1], inner.shape[1:4].numel()
        moments = torch.empty(3, clients, PARTS, channels, dtype=torch.float32, device=values.device)
        rows_each = triton.cdiv(triton.cdiv(rows, PARTS), ROWS) * ROWS
        wide = min(64, triton.next_power_of_2(channels))
        tiles = triton.cdiv(channels, wide)
        _moments[(tiles, PARTS, clients)](
            inner, *moments, rows, rows_each, CHANNELS=channels, WIDE=wide, ROWS=ROWS
        )
        result = torch.empty_like(inner)
        _normalise[(tiles, triton.cdiv(rows, ROWS), clients)](
            inner, *moments, weight, bias, result, rows, eps,
            CHANNELS=channels, WIDE=wide, ROWS=ROWS, PARTS=PARTS, RELU=relu,
        )  # fmt: skip
        ctx.save_for_backward(inner, weight, bias, moments)
        ctx.eps, ctx.relu = eps, relu
        return result.permute(0, 1, 4, 2, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inner, weight, bias, moments = ctx.saved_tensors
        clients, channels, rows = len(inner), inner.shape[-1], inner.shape[1:4].numel()
        pull = gradient.permute(0, 1, 3, 4, 2).contiguous()
        sums = torch.empty(2, clients, PARTS, channels, dtype=torch.float32, device=inner.device)
        rows_each = triton.cdiv(triton.cdiv(rows, PARTS), ROWS) * ROWS
        wide = min(64, triton.next_power_of_2(channels))
        tiles = triton.cdiv(channels, wide)
        shape = {"CHANNELS": channels, "WIDE": wide, "ROWS": ROWS, "PARTS": PARTS, "RELU": ctx.relu}
        _pull_sums[(tiles, PARTS, clients)](
            inner, pull, *moments, weight, bias, *sums, rows, rows_each, ctx.eps, **shape
        )
        result = torch.empty_like(inner)
        _value_gradient[(tiles, triton.cdiv(rows, ROWS), clients)](
            inner, pull, *moments, weight, bias, *sums, result, rows, ctx.eps, **shape
        )
        for_bias, for_weight = sums.sum(dim=2)
        return result.permute(0, 1, 4, 2, 3), for_weight.to(weight.dtype), for_bias.to(bias.dtype), None, None
