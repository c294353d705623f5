"""Convolutions of many clients with few channels, on a CPU.

Images lie innermost in memory: a value [client, image, channel, height, width] is a view of whole memory
[client, channel, height, width, image]. Elementwise functions keep that order, and flattening the images
is free. A tap of the filter is then an offset, the same for a whole row of pixels of all images: a long run of
numbers to multiply by one weight. The loops are compiled by numba; two output channels and five taps at a time keep
most operands in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from histfl.arrays import Ints
from histfl.engines.kernels.compiled import compiled
from histfl.engines.kernels.linear import TensorStep

TAPS = 5  # that a pass over a run takes at once; their number must be a multiple
FEW_CHANNELS = 16  # from as many input channels on, torch's own convolutions are faster


class Geometry(NamedTuple):
    """What a Conv2d layer has besides its weights. Pairs are (height, width)."""

    stride: tuple[int, int]
    border: tuple[int, int, int, int]  # zeros on the left, right, top and bottom
    dilation: tuple[int, int]
    groups: int


def geometry_of(layer: nn.Conv2d) -> Geometry | None:
    """The layer's geometry, or None where torch's own convolution is the better one."""
    if layer.padding_mode != "zeros" or layer.in_channels // layer.groups >= FEW_CHANNELS:
        return None
    stride, dilation, size = (
        (pair[0], pair[1]) for pair in (layer.stride, layer.dilation, layer.kernel_size)
    )
    if isinstance(layer.padding, str):
        total = [d * (k - 1) if layer.padding == "same" else 0 for d, k in zip(dilation, size, strict=True)]
        before = [zeros // 2 for zeros in total]  # as torch: the odd one comes last
    else:
        before = list(layer.padding)
        total = [2 * zeros for zeros in before]
    border = (before[1], total[1] - before[1], before[0], total[0] - before[0])
    return Geometry(stride, border, dilation, layer.groups)


class StackedConv2d:
    """The convolutions of many clients: weight [client, out, in / groups, height, width] and bias
    [client, out], of which a step changes those that require a gradient. Autograd sees neither."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> None:
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.geometry = geometry
        self.trains_weight = weight.requires_grad
        self.trains_bias = bias is not None and bias.requires_grad
        self.trained = self.trains_weight or self.trains_bias
        # A group has weights and channels of its own, as a client has: [client * group, out, in, ...].
        self.filters = self.weight.unflatten(1, (geometry.groups, -1)).flatten(end_dim=1)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs [client, image, channel, height, width] to outputs of the same axes."""
        inputs = images_innermost(inputs.detach())
        if any(self.geometry.border):
            inputs = F.pad(inputs, (0, 0, *self.geometry.border))
        clients, channels, height, width, images = inputs.shape
        self.places = _places(images, (channels, height, width), tuple(self.filters.shape[1:]), self.geometry)
        self.inputs = inputs.view(len(self.filters), -1)
        outputs = inputs.new_empty(clients, self.weight.shape[1], *self.places.size, images)
        bias = self.weight.new_zeros(self.weight.shape[:2]) if self.bias is None else self.bias
        accumulate, _ = _loops()
        accumulate(
            outputs.view(*self.filters.shape[:2], -1).numpy(),
            bias.reshape(self.filters.shape[:2]).contiguous().numpy(),
            _in_passes(self.filters.flatten(start_dim=2).unsqueeze(1)),
            self.inputs.numpy(),
            self.places.of_outputs,
            np.zeros(1, np.int64),
            self.places.of_inputs,
            self.places.taps,
            self.places.run,
        )
        self.padded = inputs.shape
        return outputs.permute(0, 4, 1, 2, 3)

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the last inputs from that of the outputs."""
        padded = gradient.new_zeros(self.padded)
        accumulate, _ = _loops()
        accumulate(
            padded.view(len(self.filters), self.filters.shape[2], -1).numpy(),
            padded.new_empty(len(self.filters), 0).numpy(),
            _in_passes(self.filters.flatten(start_dim=3).permute(0, 3, 2, 1)),
            images_innermost(gradient).view(len(self.filters), -1).numpy(),
            self.places.of_inputs,
            self.places.shifts,
            self.places.of_outputs,
            self.places.channels,
            self.places.run,
        )
        left, _, top, _ = self.geometry.border
        _, _, height, width, _ = self.padded
        bottom, right = height - self.geometry.border[3], width - self.geometry.border[1]
        return padded[:, :, top:bottom, left:right].permute(0, 4, 1, 2, 3)

    def for_weight(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the weights from that of the outputs."""
        outputs = images_innermost(gradient).view(*self.filters.shape[:2], -1)
        products = outputs.new_empty(*self.filters.shape[:2], len(self.places.taps))
        _, correlate = _loops()
        correlate(
            products.numpy(),
            outputs.numpy(),
            self.inputs.numpy(),
            self.places.of_inputs,
            self.places.taps,
            self.places.run,
        )
        return products[:, :, : self.filters.shape[2:].numel()].reshape(self.weight.shape)

    def step(self, inputs: torch.Tensor, gradient: torch.Tensor, rule: TensorStep) -> None:
        """One step from the gradient of the outputs, which came of `inputs`."""
        for tensor, wanted in ((self.weight, self.trains_weight), (self.bias, self.trains_bias)):
            if tensor is not None and wanted:
                rule.step(tensor, self.for_weight(gradient) if tensor is self.weight else _for_bias(gradient))


def _for_bias(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.sum(dim=(1, 3, 4))


def stacked_conv2d(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    """Client i's images through weight[i] and bias[i], as autograd follows it."""
    outputs: torch.Tensor = _Conv2d.apply(inputs, weight, bias, Geometry(*geometry))  # type: ignore[no-untyped-call]
    return outputs


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry
    ) -> torch.Tensor:
        ctx.layer = StackedConv2d(weight, bias, geometry)
        outputs: torch.Tensor = ctx.layer(inputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None]:
        for_inputs, for_weight, for_bias, _ = ctx.needs_input_grad
        return (
            ctx.layer.for_inputs(gradient) if for_inputs else None,
            ctx.layer.for_weight(gradient) if for_weight else None,
            _for_bias(gradient) if for_bias else None,
            None,
        )


