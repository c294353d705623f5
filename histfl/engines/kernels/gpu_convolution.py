"""Convolutions of many clients, each with kernels of its own, as single launches on a GPU.

cuDNN convolves images with one set of kernels. The clients' small convolutions one after another leave most
of a GPU idle, and as groups of one wide convolution they meet its slowest kernels. Here channels are innermost:
images [client, batch, height, width, channel], kernels [client, out, height, width, in].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch.autograd.function import once_differentiable

from histfl.engines.kernels.gpu_convolution_products import gathered_product, summed_product
from histfl.engines.kernels.gpu_normalisation import Moments
from histfl.engines.kernels.layout import innermost, outermost
from histfl.engines.kernels.linear import LayerCall, remembered
from histfl.training.optimisers import InPlaceSGD

ENOUGH_PROGRAMS = 2048  # to fill a GPU many times over


class Convolution(NamedTuple):  # a tuple, since graphs know no other constants
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
    geometry: Convolution,
    half: torch.dtype | None = None,
    calls: list[LayerCall] | None = None,
    moments: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, Moments]:
    """Client i's images [client, batch, in, height, width] with kernels[i] [out, in, height, width] and bias[i];
    where wanted, with the moments of the outputs, for a normalisation.

    Products and outputs are in `half` precision where it is given. With `calls`, autograd sees kernels and bias
    as constants, and the call is added to the list.
    """
    if calls is None:
        outputs, found = _convolved(images, kernels, bias, geometry, half, moments)
        return (outputs, found) if moments else outputs
    layer = _StackedLayer(kernels, bias, geometry)
    constant = kernels.detach(), None if bias is None else bias.detach()
    outputs, found = _convolved(images, *constant, geometry, half, moments)
    if layer.trained:
        outputs = remembered(layer, images, outputs, calls)
    return (outputs, found) if moments else outputs


class _StackedLayer:
    """The kernels [client, out, in, height, width] and biases of many clients, in a step changed in place."""

    def __init__(self, kernels: torch.Tensor, bias: torch.Tensor | None, geometry: Convolution) -> None:
        self.kernels, self.geometry = (kernels.detach() if kernels.requires_grad else None), geometry
        self.bias = None if bias is None or not bias.requires_grad else bias.detach()
        self.trained = self.kernels is not None or self.bias is not None

    def step(self, inputs: torch.Tensor, gradient: torch.Tensor, sgd: InPlaceSGD) -> None:
        gradient = innermost(gradient)
        if self.bias is not None:
            sgd.step(self.bias, gradient.sum(dim=(1, 2, 3), dtype=self.bias.dtype))
        if self.kernels is not None:
            images, kernels = innermost(inputs.to(gradient.dtype)), self.kernels.permute(0, 1, 3, 4, 2)
            sums = _Sums(gradient, images, kernels.shape, self.geometry)
            if sums.parts == 1 and kernels.is_contiguous():
                sums.launch(kernels, sgd)
            else:
                sgd.step(kernels, sums.total())


def _convolved(*arguments: Any) -> tuple[torch.Tensor, Moments]:
    outputs, moments = _StackedConvolution.apply(*arguments)
    return outputs, moments


class _StackedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: torch.Tensor,
        kernels: torch.Tensor,
        bias: torch.Tensor | None,
        geometry: Convolution,
        half: torch.dtype | None,
        moments: bool,
    ) -> tuple[torch.Tensor, Moments | None]:
        dtype = half or images.dtype
        inner_images, inner_kernels = innermost(images.to(dtype)), innermost(kernels.to(dtype))
        ctx.save_for_backward(inner_images, inner_kernels)
        ctx.geometry = geometry
        ctx.kinds = images.dtype, kernels.dtype, None if bias is None else bias.dtype
        outputs, found = _outputs(inner_images, inner_kernels, bias, geometry, moments)
        return outermost(outputs), found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: None) -> tuple[torch.Tensor | None, ...]:
        images, kernels = ctx.saved_tensors
        wants_images, wants_kernels, wants_bias, *_ = ctx.needs_input_grad
        of_images, of_kernels, of_bias = ctx.kinds
        gradient = innermost(gradient.to(images.dtype))
        return (
            outermost(_image_gradient(gradient, kernels, images.shape, ctx.geometry)).to(of_images)
            if wants_images
            else None,
            outermost(_Sums(gradient, images, kernels.shape, ctx.geometry).total()).to(of_kernels)
            if wants_kernels
            else None,
            gradient.sum(dim=(1, 2, 3), dtype=torch.float32).to(of_bias) if wants_bias else None,
            None,
            None,
            None,
        )


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
    if half and min(channels, out) >= 256:
        return Tile(128, 256, inner, 8)
    if out > 16 and (out <= 32 or inner == 16):
        return Tile(256 if inner == 64 else 128, _tile(out, 64), inner, 8 if inner == 64 else 4)
    return Tile(128, _tile(out, 128), inner, 4)


def _summed_tile(out: int, entries: int, dtype: torch.dtype) -> Tile:
    rows, inner = _tile(out, 128), 64 if dtype != torch.float32 else 32
    return Tile(rows, _tile(entries, 128) if inner == 64 else 32, inner, 4)


def _tile(length: int, most: int) -> int:
    """A power of two from 16 to `most`, about `length`."""
    return min(most, max(16, 1 << (length - 1).bit_length()))


def _outputs(
    images: torch.Tensor,
    kernels: torch.Tensor,
    bias: torch.Tensor | None,
    geometry: Convolution,
    with_moments: bool,
) -> tuple[torch.Tensor, Moments | None]:
    clients, batch, source_height, source_width, channels = images.shape
    _, out, taps_high, taps_wide, _ = kernels.shape
    height, width = geometry.length(source_height, taps_high), geometry.length(source_width, taps_wide)
    result = images.new_empty(clients, batch, height, width, out)
    entries = taps_high * taps_wide * channels
    moments = _launch_gathered(
        images, kernels, bias, result, (taps_high, taps_wide),
        (geometry.stride, -geometry.padding, geometry.dilation), 1, (1, channels, entries), with_moments,
    )  # fmt: skip
    return result, moments


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
    with_moments: bool = False,
) -> Moments | None:
    """`places` are multiply, add and step; `strides` those of the kernel's summed channel, tap and result."""
    clients, batch, _, _, channels = source.shape
    _, _, height, width, out = result.shape
    few = channels < 16 and out <= 16
    tile = _gathered_tile(channels, out, source.dtype, few=few)
    tiles = triton.cdiv(batch * triton.cdiv(height, divide) * triton.cdiv(width, divide), tile.rows)
    moments = Moments.empty(result, tile.rows) if with_moments else None
    gathered_product[(tiles * divide**2, triton.cdiv(out, tile.columns), clients)](
        source, kernels, bias, result, *((moments.means, moments.squares) if moments else (None, None)), batch,
        *strides, kernels[0].numel(),
        **_shape(source, result, taps, places), DIVIDE=divide, FEW=few,
        BIAS=bias is not None, MOMENTS=with_moments, PRECISION=_precision(source), **tile.options,
    )  # fmt: skip
    return moments


