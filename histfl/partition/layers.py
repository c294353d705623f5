"""Layers that take their sizes from their tensors.

Compact tensors run through the original module with `torch.func.functional_call`. Linear, plain
convolution, BatchNorm, PReLU and embedding layers look at their tensors alone; the layers here have a
size written into the module as well (the number of groups or features), and get it from the tensors
instead. With the full tensors they compute what the original layer computes.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import nn

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def take_sizes_from_tensors(model: nn.Module) -> None:
    """Let every such layer of `model` do so, in place. A subclass of one is left as its author made it."""
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and module.groups == 1:
            continue
        replacement = _REPLACEMENTS.get(type(module))
        if replacement is not None:
            module.__class__ = replacement


def is_group_norm(layer: nn.Module) -> TypeGuard[nn.GroupNorm]:
    """Whether a layer is torch's GroupNorm, or that with sizes from its tensors, and not a subclass of a user."""
    return type(layer) in (nn.GroupNorm, _GroupNorm)


class _GroupedConvolution(nn.modules.conv._ConvNd):
    """A unit is a whole group of channels, so the channels a group holds stay what they were."""

    def _conv_forward(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        dimensions = weight.dim() - 2
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0,) * dimensions
        groups = input.shape[-dimensions - 1] // weight.shape[1]
        convolution = _CONVOLUTIONS[dimensions]
        return convolution(input, weight, bias, self.stride, padding, self.dilation, groups)


class _Conv1d(_GroupedConvolution, nn.Conv1d):
    pass


class _Conv2d(_GroupedConvolution, nn.Conv2d):
    pass


class _Conv3d(_GroupedConvolution, nn.Conv3d):
    pass


class _GroupNorm(nn.GroupNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        groups = input.shape[1] // (self.num_channels // self.num_groups)
        return F.group_norm(input, groups, self.weight, self.bias, self.eps)


class _InstanceNorm(nn.modules.instancenorm._InstanceNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        single = input.dim() == self._get_no_batch_dim()  # type: ignore[no-untyped-call]
        output = F.instance_norm(
            input.unsqueeze(0) if single else input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            use_input_stats=self.training or not self.track_running_stats,
            momentum=self.momentum if self.momentum is not None else 0.0,
            eps=self.eps,
        )
        return output.squeeze(0) if single else output


class _InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    pass


class _InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    pass


class _InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    pass


_REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: _Conv1d,
    nn.Conv2d: _Conv2d,
    nn.Conv3d: _Conv3d,
    nn.GroupNorm: _GroupNorm,
    nn.InstanceNorm1d: _InstanceNorm1d,
    nn.InstanceNorm2d: _InstanceNorm2d,
    nn.InstanceNorm3d: _InstanceNorm3d,
}
