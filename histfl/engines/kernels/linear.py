"""Linear layers of many clients, whose weights an SGD step changes without storing their gradient.

The products are torch's or, on a CPU, compiled ones (`linear_tiles`). Inputs are [client, batch, in], gradients of
outputs [client, batch, out], weights [client, out, in].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from histfl.devices import numba_installed
from histfl.training.optimisers import InPlaceSGD

NARROW = 16  # fewer outputs than that, as of a last layer, and vectors run along the batch, which is longer
# Torch's own product for the outputs is up to twice as fast with fewer inputs than that (many, where the units
# fill whole vectors), and its step up to a sixth faster with more bytes of weights a client. Elsewhere the
# compiled ones are as fast or faster (benchmarks/products.py).
FEW_INPUTS, MANY_INPUTS = 64, 160
LARGE_WEIGHT = 2**21


class LinearProducts(Protocol):
    """The three products of a client's step."""

    def outputs(self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """inputs weight^T + bias."""
        ...

    def for_inputs(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """gradient weight."""
        ...

    def add(
        self, weight: torch.Tensor, gradient: torch.Tensor, inputs: torch.Tensor, *, keep: float, scale: float
    ) -> None:
        """weight <- keep * weight + scale * gradient^T inputs, while it is in cache."""
        ...


@cache
def tiles_fit() -> bool:
    """Whether the compiler is installed and the processor has the registers for its tiles, 32 of 64 bytes. With
    half as many of half the size, torch's products are as fast."""
    if not numba_installed():
        return False
    import llvmlite.binding

    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


def linear_products(weight: torch.Tensor) -> LinearProducts:
    """The fastest products with such a weight."""
    known = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
    whole_rows = weight.stride(2) == 1
    return CompiledProducts(weight.dtype) if known and whole_rows and tiles_fit() else TorchProducts()


class TorchProducts:
    """Batched products of torch, which autograd follows."""

    def outputs(self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if bias is None:
            return torch.bmm(inputs, weight.transpose(1, 2))
        if weight.shape[1] < NARROW and weight.device.type == "cpu":
            # The loss wants the outputs in that order too.
            return torch.baddbmm(bias.unsqueeze(2), weight, inputs.transpose(1, 2)).transpose(1, 2)
        return torch.baddbmm(bias.unsqueeze(1), inputs, weight.transpose(1, 2))

    def for_inputs(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.bmm(gradient, weight)

    def add(
        self, weight: torch.Tensor, gradient: torch.Tensor, inputs: torch.Tensor, *, keep: float, scale: float
    ) -> None:
        weight.baddbmm_(gradient.transpose(1, 2), inputs, beta=keep, alpha=scale)


class CompiledProducts:
    """Products by register tiles, and torch's where those are faster or autograd has to follow."""

    def __init__(self, kind: torch.dtype) -> None:
        from histfl.engines.kernels.linear_tiles import linear_kernels

        self.torch = TorchProducts()
        self.add_products, self.affine = linear_kernels(str(kind).removeprefix("torch."))

    def outputs(self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        clients, units, width = weight.shape
        if width < (FEW_INPUTS if units % 16 else MANY_INPUTS) or inputs.requires_grad:
            return self.torch.outputs(inputs, weight, bias)
        batch = inputs.shape[1]
        if units < NARROW:
            found = inputs.new_empty(clients, units, batch).transpose(1, 2)
        else:
            found = inputs.new_empty(clients, batch, units)
        shift = weight.new_zeros(clients, units) if bias is None else bias
        self.affine(found.numpy(), _in_rows(inputs).numpy(), weight.numpy(), _in_rows(shift).numpy())
        return found

    def for_inputs(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found = gradient.new_empty(*gradient.shape[:2], weight.shape[2])
        self.add_products(found.numpy(), gradient.numpy(), weight.numpy(), 0.0, 1.0)
        return found

    def add(
        self, weight: torch.Tensor, gradient: torch.Tensor, inputs: torch.Tensor, *, keep: float, scale: float
    ) -> None:
        _, units, width = weight.shape
        if units * width * weight.element_size() > LARGE_WEIGHT:
            self.torch.add(weight, gradient, inputs, keep=keep, scale=scale)
        else:
            turned = gradient.numpy().swapaxes(1, 2)
            self.add_products(weight.numpy(), turned, _in_rows(inputs).numpy(force=True), keep, scale)


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its last axis innermost in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class StepsItself(Protocol):
    """A layer that takes its SGD steps without autograd."""

    def step(self, inputs: torch.Tensor, gradient: torch.Tensor, sgd: InPlaceSGD) -> None:
        """One step from inputs and the gradient of their outputs."""
        ...


class TensorStep(Protocol):
    """A step of one tensor at a time: that of plain SGD, or any other that needs no gradient but the tensor's own."""

    def step(self, tensor: torch.Tensor, gradient: torch.Tensor) -> None: ...


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

    def step(self, inputs: torch.Tensor, gradient: torch.Tensor, rule: TensorStep) -> None:
        """One step from inputs and the gradient of the outputs. For plain SGD the product of the two, which would be
        the weights' gradient, is added to the weights while they are in cache, and never stored."""
        inputs, gradient = _flat(inputs), _flat(gradient)
        if self.trains_bias and self.bias is not None:
            rule.step(self.bias, gradient.sum(dim=1))
        if self.trains_weight and isinstance(rule, InPlaceSGD):
            self.products.add(self.weight, gradient, inputs, keep=rule.keep, scale=-rule.learning_rate)
        elif self.trains_weight:
            for_weight = torch.empty_like(self.weight)
            self.products.add(for_weight, gradient, inputs, keep=0.0, scale=1.0)
            rule.step(self.weight, for_weight)


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
