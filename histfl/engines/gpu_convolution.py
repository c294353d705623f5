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

ENOUGH_PROGRAMS = 2048  # to fill a GPU many times over


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
    first_y, first_x = (rest // DIVIDE + add) % DIVIDE, (rest % DIVIDE + add) % DIVIDE
    some_high = (taps_high - first_y + DIVIDE - 1) // DIVIDE
    some_wide = (taps_wide - first_x + DIVIDE - 1) // DIVIDE
    blocks: tl.constexpr = 1 if FEW else (CHANNELS + INNER - 1) // INNER
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for turn in range(0, some_high * some_wide * blocks):
        tap_y = first_y + turn // blocks // some_wide * DIVIDE
        tap_x = first_x + turn // blocks % some_wide * DIVIDE
        from_y, here_y = _source(y, tap_y, multiply, add, step, DIVIDE, source_height)
        from_x, here_x = _source(x, tap_x, multiply, add, step, DIVIDE, source_width)
        known = inside & here_y & here_x
        values_at = source + ((image * source_height + from_y) * source_width + from_x) * CHANNELS
        weights_at = kernel + (tap_y * taps_wide + tap_x) * kernel_tap + column * kernel_out
        if FEW:  # too few CHANNELS for tensor cores
            for channel in tl.static_range(CHANNELS):
                value = tl.load(values_at + channel, mask=known, other=0.0)
                weight = tl.load(weights_at + channel * kernel_in, mask=column < OUT, other=0.0)
                total += value[:, None].to(tl.float32) * weight[None, :].to(tl.float32)
        else:
            channel = turn % blocks * INNER + tl.arange(0, INNER)
            values = tl.load(
                values_at[:, None] + channel[None, :],
                mask=known[:, None] & (channel < CHANNELS)[None, :],
                other=0.0,
            )
            weights = tl.load(
                weights_at[None, :] + (channel * kernel_in)[:, None],
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
    clients, batch, source_height, source_width, height, width, channels, out,
    taps_high, taps_wide,
    multiply, add, step,
    rows_each,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """result[part, client, out, tap and channel] = sum over the part's rows of gradient * image."""
    client = (tl.program_id(2) % clients).to(tl.int64)
    part = tl.program_id(2) // clients
    images += client * batch * source_height * source_width * channels
    gradient += client * batch * height * width * out
    to = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    both = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    columns = taps_high * taps_wide * channels
    tap = both // channels
    tap_y, tap_x = tap // taps_wide * step + add, tap % taps_wide * step + add
    taps_at = (tap_y * source_width + tap_x) * channels + both % channels
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    last = tl.minimum((part + 1) * rows_each, batch * height * width)
    for first in range(part * rows_each, last, INNER):
        row = first + tl.arange(0, INNER)
        inside = row < last
        image, y, x = row // (height * width), row // width % height * multiply, row % width * multiply
        pulls = tl.load(
            gradient + row[:, None] * out + to[None, :],
            mask=inside[:, None] & (to < out)[None, :],
            other=0.0,
        )
        from_y, from_x = y[:, None] + tap_y[None, :], x[:, None] + tap_x[None, :]
        known = (from_y >= 0) & (from_y < source_height) & (from_x >= 0) & (from_x < source_width)
        rows_at = ((image * source_height + y) * source_width + x) * channels
        values = tl.load(
            images + rows_at[:, None] + taps_at[None, :],
            mask=known & inside[:, None] & (both < columns)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(pulls), values, total, input_precision=PRECISION)
    result += (part * clients + client) * out * columns
    tl.store(
        result + to[:, None] * columns + both[None, :],
        total,
        mask=(to < out)[:, None] & (both < columns)[None, :],
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
    outputs: torch.Tensor = _StackedConvolution.apply(images, kernels, bias, geometry, half)
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
        inner_images, inner_kernels = innermost(images.to(dtype)), innermost(kernels.to(dtype))
        ctx.save_for_backward(inner_images, inner_kernels)
        ctx.geometry, ctx.kinds = (
            geometry,
            (images.dtype, kernels.dtype, None if bias is None else bias.dtype),
        )
        return outermost(_outputs(inner_images, inner_kernels, bias, geometry))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        images, kernels = ctx.saved_tensors
        wants_images, wants_kernels, wants_bias, *_ = ctx.needs_input_grad
        of_images, of_kernels, of_bias = ctx.kinds
        gradient = innermost(gradient.to(images.dtype))
        return (
            outermost(_image_gradient(gradient, kernels, images.shape, ctx.geometry)).to(of_images)
            if wants_images
            else None,
            outermost(_kernel_gradient(gradient, images, kernels.shape, ctx.geometry)).to(of_kernels)
            if wants_kernels
            else None,
            gradient.sum(dim=(1, 2, 3), dtype=torch.float32).to(of_bias) if wants_bias else None,
            None,
            None,
        )


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """[client, a, channel, height, width] as [client, a, height, width, channel] in memory."""
    return tensor.permute(0, 1, 3, 4, 2).contiguous()


def outermost(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(0, 1, 4, 2, 3)


def _precision(tensor: torch.Tensor) -> str:
    """Of tensor cores: three products of TF32 parts give what one in float32 would."""
    return "tf32" if tensor.dtype != torch.float32 or torch.backends.cudnn.allow_tf32 else "tf32x3"


@dataclass(frozen=True)
class Tile:
    """What one program computes at a time, and by how many warps and stages of loads."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int = 3

    @property
    def options(self) -> dict[str, int]:
        return {
            "ROWS": self.rows, "COLUMNS": self.columns, "INNER": self.inner,
            "num_warps": self.warps, "num_stages": self.stages,
        }  # fmt: skip


# The fastest tiles of those tried on an H200.
def _gathered_tile(channels: int, out: int, dtype: torch.dtype, *, few: bool) -> Tile:
    if few:
        return Tile(256, max(8, triton.next_power_of_2(out)), 16, 2)
    half = dtype != torch.float32
    inner = _tile(channels, 64 if half else 32)
    if out >= 256 and half and inner == 64:
        return Tile(128, 256, inner, 8)
    if out > 16 and (out <= 32 or inner == 16):
        return Tile(256 if inner == 64 else 128, _tile(out, 64), inner, 8 if inner == 64 else 4)
    return Tile(128, _tile(out, 128), inner, 8 if out > 64 and inner == 64 else 4)


def _summed_tile(out: int, entries: int, dtype: torch.dtype) -> Tile:
    rows, inner = _tile(out, 128), 64 if dtype != torch.float32 else 32
    return Tile(rows, _tile(entries, 128) if inner == 64 else 32, inner, 4)


def _tile(length: int, most: int) -> int:
    """A power of two from 16 to `most`, about `length`."""
    return min(most, max(16, 1 << (length - 1).bit_length()))


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
    few = channels < 16 and out <= 16
    tile = _gathered_tile(channels, out, source.dtype, few=few)
    tiles = triton.cdiv(batch * triton.cdiv(height, divide) * triton.cdiv(width, divide), tile.rows)
    _gathered_product[(tiles * divide**2, triton.cdiv(out, tile.columns), clients)](
        source, kernels, bias, result,
        batch, source_height, source_width, height, width,
        *taps, *places, *strides, kernels[0].numel(),
        DIVIDE=divide, CHANNELS=channels, OUT=out, FEW=few, BIAS=bias is not None,
        PRECISION=_precision(source), **tile.options,
    )  # fmt: skip


def _kernel_gradient(
    gradient: torch.Tensor, images: torch.Tensor, shape: torch.Size, geometry: Convolution
) -> torch.Tensor:
    clients, batch, source_height, source_width, channels = images.shape
    _, out, taps_high, taps_wide, _ = shape
    _, _, height, width, _ = gradient.shape
    entries = taps_high * taps_wide * channels
    tile = _summed_tile(out, entries, images.dtype)
    tiles = triton.cdiv(out, tile.rows) * triton.cdiv(entries, tile.columns)
    all_rows = batch * height * width
    # Sums in parts where there are too few tiles; the parts are then added in one order.
    parts = max(1, min(ENOUGH_PROGRAMS // (tiles * clients), all_rows // (8 * tile.inner)))
    rows_each = triton.cdiv(triton.cdiv(all_rows, parts), tile.inner) * tile.inner
    result = torch.empty(parts, *shape, dtype=torch.float32, device=images.device)
    _summed_product[(triton.cdiv(out, tile.rows), triton.cdiv(entries, tile.columns), clients * parts)](
        images, gradient, result,
        clients, batch, source_height, source_width, height, width, channels, out,
        taps_high, taps_wide,
        geometry.stride, -geometry.padding, geometry.dilation,
        rows_each,
        PRECISION=_precision(images), **tile.options,
    )  # fmt: skip
    return result.sum(dim=0) if parts > 1 else result[0]
