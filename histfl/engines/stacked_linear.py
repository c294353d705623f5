"""A linear layer of many clients, whose weights an SGD step changes without storing their gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from histfl.engines.linear_products import TorchProducts, linear_products


@dataclass(frozen=True)
class InPlaceSGD:
    """Plain SGD, x <- keep * x - learning_rate * gradient, with keep = 1 - learning_rate * weight_decay."""

    learning_rate: float
    keep: float

    def step(self, tensor: torch.Tensor, gradient: torch.Tensor) -> None:
        """One step of `tensor`, in place."""
        if self.keep != 1.0:
            tensor.mul_(self.keep)
        tensor.sub_(gradient, alpha=self.learning_rate)


class StepsItself(Protocol):
    """A layer that takes its SGD steps without autograd."""

    def step(self, inputs: torch.Tensor, gradient: torch.Tensor, sgd: InPlaceSGD) -> None:
        """One step from inputs and the gradient of their outputs."""
        ...


class StackedLinear:
    """The linear layers of many clients: weight [client, out, in] and bias [client, out], of which a step
    changes those that require a gradient. Autograd sees both as constants."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.trains_weight = weight.requires_grad
        self.trains_bias = bias is not None and bias.requires_grad
        self.trained = self.trains_weight or self.trains_bias
        self.products = linear_products(self.weight)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs [client, batch, ..., in] to outputs [client, batch, ..., out]."""
        return _like(self.products.outputs(_flat(inputs), self.weight, self.bias), inputs)

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the inputs from that of the outputs."""
        return _like(self.products.for_inputs(_flat(gradient), self.weight), gradient)

    def step(self, inputs: torch.Tensor, gradient: torch.Tensor, sgd: InPlaceSGD) -> None:
        """One SGD step from inputs and the gradient of the outputs. The product of the two, which would be
        the weights' gradient, is added to the weights while they are in cache, and never stored."""
        inputs, gradient = _flat(inputs), _flat(gradient)
        if self.trains_bias and self.bias is not None:
            sgd.step(self.bias, gradient.sum(dim=1))
        if self.trains_weight:
            self.products.add(self.weight, gradient, inputs, keep=sgd.keep, scale=-sgd.learning_rate)


@dataclass(frozen=True)
class LayerCall:
    """What a layer saw and gave. Only the gradient of `outputs` is asked of autograd; the layer steps itself
    from that."""

    layer: StepsItself
    inputs: torch.Tensor
    outputs: torch.Tensor


def remembered(
    layer: StepsItself, inputs: torch.Tensor, outputs: torch.Tensor, calls: list[LayerCall]
) -> torch.Tensor:
    """`outputs`, whose gradient can be asked for; the call is added to the list."""
    if not outputs.requires_grad:
        outputs.requires_grad_()
    calls.append(LayerCall(layer, inputs, outputs))
    return outputs


def stacked_linear(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, calls: list[LayerCall] | None
) -> torch.Tensor:
    """Client i's inputs [client, batch, ..., in] through weight[i] [out, in] and bias[i] [out].

    With `calls`, autograd sees weight and bias as constants, and the call is added to the list.
    """
    inputs = inputs.to(weight.dtype)  # layers before it may be in half precision
    if calls is None:
        return _like(TorchProducts().outputs(_flat(inputs), weight, bias), inputs)
    layer = StackedLinear(weight, bias)
    outputs = layer(inputs)
    return remembered(layer, inputs, outputs, calls) if layer.trained else outputs


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """[client, batch, ..., width] as [client, batch * ..., width]."""
    return tensor if tensor.dim() == 3 else tensor.reshape(len(tensor), -1, tensor.shape[-1])


def _like(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """What became of a tensor's `_flat`, with the tensor's axes."""
    return flat if tensor.dim() == 3 else flat.unflatten(1, tensor.shape[1:-1])