@dataclass(frozen=True)
class _Places:
    """Where the kernels find things in the memory of one group of one client. A run is a row of pixels of
    all images, or a single one where the stride leaves some out; `size` is (height, width) of the outputs."""

    size: tuple[int, int]
    run: int
    of_inputs: Ints  # the start of every run, in a channel of the inputs
    of_outputs: Ints
    taps: Ints  # a filter's offsets, over (channel, row, column)
    shifts: Ints  # over (row, column)
    channels: Ints  # offsets of the output channels


@lru_cache(maxsize=1024)
def _places(
    images: int, inputs: tuple[int, int, int], filters: tuple[int, ...], geometry: Geometry
) -> _Places:
    """For inputs (channel, height, width), with their border, and filters (out, in, height, width)."""
    _, height, width = inputs
    stride, dilation = geometry.stride, geometry.dilation
    rows, columns = (
        (length - far * (taps - 1) - 1) // near + 1
        for length, taps, near, far in zip((height, width), filters[2:], stride, dilation, strict=True)
    )
    starts = np.arange(rows)[:, None] * stride[0] * width + np.arange(columns) * stride[1]
    pixels = columns if stride[1] == 1 else 1
    shifts = np.arange(filters[2])[:, None] * dilation[0] * width + np.arange(filters[3]) * dilation[1]
    taps = np.arange(filters[1])[:, None] * height * width + shifts.ravel()
    return _Places(
        size=(rows, columns),
        run=pixels * images,
        of_inputs=starts[:, ::pixels].ravel() * images,
        of_outputs=np.arange(0, rows * columns, pixels) * images,
        taps=_whole_passes(taps.ravel() * images),
        shifts=shifts.ravel() * images,
        channels=_whole_passes(np.arange(filters[0]) * rows * columns * images),
    )


def _whole_passes(offsets: Ints) -> Ints:
    """Offsets for whole passes of a kernel; those added are met by weights of zero."""
    return np.pad(offsets, (0, -len(offsets) % TAPS))


def _in_passes(weights: torch.Tensor) -> Any:
    return F.pad(weights, (0, -weights.shape[-1] % TAPS)).contiguous().numpy()


def images_innermost(values: torch.Tensor) -> torch.Tensor:
    """[client, image, channel, height, width] as whole memory [client, channel, height, width, image]."""
    return values.permute(0, 2, 3, 4, 1).contiguous()


@cache
def _loops() -> tuple[Callable[..., None], Callable[..., None]]:
    """`_accumulate` and `_correlate`, compiled at their first call and kept on disk for the next process."""
    # Sums may be taken in any order; infinities and NaN stay what they are.
    loosely = {"contract", "reassoc", "nsz"}
    return compiled(_accumulate, fastmath=loosely), compiled(_correlate, fastmath=loosely)


