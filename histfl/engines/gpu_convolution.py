"""Convolutions of many clients, each with kernels of its own, as single launches on a GPU.

cuDNN convolves images with one set of kernels. The clients' small convolutions one after another leave most
of a GPU idle, and as groups of one wide convolution they meet its slowest kernels. Here a program computes a
tile of one client's products, channels innermost: images [client, batch, height, width, channel], kernels
[client, out, height, width, in].

All three products of a layer gather rows of a source at every tap of the kernel. With the source position of
row r at tap k, along either axis, being (multiply * r + add + step * k) / divide where that is whole:

    outputs             rows are outputs, the source is the images     multiply = stride, add = -padding
    gradient of images  rows are images, the source is the gradient    divide = stride, add = padding, step < 0
    gradient of kernels as outputs, summed over rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

ENOUGH_PROGRAMS = 1024  # to fill a GPU several times over


@triton.jit
def _source(row, tap, multiply, add, step, divide: tl.constexpr, length):
    """Where rows find their source at a tap along one axis, and whether they do."""
    place = row * multiply + add + tap * step
    if divide == 1:
        return place, (place >= 0) & (place < length)
    whole = place // divide
    return whole, (place >= 0) & (place % divide == 0) & (whole < length)


@triton.jit
def _gathered_product(
    source, kernel, bias, result,
    batch, source_height, source_width, height, width,
    taps_high, taps_wide,
    multiply, add, step,
    kernel_in, kernel_tap, kernel_out, kernel_client,
    DIVIDE: tl.constexpr, CHANNELS: tl.constexpr, OUT: tl.constexpr, FEW: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """result[row, out] = sum over taps and channels of source[at row and tap, channel] * kernel."""
    client = tl.program_id(2).to(tl.int64)
    source += client * batch * source_height * source_width * CHANNELS
    result += client * batch * height * width * OUT
    kernel += client * kernel_client
    # Rows of one remainder by DIVIDE stand together, since they share the taps at which they have a source:
    # every DIVIDE-th one (with DIVIDE > 1, `step` is -1).
    high, wide = (height + DIVIDE - 1) // DIVIDE, (width + DIVIDE - 1) // DIVIDE
    tiles = tl.cdiv(batch * high * wide, ROWS)
    rest = tl.program_id(0) // tiles
    row = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    image = row // (high * wide)
    y = (row // wide % high) * DIVIDE + rest // DIVIDE
    x = (row % wide) * DIVIDE + rest % DIVIDE
    inside = (image < batch) & (y < height) & (x < width)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if FEW:  # taps and channels as one axis
        for first in range(0, taps_high * taps_wide * CHANNELS, INNER):
            both = first + inner
            tap, channel = both // CHANNELS, both % CHANNELS
            from_y, here_y = _source(
                y[:, None], (tap // taps_wide)[None, :], multiply, add, step, DIVIDE, source_height
            )
            from_x, here_x = _source(
                x[:, None], (tap % taps_wide)[None, :], multiply, add, step, DIVIDE, source_width
            )
            known = (both < taps_high * taps_wide * CHANNELS)[None, :] & inside[:, None] & here_y & here_x
            at = ((image[:, None] * source_height + from_y) * source_width + from_x) * CHANNELS + channel[
                None, :
            ]
            values = tl.load(source + at, mask=known, other=0.0)
            weights = tl.load(
                kernel + (tap * kernel_tap + channel * kernel_in)[:, None] + (column * kernel_out)[None, :],
                mask=(both < taps_high * taps_wide * CHANNELS)[:, None] & (column < OUT)[None, :],
                other=0.0,
            )
            total = tl.dot(values, weights, total, input_precision=PRECISION)
    else:
        first_y, first_x = (rest // DIVIDE + add) % DIVIDE, (rest % DIVIDE + add) % DIVIDE
        some_high = (taps_high - first_y + DIVIDE - 1) // DIVIDE
        some_wide = (taps_wide - first_x + DIVIDE - 1) // DIVIDE
        blocks: tl.constexpr = (CHANNELS + INNER - 1) // INNER
        for turn in range(0, some_high * some_wide * blocks):
            tap_y = first_y + turn // blocks // some_wide * DIVIDE
            tap_x = first_x + turn // blocks % some_wide * DIVIDE
            channel = turn % blocks * INNER + inner
            from_y, here_y = _source(y, tap_y, multiply, add, step, DIVIDE, source_height)
            from_x, here_x = _source(x, tap_x, multiply, add, step, DIVIDE, source_width)
            known = inside & here_y & here_x
            at = ((image * source_height + from_y) * source_width + from_x) * CHANNELS
            values = tl.load(
                source + at[:, None] + channel[None, :],
                mask=known[:, None] & (channel < CHANNELS)[None, :],
                other=0.0,
            )
            tap = tap_y * taps_wide + tap_x
            weights = tl.load(
                kernel + tap * kernel_tap + (channel * kernel_in)[:, None] + (column * kernel_out)[None, :],
                mask=(channel < CHANNELS)[:, None] & (column < OUT)[None, :],
                other=0.0,
            )
            total = tl.dot(values, weights, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + client * OUT + column, mask=column < OUT, other=0.0).to(tl.float32)[None, :]
    to = ((image * height + y) * width + x)[:, None] * OUT + column[None, :]
    tl.store(result + to, total.to(result.dtype.element_ty), mask=inside[:, None] & (column < OUT)[None, :])


@triton.jit
def _summed_product(
    images, gradient, result,
    clients, batch, source_height, source_width, height, width,
    taps_high, taps_wide,
    multiply, add, step,
    rows_each,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, ONE_TAP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """result[part, client, out, tap and channel] = sum over the part's rows of gradient * image."""
    client = (tl.program_id(2) % clients).to(tl.int64)
    part = tl.program_id(2) // clients
    images += client * batch * source_height * source_width * CHANNELS
    gradient += client * batch * height * width * OUT
    out = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    both = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    columns = taps_high * taps_wide * CHANNELS
    channel = both % CHANNELS
    tap = (tl.program_id(1) * COLUMNS) // CHANNELS if ONE_TAP else both // CHANNELS
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    last = tl.minimum((part + 1) * rows_each, batch * height * width)
    for first in range(part * rows_each, last, INNER):
        row = first + tl.arange(0, INNER)
        inside = row < last
        image, y, x = row // (height * width), row // width % height, row % width
        pulls = tl.load(
            gradient + row[:, None] * OUT + out[None, :],
            mask=inside[:, None] & (out < OUT)[None, :],
            other=0.0,
        )
        if ONE_TAP:
            from_y, here_y = _source(y, tap // taps_wide, multiply, add, step, 1, source_height)
            from_x, here_x = _source(x, tap % taps_wide, multiply, add, step, 1, source_width)
            at = ((image * source_height + from_y) * source_width + from_x)[:, None] * CHANNELS
            known = (inside & here_y & here_x)[:, None]
        else:
            from_y, here_y = _source(
                y[:, None], (tap // taps_wide)[None, :], multiply, add, step, 1, source_height
            )
            from_x, here_x = _source(
                x[:, None], (tap % taps_wide)[None, :], multiply, add, step, 1, source_width
            )
            at = ((image[:, None] * source_height + from_y) * source_width + from_x) * CHANNELS
            known = inside[:, None] & here_y & here_x
        values = tl.load(images + at + channel[None, :], mask=known & (both < columns)[None, :], other=0.0)
        total = tl.dot(tl.trans(pulls), values, total, input_precision=PRECISION)
    result += (part * clients + client) * OUT * columns
    tl.store(
        result + out[:, None] * columns + both[None, :],
        total,
        mask=(out < OUT)[:, None] & (both < columns)[None, :],
    )


@dataclass(frozen=True)
class Convolution:
    """A layer's geometry, the same along both axes."""

    stride: int
    padding: int
    dilation: int

    def length(self, length: int, taps: int) -> int:
        """Outputs along an axis."""
        return (length + 2 * self.padding - self.dilation * (taps - 1) - 1) // self.stride + 1


def stacked_convolution(
    images: torch.Tensor,
    kernels: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    half: torch.dtype | None = None,
) -> torch.Tensor:
    """Client i's images [client, batch, in, height, width] with kernels[i] [out, in, height, width] and bias[i].

    Products and outputs are in `half` precision where it is given.
    """
    geometry = Convolution(stride, padding, dilation)
    outputs: torch.Tensor = _StackedConvolution.apply(images, kernels, bias, geometry, half)  # type: ignore[no-untyped-call]
    return outputs


class _StackedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: torch.Tensor,
        kernels: torch.Tensor,
        bias: torch.Tensor | None,
        geometry: Convolution,
        half: torch.dtype | None,
    ) -> torch.Tensor:
        dtype = half or images.dtype
        inner_images, inner_kernels = _innermost(images.to(dtype)), _innermost(kernels.to(dtype))
        ctx.save_for_backward(inner_images, inner_kernels)
        ctx.geometry, ctx.kinds = (
            geometry,
            (images.dtype, kernels.dtype, None if bias is None else bias.dtype),
        )
        return _outermost(_outputs(inner_images, inner_kernels, bias, geometry))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        images, kernels = ctx.saved_tensors
        wants_images, wants_kernels, wants_bias, *_ = ctx.needs_input_grad
        of_images, of_kernels, of_bias = ctx.kinds
        gradient = _innermost(gradient.to(images.dtype))
        return (
            _outermost(_image_gradient(gradient, kernels, images.shape, ctx.geometry)).to(of_images)
            if wants_images
            else None,
            _outermost(_kernel_gradient(gradient, images, kernels.shape, ctx.geometry)).to(of_kernels)
            if wants_kernels
            else None,
            gradient.sum(dim=(1, 2, 3), dtype=torch.float32).to(of_bias) if wants_bias else None,
            None,
            None,
        )


def _innermost(tensor: torch.Tensor) -> torch.Tensor:
    """[client, a, channel, height, width] as [client, a, height, width, channel] in memory."""
    return tensor.permute(0, 1, 3, 4, 2).contiguous()


def _outermost(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(0, 1, 4, 2, 3)


def _precision(tensor: torch.Tensor) -> str:
    return "tf32" if tensor.dtype != torch.float32 or torch.backends.cudnn.allow_tf32 else "ieee"


def _tile(length: int, most: int) -> int:
    """A power of two from 16 to `most`, about `length`."""
    return min(most, max(16, triton.next_power_of_2(length)))


def _outputs(
    images: torch.Tensor, kernels: torch.Tensor, bias: torch.Tensor | None, geometry: Convolution
) -> torch.Tensor:
    clients, batch, source_height, source_width, channels = images.shape
    _, out, taps_high, taps_wide, _ = kernels.shape
    height, width = geometry.length(source_height, taps_high), geometry.length(source_width, taps_wide)
    result = images.new_empty(clients, batch, height, width, out)
    entries = taps_high * taps_wide * channels
    _launch_gathered(
        images, kernels, bias, result, (taps_high, taps_wide),
        (geometry.stride, -geometry.padding, geometry.dilation), 1, (1, channels, entries),
    )  # fmt: skip
    return result


def _image_gradient(
    gradient: torch.Tensor, kernels: torch.Tensor, shape: torch.Size, geometry: Convolution
) -> torch.Tensor:
    _, _, taps_high, taps_wide, channels = kernels.shape
    result = gradient.new_empty(shape)
    entries = taps_high * taps_wide * channels
    _launch_gathered(
        gradient, kernels, None, result, (taps_high, taps_wide),
        (1, geometry.padding, -geometry.dilation), geometry.stride, (entries, channels, 1),
    )  # fmt: skip
    return result


def _launch_gathered(
    source: torch.Tensor,
    kernels: torch.Tensor,
    bias: torch.Tensor | None,
    result: torch.Tensor,
    taps: tuple[int, int],
    places: tuple[int, int, int],
    divide: int,
    strides: tuple[int, int, int],
) -> None:
    """`places` are multiply, add and step; `strides` those of the kernel's summed channel, tap and result."""
    clients, batch, source_height, source_width, channels = source.shape
    _, _, height, width, out = result.shape
    half = source.dtype != torch.float32
    few = channels % 16 != 0
    rows, columns = 128, _tile(out, 128)
    inner = 32 if few else _tile(channels, 64 if half else 32)
    tiles = triton.cdiv(batch * triton.cdiv(height, divide) * triton.cdiv(width, divide), rows)
    _gathered_product[(tiles * divide**2, triton.cdiv(out, columns), clients)](
        source, kernels, bias, result,
        batch, source_height, source_width, height, width,
        *taps, *places, *strides, kernels[0].numel(),
        DIVIDE=divide, CHANNELS=channels, OUT=out, FEW=few, BIAS=bias is not None,
        ROWS=rows, COLUMNS=columns, INNER=inner, PRECISION=_precision(source),
        num_warps=8 if columns == 128 else 4,
    )  # fmt: skip


def _kernel_gradient(
    gradient: torch.Tensor, images: torch.Tensor, shape: torch.Size, geometry: Convolution
) -> torch.Tensor:
    clients, batch, source_height, source_width, channels = images.shape
    _, out, taps_high, taps_wide, _ = shape
    _, _, height, width, _ = gradient.shape
    entries = taps_high * taps_wide * channels
    rows = _tile(out, 128)
    columns = (
        _tile(channels, 128) if channels % 16 == 0 and channels & (channels - 1) == 0 else _tile(entries, 64)
    )
    tiles = triton.cdiv(out, rows) * triton.cdiv(entries, columns) * clients
    inner = 64 if images.dtype != torch.float32 else 32
    all_rows = batch * height * width
    # Sums in parts where there are too few tiles; the parts are then added in one order.
    parts = max(1, min(ENOUGH_PROGRAMS // tiles, all_rows // (8 * inner)))
    rows_each = triton.cdiv(triton.cdiv(all_rows, parts), inner) * inner
    result = torch.empty(parts, *shape, dtype=torch.float32, device=images.device)
    _summed_product[(triton.cdiv(out, rows), triton.cdiv(entries, columns), clients * parts)](
        images, gradient, result,
        clients, batch, source_height, source_width, height, width,
        taps_high, taps_wide,
        geometry.stride, -geometry.padding, geometry.dilation,
        rows_each,
        CHANNELS=channels, OUT=out, ONE_TAP=channels % columns == 0,
        ROWS=rows, COLUMNS=columns, INNER=inner, PRECISION=_precision(images),
        num_warps=8 if rows * columns > 64 * 64 else 4,
    )  # fmt: skip
    return result.sum(dim=0) if parts > 1 else result[0]
