"""A linear layer of many clients, whose backward pass may carry out the SGD step itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class InPlaceSGD:
    """Plain SGD, x <- keep * x - learning_rate * gradient, with keep = 1 - learning_rate * weight_decay."""

    learning_rate: float
    keep: float


def stacked_linear(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, update: InPlaceSGD | None
) -> torch.Tensor:
    """Client i's inputs [client, batch, ..., in] through weight[i] [out, in] and bias[i] [out].

    With `update`, the backward pass changes weight and bias in place and gives them no gradient: the
    product that would be the gradient is added to the weights while both are in cache, and never stored.
    """
    between = inputs.shape[1:-1]
    if len(between) != 1:
        inputs = inputs.reshape(len(inputs), between.numel(), inputs.shape[-1])
    outputs: torch.Tensor = _StackedLinear.apply(inputs, weight, bias, update)  # type: ignore[no-untyped-call]
    return outputs if len(between) == 1 else outputs.unflatten(1, between)


class _StackedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        update: InPlaceSGD | None,
    ) -> torch.Tensor:
        # Not saved through autograd, which would refuse tensors that an update has changed since.
        ctx.inputs, ctx.weight, ctx.bias, ctx.update = inputs, weight, bias, update
        if bias is None:
            return torch.bmm(inputs, weight.transpose(1, 2))
        return torch.baddbmm(bias.unsqueeze(1), inputs, weight.transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None]:
        inputs, weight, bias, update = ctx.inputs, ctx.weight, ctx.bias, ctx.update
        wants_inputs, wants_weight, wants_bias, _ = ctx.needs_input_grad
        for_inputs = torch.bmm(gradient, weight) if wants_inputs else None  # before the weight changes
        if update is None:
            for_weight = torch.bmm(gradient.transpose(1, 2), inputs) if wants_weight else None
            return for_inputs, for_weight, gradient.sum(dim=1) if wants_bias else None, None
        rate, keep = update.learning_rate, update.keep
        if wants_weight:
            weight.baddbmm_(gradient.transpose(1, 2), inputs, beta=keep, alpha=-rate)
        if wants_bias:
            bias.mul_(keep) if keep != 1.0 else None
            bias.sub_(gradient.sum(dim=1), alpha=rate)
        return for_inputs, None, None, None