def _accumulate(
    outputs: Any,
    bias: Any,
    weights: Any,
    inputs: Any,
    out_starts: Any,
    shifts: Any,
    in_starts: Any,
    taps: Any,
    run: int,
) -> None:
    """outputs[c, o, out_starts[r] + shifts[p] + j] +=
    sum over t of weights[c, p, o, t] * inputs[c, in_starts[r] + taps[t] + j], for j below `run`.

    With bias [c, o] the outputs begin there, without ([c, 0]) at what they are. As a convolution, the taps are
    those of a filter and there is one shift; as its gradient, the taps are the output channels and the
    shifts the places of a filter.
    """
    rows = outputs.shape[1]
    spare = np.empty(run, outputs.dtype)  # stands in for the partner of a last row
    for c in range(len(outputs)):
        for r in range(len(out_starts)):
            for p in range(len(shifts)):
                s = out_starts[r] + shifts[p]
                for o in range(0, rows, 2):
                    y = outputs[c, o, s : s + run]
                    z = outputs[c, o + 1, s : s + run] if o + 1 < rows else spare
                    partner = min(o + 1, rows - 1)
                    v, w = weights[c, p, o], weights[c, p, partner]
                    if bias.shape[1] > 0:
                        y[:] = bias[c, o]
                        z[:] = bias[c, partner]
                    for t in range(0, len(taps), 5):
                        i = in_starts[r] + taps[t]
                        a = inputs[c, i : i + run]
                        i = in_starts[r] + taps[t + 1]
                        b = inputs[c, i : i + run]
                        i = in_starts[r] + taps[t + 2]
                        d = inputs[c, i : i + run]
                        i = in_starts[r] + taps[t + 3]
                        e = inputs[c, i : i + run]
                        i = in_starts[r] + taps[t + 4]
                        f = inputs[c, i : i + run]
                        v0, v1, v2, v3, v4 = v[t], v[t + 1], v[t + 2], v[t + 3], v[t + 4]
                        w0, w1, w2, w3, w4 = w[t], w[t + 1], w[t + 2], w[t + 3], w[t + 4]
                        for j in range(run):
                            # Read once: the compiler cannot know that y and z are other memory.
                            k, m, n, x, q = a[j], b[j], d[j], e[j], f[j]
                            y[j] += v0 * k + v1 * m + v2 * n + v3 * x + v4 * q
                            z[j] += w0 * k + w1 * m + w2 * n + w3 * x + w4 * q


def _correlate(products: Any, outputs: Any, inputs: Any, in_starts: Any, taps: Any, run: int) -> None:
    """products[c, o, t] = sum over r and j of outputs[c, o, r * run + j] * inputs[c, in_starts[r] + taps[t] + j]."""
    rows = outputs.shape[1]
    zero = outputs.dtype.type(0)
    products[:] = zero
    for c in range(len(outputs)):
        for r in range(len(in_starts)):
            for o in range(0, rows, 2):
                partner = min(o + 1, rows - 1)
                y = outputs[c, o, r * run : (r + 1) * run]
                z = outputs[c, partner, r * run : (r + 1) * run]
                for t in range(0, len(taps), 5):
                    i = in_starts[r] + taps[t]
                    a = inputs[c, i : i + run]
                    i = in_starts[r] + taps[t + 1]
                    b = inputs[c, i : i + run]
                    i = in_starts[r] + taps[t + 2]
                    d = inputs[c, i : i + run]
                    i = in_starts[r] + taps[t + 3]
                    e = inputs[c, i : i + run]
                    i = in_starts[r] + taps[t + 4]
                    f = inputs[c, i : i + run]
                    v0 = v1 = v2 = v3 = v4 = w0 = w1 = w2 = w3 = w4 = zero
                    for j in range(run):
                        g, h = y[j], z[j]
                        v0 += g * a[j]
                        v1 += g * b[j]
                        v2 += g * d[j]
                        v3 += g * e[j]
                        v4 += g * f[j]
                        w0 += h * a[j]
                        w1 += h * b[j]
                        w2 += h * d[j]
                        w3 += h * e[j]
                        w4 += h * f[j]
                    sums = products[c, o]
                    sums[t] += v0
                    sums[t + 1] += v1
                    sums[t + 2] += v2
                    sums[t + 3] += v3
                    sums[t + 4] += v4
                    if partner > o:
                        sums = products[c, partner]
                        sums[t] += w0
                        sums[t + 1] += w1
                        sums[t + 2] += w2
                        sums[t + 3] += w3
                        sums[t + 4] += w4
