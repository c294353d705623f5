"""The products of linear layers of many clients: by torch and, on a CPU, by compiled kernels.

Inputs are [client, batch, in], gradients of outputs [client, batch, out], weights [client, out, in].
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch

from histfl.devices import numba_installed

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
        from histfl.engines.cpu.linear_kernels import linear_kernels

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
