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


class StackedLinear:
    """The linear layers of many clients: weight [client, out, in] and bias [client, out], of which a step
    changes those that require a gradient. Not for autograd, which would not see what `step` changes."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.trains_weight = weight.requires_grad
        self.trains_bias = bias is not None and bias.requires_grad
        self.trained = self.trains_weight or self.trains_bias
        # The products take and give the rows beyond, if there are any.
        self.whole = _whole(self.weight)
        self.transposed = self.whole.transpose(1, 2)
        self.row = None if self.bias is None else _row(self.bias, self.whole.shape[1])

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs [client, batch, ..., in] to outputs [client, batch, ..., out]."""
        outputs = self.whole_outputs(_flat(inputs))
        if outputs.shape[2] != self.weight.shape[1]:
            outputs = outputs[:, :, : self.weight.shape[1]]
        return outputs if inputs.dim() == 3 else outputs.unflatten(1, inputs.shape[1:-1])

    def whole_outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs [client, batch, in] to outputs [client, batch, out and beyond]."""
        if self.row is None:
            return torch.bmm(inputs, self.transposed)
        return torch.baddbmm(self.row, inputs, self.transposed)

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the inputs from that of the outputs."""
        flat = torch.bmm(_flat(gradient), self.weight)
        return flat if gradient.dim() == 3 else flat.unflatten(1, gradient.shape[1:-1])

    def step(self, inputs: torch.Tensor, gradient: torch.Tensor, sgd: InPlaceSGD) -> None:
        """One SGD step from inputs and the gradient of the outputs. The product of the two, which would be
        the weights' gradient, is added to the weights while they are in cache, and never stored."""
        inputs, gradient = _flat(inputs), _flat(gradient)
        if self.trains_bias and self.bias is not None:
            if sgd.keep != 1.0:
                self.bias.mul_(sgd.keep)
            self.bias.sub_(gradient.sum(dim=1)[:, : self.bias.shape[1]], alpha=sgd.learning_rate)
        if self.trains_weight:
            beyond = self.whole.shape[1] - gradient.shape[2]
            wide = F.pad(gradient, (0, beyond)) if beyond else gradient
            self.whole.baddbmm_(wide.transpose(1, 2), inputs, beta=sgd.keep, alpha=-sgd.learning_rate)


@dataclass(frozen=True)
class LinearCall:
    """What a layer saw and gave: inputs [client, batch, in], outputs [client, batch, out and beyond].

    Only the gradient of `outputs` is asked of autograd; the layer steps itself from that.
    """

    layer: StackedLinear
    inputs: torch.Tensor
    outputs: torch.Tensor


def stacked_linear(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, calls: list[LinearCall] | None
) -> torch.Tensor:
    """Client i's inputs [client, batch, ..., in] through weight[i] [out, in] and bias[i] [out].

    With `calls`, autograd sees weight and bias as constants, and the call is added to the list.
    """
    flat = _flat(inputs)
    layer = None if calls is None else StackedLinear(weight, bias)
    if calls is None or layer is None or not layer.trained:
        outputs = torch.bmm(flat, weight.transpose(1, 2)) if bias is None else torch.baddbmm(bias.unsqueeze(1), flat, weight.transpose(1, 2))
    else:
        outputs = layer.whole_outputs(flat)
        if not outputs.requires_grad:
            outputs.requires_grad_()
        calls.append(LinearCall(layer, flat, outputs))
        outputs = outputs[:, :, : weight.shape[1]]
    return outputs if inputs.dim() == 3 else outputs.unflatten(1, inputs.shape[1:-1])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """[client, batch, ..., width] as [client, batch * ..., width]."""
    return tensor if tensor.dim() == 3 else tensor.reshape(len(tensor), -1, tensor.shape[-1])


def _row(bias: torch.Tensor, width: int) -> torch.Tensor:
    """The bias [client, 1, width], which follows its changes. One beside a weight with more room is frozen."""
    whole = _whole(bias)
    beyond = width - whole.shape[1]
    return (F.pad(whole, (0, beyond)) if beyond > 0 else whole[:, :width]).unsqueeze(1)


ROWS = 8


def gains_from_room(out: int) -> bool:
    """Whether products with `out` rows are faster with a few rows of zeros: an odd number leaves every
    second row of the outputs unaligned (75 rows take 10 % longer than 80, 90 and 300 do not)."""
    return out % 2 == 1 and out > 2 * ROWS


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
