"""A linear layer of many clients, whose weights an SGD step changes without storing their gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class InPlaceSGD:
    """Plain SGD, x <- keep * x - learning_rate * gradient, with keep = 1 - learning_rate * weight_decay."""

    learning_rate: float
    keep: float


@dataclass(frozen=True)
class LinearCall:
    """What a layer saw and gave: inputs [client, batch, in], outputs [client, batch, out or more].

    Only the gradient of `outputs` is asked of autograd. That of the weights is a product of the two, which
    `step` adds to the weights while both are in cache.
    """

    inputs: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    outputs: torch.Tensor

    def step(self, gradient: torch.Tensor, sgd: InPlaceSGD) -> None:
        """One SGD step of weight and bias, from the gradient of `outputs`; call it where autograd is off."""
        if self.weight.requires_grad:
            weight = _whole(self.weight)  # torch adds a batched product to contiguous memory alone
            weight.baddbmm_(gradient.transpose(1, 2), self.inputs, beta=sgd.keep, alpha=-sgd.learning_rate)
        if self.bias is not None and self.bias.requires_grad:
            change = gradient.sum(dim=1)[:, : self.bias.shape[1]]
            if sgd.keep != 1.0:
                self.bias.mul_(sgd.keep)
            self.bias.sub_(change, alpha=sgd.learning_rate)


def stacked_linear(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, calls: list[LinearCall] | None
) -> torch.Tensor:
    """Client i's inputs [client, batch, ..., in] through weight[i] [out, in] and bias[i] [out].

    With `calls`, autograd sees weight and bias as constants, and the call is added to the list.
    """
    between = inputs.shape[1:-1]
    if len(between) != 1:
        inputs = inputs.reshape(len(inputs), between.numel(), inputs.shape[-1])
    trained = weight.requires_grad or (bias is not None and bias.requires_grad)
    if calls is None or not trained:
        outputs = _affine(inputs, weight, bias)
    else:
        own = None if bias is None else _whole(bias.detach())
        outputs = _affine(inputs, _whole(weight.detach()), own)
        if not outputs.requires_grad:
            outputs.requires_grad_()
        calls.append(LinearCall(inputs, weight, bias, outputs))
        if outputs.shape[2] != weight.shape[1]:
            outputs = outputs[:, :, : weight.shape[1]]
    return outputs if len(between) == 1 else outputs.unflatten(1, between)


def _affine(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    transposed = weight.transpose(1, 2)
    if bias is None:
        return torch.bmm(inputs, transposed)
    beyond = transposed.shape[2] - bias.shape[1]  # one of the two may be frozen, and have no room
    row = bias if beyond == 0 else F.pad(bias, (0, beyond))
    return torch.baddbmm(row.unsqueeze(1), inputs, transposed)


ROWS = 8


def gains_from_room(tensor: torch.Tensor) -> bool:
    """Whether products with `tensor` [client, out, ...] are faster with a few rows of zeros. On a CPU an odd
    number leaves every second row of the outputs unaligned (75 rows take 10 % longer than 80, 90 and 300 do
    not); a GPU has its fastest kernels for multiples of 8 alone (75 rows take up to 50 % longer than 80)."""
    out = tensor.shape[1]
    return out > 2 * ROWS and out % (2 if tensor.device.type == "cpu" else ROWS) != 0


def with_room(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` [client, out, ...] as a view of a copy in whose memory `out` is a multiple of `ROWS`.

    Only recorded calls of `stacked_linear` use the rows beyond; they hold zeros and stay so.
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