def _shape(
    source: torch.Tensor, rows: torch.Tensor, taps: tuple[int, int], places: tuple[int, int, int]
) -> dict[str, int]:
    """What a kernel is compiled for: divisions by constants are far cheaper than others."""
    values = *source.shape[2:], *rows.shape[2:], *taps, *places
    names = (
        "SOURCE_HEIGHT", "SOURCE_WIDTH", "CHANNELS", "HEIGHT", "WIDTH", "OUT",
        "TAPS_HIGH", "TAPS_WIDE", "MULTIPLY", "ADD", "STEP",
    )  # fmt: skip
    return dict(zip(names, values, strict=True))


class _Sums:
    """The gradient of kernels [client, out, height, width, in]: the sum over all rows, in `parts` where there
    are too few tiles to fill a GPU; these are then added in one order."""

    def __init__(
        self, gradient: torch.Tensor, images: torch.Tensor, shape: torch.Size, geometry: Convolution
    ) -> None:
        self.gradient, self.images, self.shape, self.geometry = gradient, images, shape, geometry
        clients, out, *taps_and_channels = shape
        entries = math.prod(taps_and_channels)
        self.tile = tile = _summed_tile(out, entries, images.dtype)
        tiles = triton.cdiv(out, tile.rows), triton.cdiv(entries, tile.columns)
        rows = gradient.shape[1:4].numel()
        self.parts = max(1, min(ENOUGH_PROGRAMS // (clients * math.prod(tiles)), rows // (8 * tile.inner)))
        self.rows_each = triton.cdiv(triton.cdiv(rows, self.parts), tile.inner) * tile.inner
        self.grid = *tiles, clients * self.parts

    def total(self) -> torch.Tensor:
        result = torch.empty(self.parts, *self.shape, dtype=torch.float32, device=self.images.device)
        self.launch(result, None)
        return result.sum(dim=0) if self.parts > 1 else result[0]

    def launch(self, result: torch.Tensor, sgd: InPlaceSGD | None) -> None:
        """The sums of all parts, or kernels after their step."""
        _, _, taps_high, taps_wide, _ = self.shape
        places = self.geometry.stride, -self.geometry.padding, self.geometry.dilation
        summed_product[self.grid](
            self.images, self.gradient, result, *self.images.shape[:2], self.rows_each,
            0.0 if sgd is None else sgd.learning_rate, 1.0 if sgd is None else sgd.keep,
            **_shape(self.images, self.gradient, (taps_high, taps_wide), places),
            IN_PLACE=sgd is not None, PRECISION=_precision(self.images), **self.tile.options,
        )  # fmt: skip
