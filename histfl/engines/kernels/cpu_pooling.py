"""Max-pooling over many small images on a CPU.

torch pools one image row at a time, without vector instructions, unless the channels lie innermost in
memory. It pools channels alike, so images may lie there in their place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable


def pool_across_images(model: nn.Module) -> None:
    """Let every max-pooling layer of `model` do so, in place. A subclass is left as its author made it."""
    for module in model.modules():
        if type(module) is nn.MaxPool2d and not module.return_indices:
            module.__class__ = _MaxPool2d


class _MaxPool2d(nn.MaxPool2d):
    """Max-pooling that runs its vector instructions along images and channels: turning the images over and
    back costs less than it saves (LeNet-5's first pooling, with its gradient, takes 0.4 of the time)."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dim() != 4:
            return self._pool(input)
        images, channels, height, width = input.shape
        across = _turned(input.reshape(images * channels, height * width)).view(1, height, width, -1)
        pooled = self._pool(across.permute(0, 3, 1, 2))
        rows = pooled.permute(0, 2, 3, 1).reshape(-1, images * channels)
        return _turned(rows).view(images, channels, *pooled.shape[2:])

    def _pool(self, input: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = F.max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )
        return outputs


class _Turn(torch.autograd.Function):
    """[row, column] to [column, row], with whole memory both ways: torch turns matrices fast, views slowly."""

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.t().contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.t().contiguous()


def _turned(matrix: torch.Tensor) -> torch.Tensor:
    turned: torch.Tensor = _Turn.apply(matrix)  # type: ignore[no-untyped-call]
    return turned


class Pool(NamedTuple):
    """What a MaxPool2d layer does; pairs are (height, width)."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil_mode: bool


def pool_of(layer: nn.MaxPool2d) -> Pool | None:
    """What the layer does, or None where it returns places too."""
    size, stride, padding, dilation = (
        (both, both) if isinstance(both, int) else (both[0], both[1])
        for both in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    return None if layer.return_indices else Pool(size, stride, padding, dilation, layer.ceil_mode)


def stacked_max_pool2d(inputs: torch.Tensor, *pool: Any) -> torch.Tensor:
    """Max-pooling of [client, image, channel, height, width] with the images innermost, as autograd follows."""
    return _apart(F.max_pool2d(_together(inputs), *pool), len(inputs))


class StackedMaxPool2d:
    """Max-pooling of [client, image, channel, height, width], and its gradient without autograd."""

    trained = False

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        self.inputs = _together(inputs)
        outputs, self.places = F.max_pool2d(self.inputs, *self.pool, return_indices=True)
        return _apart(outputs, len(inputs))

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the last inputs from that of the outputs."""
        grads = torch.ops.aten.max_pool2d_with_indices_backward(
            _together(gradient), self.inputs, *self.pool, self.places
        )
        return _apart(grads, len(gradient))


def _together(values: torch.Tensor) -> torch.Tensor:
    """[client, image, channel, height, width] as [client * channel, image, height, width], where torch takes
    the images for channels that lie innermost."""
    return values.permute(0, 2, 3, 4, 1).flatten(end_dim=1).permute(0, 3, 1, 2)


def _apart(values: torch.Tensor, clients: int) -> torch.Tensor:
    """The way back."""
    apart: torch.Tensor = values.permute(0, 2, 3, 1).unflatten(0, (clients, -1))
    return apart.permute(0, 4, 1, 2, 3)
