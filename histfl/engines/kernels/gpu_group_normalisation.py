"""Group normalisation of many clients on a GPU, with what often follows, a sum and a ReLU, in one launch each way.

Values are [image, row, channel] in memory, a row being a place of an image; a client's images stand together. One
program takes some whole groups of an image, first for their mean and variance and then, from the cache, to use them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from histfl.engines.kernels.gpu_normalisation import summed
from histfl.engines.kernels.layout import innermost, outermost

MOST_WIDE = 64  # channels of a program, or one group's where it has more
AT_ONCE = 4096  # values that a program reads at once


@triton.jit
def _over_groups(values, GROUP: tl.constexpr, WIDE: tl.constexpr):
    """Every channel's value [WIDE] replaced by the sum over its group of GROUP channels."""
    apart = tl.reshape(values, (WIDE // GROUP, GROUP))
    sums = tl.sum(apart, axis=1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (WIDE // GROUP, GROUP)), (WIDE,))


@triton.jit
def _place(batch, rows, CHANNELS: tl.constexpr, WIDE: tl.constexpr):
    """Where a program's image begins, its channels, which of them there are, and where a client's and an image's
    values of them lie."""
    image = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = channel < CHANNELS
    return (
        image * rows * CHANNELS,
        channel,
        inside,
        image // batch * CHANNELS + channel,
        image * CHANNELS + channel,
    )


@triton.jit
def _normalise(
    values, weight, bias, added, result, mean, inverse, batch, rows, eps,
    CHANNELS: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    ADDED: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    before, channel, inside, of_client, of_image = _place(batch, rows, CHANNELS, WIDE)
    # The moments of every channel, from the distances to its first value; then those of the groups.
    origin = tl.load(values + before + channel, mask=inside, other=0.0).to(tl.float32)
    distances = tl.zeros((ROWS, WIDE), tl.float32)
    products = tl.zeros((ROWS, WIDE), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < rows)[:, None] & inside[None, :]
        block = tl.load(values + before + row[:, None] * CHANNELS + channel[None, :], mask=known, other=0.0)
        apart = tl.where(known, block.to(tl.float32) - origin[None, :], 0.0)
        distances += apart
        products += apart * apart
    distance = tl.sum(distances, axis=0)
    centre = distance / rows
    squares = tl.maximum(tl.sum(products, axis=0) - distance * centre, 0.0)
    group_mean = _over_groups(origin + centre, GROUP, WIDE) / GROUP
    off = origin + centre - group_mean
    variance = _over_groups(squares + rows * off * off, GROUP, WIDE) / (rows * GROUP)
    group_inverse = 1.0 / tl.sqrt(variance + eps)
    tl.store(mean + of_image, group_mean, mask=inside)
    tl.store(inverse + of_image, group_inverse, mask=inside)
    scale = group_inverse * tl.load(weight + of_client, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + of_client, mask=inside, other=0.0).to(tl.float32) - group_mean * scale
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < rows)[:, None] & inside[None, :]
        at = before + row[:, None] * CHANNELS + channel[None, :]
        found = tl.load(values + at, mask=known, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        if ADDED:
            found += tl.load(added + at, mask=known, other=0.0).to(tl.float32)
        if RELU:
            found = tl.maximum(found, 0.0)
        tl.store(result + at, found.to(result.dtype.element_ty), mask=known)


@triton.jit
def _grad_and_normal(
    values, gradient, further, output, at, known, mean, inverse, RELU: tl.constexpr, FURTHER: tl.constexpr
):
    """The gradient at some entries, with FURTHER of two readers and with RELU of what passed it, and the values
    normalised."""
    grad = tl.load(gradient + at, mask=known, other=0.0).to(tl.float32)
    if FURTHER:
        grad += tl.load(further + at, mask=known, other=0.0).to(tl.float32)
    if RELU:
        grad = tl.where(tl.load(output + at, mask=known, other=0.0) > 0.0, grad, 0.0)
    normal = (tl.load(values + at, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    return grad, normal


@triton.jit
def _backward(
    values, gradient, further, output, weight, mean, inverse, for_values, for_added, grads, products, batch, rows,
    CHANNELS: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    ADDED: tl.constexpr, RELU: tl.constexpr, FURTHER: tl.constexpr,
):  # fmt: skip
    """The gradients of the values and of what was added, and sums over an image's rows: of the gradient, and of its
    product with the normalised values."""
    before, channel, inside, of_client, of_image = _place(batch, rows, CHANNELS, WIDE)
    own_mean = tl.load(mean + of_image, mask=inside, other=0.0)
    own_inverse = tl.load(inverse + of_image, mask=inside, other=0.0)
    own_weight = tl.load(weight + of_client, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    product = tl.zeros((ROWS, WIDE), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < rows)[:, None] & inside[None, :]
        at = before + row[:, None] * CHANNELS + channel[None, :]
        grad, normal = _grad_and_normal(
            values, gradient, further, output, at, known, own_mean, own_inverse, RELU, FURTHER
        )
        total += grad
        product += grad * normal
    grad_sum, product_sum = tl.sum(total, axis=0), tl.sum(product, axis=0)
    tl.store(grads + of_image, grad_sum, mask=inside)
    tl.store(products + of_image, product_sum, mask=inside)
    mean_grad = _over_groups(own_weight * grad_sum, GROUP, WIDE) / (rows * GROUP)
    mean_product = _over_groups(own_weight * product_sum, GROUP, WIDE) / (rows * GROUP)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        known = (row < rows)[:, None] & inside[None, :]
        at = before + row[:, None] * CHANNELS + channel[None, :]
        grad, normal = _grad_and_normal(
            values, gradient, further, output, at, known, own_mean, own_inverse, RELU, FURTHER
        )
        found = own_weight[None, :] * grad - mean_grad[None, :] - normal * mean_product[None, :]
        found *= own_inverse[None, :]
        tl.store(for_values + at, found.to(for_values.dtype.element_ty), mask=known)
        if ADDED:
            tl.store(for_added + at, grad.to(for_added.dtype.element_ty), mask=known)


def stacked_group_normalisation(
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    group: int,
    eps: float,
    added: torch.Tensor | None = None,
    *,
    relu: bool = False,
    twice: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Client i's values [client, batch, channel, height, width], channels innermost in memory, normalised by the
    mean and variance of every `group` channels of an image, times weight[i] [channel], plus bias[i]; then, where
    wanted, plus `added`, and ReLU. `group` is a power of two.

    `twice` gives the outputs two times, for two readers: their gradients are then added on the way.
    """
    if added is not None and (added.shape, added.dtype) != (values.shape, values.dtype):
        plain = _StackedGroupNormalisation.apply(values, weight, bias, None, group, eps, False, False)
        return summed(plain, added, relu=relu, twice=twice)
    return _StackedGroupNormalisation.apply(values, weight, bias, added, group, eps, relu, twice)  # type: ignore[no-any-return]


class _StackedGroupNormalisation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        added: torch.Tensor | None,
        group: int,
        eps: float,
        relu: bool,
        twice: bool,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        inner = innermost(values)
        grid, shape, rows = _launch(inner, group)
        spread = torch.empty(2, *inner.shape[:2], inner.shape[-1], dtype=torch.float32, device=inner.device)
        result = torch.empty_like(inner)
        more = None if added is None else innermost(added)
        _normalise[grid](
            inner, weight, bias, more, result, *spread, inner.shape[1], rows, eps,
            **shape, ADDED=more is not None, RELU=relu,
        )  # fmt: skip
        ctx.save_for_backward(inner, weight, spread, *((result,) if relu else ()))
        ctx.group, ctx.relu, ctx.added, ctx.bias_dtype = group, relu, more is not None, bias.dtype
        return (outermost(result), outermost(result)) if twice else outermost(result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inner, weight, spread, *output = ctx.saved_tensors
        grad, further = (*map(innermost, gradients), None)[:2]
        grid, shape, rows = _launch(inner, ctx.group)
        sums, for_values = torch.empty_like(spread), torch.empty_like(inner)
        for_added = torch.empty_like(inner) if ctx.added else None
        _backward[grid](
            inner, grad, further, *(output or [None]), weight, *spread, for_values, for_added, *sums,
            inner.shape[1], rows, **shape, ADDED=ctx.added, RELU=ctx.relu, FURTHER=further is not None,
        )  # fmt: skip
        for_bias, for_weight = sums.sum(dim=2)
        return (
            outermost(for_values),
            for_weight.to(weight.dtype),
            for_bias.to(ctx.bias_dtype),
            None if for_added is None else outermost(for_added),
            None,
            None,
            None,
            None,
        )


def _launch(inner: torch.Tensor, group: int) -> tuple[tuple[int, int], dict[str, int], int]:
    """Grid and shape of a launch, and the rows of an image."""
    clients, batch, height, width, channels = inner.shape
    rows = height * width
    wide = max(group, min(MOST_WIDE, triton.next_power_of_2(channels)))
    at_once = min(triton.next_power_of_2(rows), max(1, AT_ONCE // wide))
    grid = triton.cdiv(channels, wide), clients * batch
    return grid, {"CHANNELS": channels, "GROUP": group, "WIDE": wide, "ROWS": at_once}, rows
