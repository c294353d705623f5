"""A linear layer of many clients, whose backward pass may carry out the SGD step itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class InPlaceSGD:
    """Plain SGD, x <- keep * x - learning_rate * gradient, with keep = 1 - learning_rate * weight_decay."""

    learning_rate: float
    keep: float


ROWS = 8


def gains_from_room(out: int) -> bool:
    """Whether products with `out` rows are faster with a few rows of zeros: an odd number leaves every
    second row of the outputs unaligned (75 rows take 10 % longer than 80, 90 and 300 do not)."""
    return out % 2 == 1 and out > 2 * ROWS


def with_room(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` [client, out, ...] as a view of a copy in whose memory `out` is a multiple of `ROWS`.

    Only `stacked_linear` uses the rows beyond; they hold zeros and stay so.
    """
    out = tensor.shape[1]
    view = tensor.new_zeros(len(tensor), -(-out // ROWS) * ROWS, *tensor.shape[2:])[:, :out]
    return view.copy_(tensor)


def _whole(view: torch.Tensor) -> torch.Tensor:
    """A tensor made `with_room`, with the rows beyond; any other tensor as it is."""
    entries = view.shape[2:].numel()
    if view.stride(0) <= view.shape[1] * entries:
        return view
    return view.as_strided((len(view), view.stride(0) // entries, *view.shape[2:]), view.stride())


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
        transposed = _whole(weight).transpose(1, 2)
        if bias is None:
            outputs = torch.bmm(inputs, transposed)
        else:
            # One of the two may be frozen, and have no room.
            beyond = transposed.shape[2] - bias.shape[1]
            row = _whole(bias) if _whole(bias).shape[1] == transposed.shape[2] else F.pad(bias, (0, beyond))
            outputs = torch.baddbmm(row.unsqueeze(1), inputs, transposed)
        return outputs[:, :, : weight.shape[1]]

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
            whole = _whole(weight)  # torch adds a batched product to contiguous memory alone
            beyond = whole.shape[1] - weight.shape[1]
            wide = F.pad(gradient, (0, beyond)) if beyond else gradient
            whole.baddbmm_(wide.transpose(1, 2), inputs, beta=keep, alpha=-rate)
        if wants_bias:
            bias.mul_(keep) if keep != 1.0 else None
            bias.sub_(gradient.sum(dim=1), alpha=rate)
        return for_inputs, None, None, None
