"""Where the channels of images and of convolution kernels, [client, a, channel, height, width], lie in memory."""

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
