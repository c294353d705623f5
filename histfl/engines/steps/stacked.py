"""The local steps of many clients as one: batched products for dense models and those of images, and on a GPU `vmap` for
any model whose operations it knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import functional_call, grad_and_value, vmap

from histfl.devices import layers, numba_installed, triton_installed
from histfl.engines.blocks import FEWEST, Batches
from histfl.engines.kernels.layout import kernels_innermost, padded
from histfl.engines.kernels.linear import LayerCall, tiles_fit
from histfl.engines.kernels.losses import stacked_loss
from histfl.engines.steps.chain import ChainSteps, chain_of, paddings, tensors_of
from histfl.engines.steps.gpu_images import GpuImages
from histfl.engines.steps.graph import CpuImages, Images, StackedGraph, shared_tensors
from histfl.partition import State
from histfl.training import Task
from histfl.training.optimisers import Slots

CACHE_BYTES = 5 * 2**20  # a block's weights, or images: a core's share of the last cache, on most machines
MOST = 16  # clients a block on a CPU: more and nothing is gained
MOST_OF_IMAGES = 5  # their activations need the cache more than their weights do


class StackedSteps:
    """Runs the module's graph with every client's tensors at once."""

    steps_a_launch = 5

    def __init__(self, task: Task) -> None:
        self.task = task
        self.graph = StackedGraph(task.model, images=_images(task))
        self.losses = stacked_loss(task.loss)
        self.fused = task.local.fused()
        trained = {name for name, value in task.model.named_parameters() if value.requires_grad}
        chain = chain_of(self.graph.module)
        simple = self.fused is not None and chain is not None and trained <= tensors_of(chain)
        self.chain = chain if simple else None
        # The compiled products of a CPU take any width.
        any_width = task.data.inputs.device.type == "cpu" and tiles_fit()
        self.paddings = {} if self.chain is None or any_width else paddings(self.chain, trained)

    def clients_at_once(self, start: State) -> int | None:
        if self.task.data.inputs.device.type != "cpu":
            return None
        if self.graph.of_images:
            sample = self.task.data.inputs[0]
            batch = self.task.local.batch_size * sample.numel() * sample.element_size()
            return min(max(CACHE_BYTES // batch, 1), MOST_OF_IMAGES)
        size = sum(tensor.numel() * tensor.element_size() for tensor in start.values())
        return min(max(CACHE_BYTES // size, FEWEST), MOST)

    def laid_out(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor where products with it are fast."""
        if name in self.paddings:
            return padded(tensor, self.paddings[name])
        return kernels_innermost(tensor) if tensor.device.type == "cuda" else tensor

    def steps(self, state: State, constants: State, batches: Batches, slots: Slots) -> torch.Tensor:
        clients = len(next(iter(state.values())))
        shared = shared_tensors(self.task.model, clients, state | constants)
        tensors = {**shared, **constants, **state}
        if self.chain is None or self.fused is None:
            step = self._autograd_step(state, tensors, slots)
        else:
            step = ChainSteps(self.chain, tensors, self.losses, self.fused, self.paddings).step
        return torch.stack([step(inputs, targets) for inputs, targets in batches]).sum(dim=0)

    def _autograd_step(
        self, state: State, tensors: State, slots: Slots
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        # A fused step has no slots, so that these are of all tensors or of none.
        rest = [x for name, x in state.items() if self.fused is None or name not in self.graph.alone]

        def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            calls: list[LayerCall] = []
            outputs = self.graph(inputs, tensors, None if self.fused is None else calls)
            with torch.no_grad():
                values, gradient = self.losses(outputs.detach(), targets)
                wanted = (*(call.outputs for call in calls), *rest)
                gradients = torch.autograd.grad(outputs, wanted, gradient, materialize_grads=True)
                if self.fused is not None:
                    for call, for_outputs in zip(calls, gradients, strict=False):
                        call.layer.step(call.inputs, for_outputs, self.fused)
                if rest:
                    self.task.local.step(rest, gradients[len(calls) :], slots, stacked=True)
            return values

        return step


def _images(task: Task) -> Images | None:
    """How layers over images are stacked on the task's device, where the compiler for that is installed and
    knows the model's numbers."""
    kinds = {task.data.inputs.dtype, *(parameter.dtype for parameter in task.model.parameters())}
    if task.data.inputs.device.type == "cpu":
        known = len(kinds) == 1 and kinds <= {torch.float32, torch.float64}
        return CpuImages() if known and numba_installed() else None
    return GpuImages(task.local.precision) if kinds == {torch.float32} and triton_installed() else None


class VmappedSteps:
    """Gradients of all clients by `vmap` over `grad`."""

    steps_a_launch = 5

    def __init__(self, task: Task) -> None:
        self.task = task
        self.gradients: Any = vmap(grad_and_value(self._loss))

    def _loss(
        self, state: State, constants: State, inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        with layers(self.task.local.precision, inputs.device):
            return self.task.loss(
                functional_call(self.task.model, {**state, **constants}, (inputs,)), targets
            )

    def clients_at_once(self, start: State) -> int | None:
        return None

    def laid_out(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def steps(self, state: State, constants: State, batches: Batches, slots: Slots) -> torch.Tensor:
        stacked = {name: tensor.detach() for name, tensor in state.items()}
        total = torch.zeros(len(next(iter(stacked.values()))), device=self.task.data.inputs.device)
        for inputs, targets in batches:
            gradients, values = self.gradients(stacked, constants, inputs, targets)
            given = [gradients[name] for name in stacked]
            self.task.local.step(list(stacked.values()), given, slots, stacked=True)
            total = total + values
        return total
