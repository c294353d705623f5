"""How the tensors of many clients lie in memory: where the channels of images and of convolution kernels, [client, a,
channel, height, width], are, and a few zeros beyond, so that products take whole vectors."""

from __future__ import annotations

import torch


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """[client, a, channel, height, width] as [client, a, height, width, channel], contiguous."""
    return tensor.permute(0, 1, 3, 4, 2).contiguous()


def outermost(tensor: torch.Tensor) -> torch.Tensor:
    """A view of [client, a, height, width, channel] as [client, a, channel, height, width]."""
    return tensor.permute(0, 1, 4, 2, 3)


def kernels_innermost(tensor: torch.Tensor) -> torch.Tensor:
    """A convolution's kernels with their channels innermost in memory; any other tensor as it is."""
    return outermost(innermost(tensor)) if tensor.dim() == 5 else tensor


Axes = tuple[int, ...]


def padded(tensor: torch.Tensor, axes: Axes) -> torch.Tensor:
    """`tensor` as a view of a copy in whose memory those axes are longer, with zeros beyond."""
    sizes = _padded_sizes(tensor, axes)
    if sizes == tensor.shape:
        return tensor
    return tensor.new_zeros(sizes)[tuple(map(slice, tensor.shape))].copy_(tensor)


def with_padding(view: torch.Tensor, axes: Axes) -> torch.Tensor:
    """A tensor made `padded`, with what lies beyond."""
    sizes = _padded_sizes(view, axes)
    return view if sizes == view.shape else view.as_strided(sizes, view.stride())


def _padded_sizes(tensor: torch.Tensor, axes: Axes) -> tuple[int, ...]:
    """The tensor's shape with those axes rounded up to what products are fastest with: on a CPU multiples of
    16, where they are near (75 units take a fifth longer than 80, but 65 take less); on a GPU multiples of
    8 (75 units take up to half longer than 80)."""
    on_cpu = tensor.device.type == "cpu"
    sizes = list(tensor.shape)
    for axis in axes:
        more = -sizes[axis] % (16 if on_cpu else 8)
        if (12 * more if on_cpu else 16) <= sizes[axis]:
            sizes[axis] += more
    return tuple(sizes)
