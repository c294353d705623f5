"""The local steps of many clients as one: batched products for dense models and those of images, and on a GPU `vmap` for
any model whose operations it knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.func import functional_call, grad_and_value, vmap

from histfl.data.inputs import Inputs, arguments, bytes_of_a_sample
from histfl.devices import layers, numba_installed, triton_installed
from histfl.engines.blocks import FEWEST, Batches
from histfl.engines.kernels.layout import kernels_innermost, padded
from histfl.engines.kernels.linear import LayerCall, tiles_fit
from histfl.engines.kernels.losses import stacked_loss
from histfl.engines.steps.chain import ChainSteps, OneAtATime, chain_of, paddings, tensors_of
from histfl.engines.steps.gpu_images import GpuImages
from histfl.engines.steps.graph import CpuImages, Images, StackedGraph, Unstackable, shared_tensors
from histfl.partition import State
from histfl.training import LocalTraining, Task
from histfl.training.answers import in_a_local_step
from histfl.training.optimisers import InPlaceSGD, Slots

CACHE_BYTES = 5 * 2**20  # a block's weights, or images: a core's share of the last cache, on most machines
MOST = 16  # clients a block on a CPU: more and nothing is gained
MOST_OF_IMAGES = 5  # their activations need the cache more than their weights do


class StackedSteps:
    """Runs the module's graph with every client's tensors at once."""

    steps_a_launch = 5

    def __init__(self, task: Task) -> None:
        self.task = task
        self.inputs = _one_tensor(task)
        self.graph = StackedGraph(task.model, images=_images(task))
        self.losses = stacked_loss(task.loss)
        self.fused = task.local.fused() is not None
        trained = {name for name, value in task.model.named_parameters() if value.requires_grad}
        chain = chain_of(self.graph.module)
        on_cpu = task.data.device.type == "cpu"
        # Other steps than plain SGD's may be taken layer by layer where a gradient need not be known as a whole.
        apart = self.fused or (on_cpu and task.local.clip_norm is None)
        self.chain = chain if apart and chain is not None and trained <= tensors_of(chain) else None
        # The compiled products of a CPU take any width.
        unpadded = self.chain is None or not self.fused or (on_cpu and tiles_fit())
        self.paddings = {} if unpadded or self.chain is None else paddings(self.chain, trained)

    def clients_at_once(self, start: State) -> int | None:
        if self.inputs.device.type != "cpu":
            return None
        if self.graph.of_images:
            batch = self.task.local.batch_size * bytes_of_a_sample(self.inputs)
            return min(max(CACHE_BYTES // batch, 1), MOST_OF_IMAGES)
        size = sum(tensor.numel() * tensor.element_size() for tensor in start.values())
        return min(max(CACHE_BYTES // size, FEWEST), MOST)

    def laid_out(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor where products with it are fast."""
        if name in self.paddings:
            return padded(tensor, self.paddings[name])
        return kernels_innermost(tensor) if tensor.device.type == "cuda" else tensor

    def steps(
        self, state: State, constants: State, batches: Batches, slots: Slots, local: LocalTraining
    ) -> torch.Tensor:
        clients = len(next(iter(state.values())))
        shared = shared_tensors(self.task.model, clients, state | constants)
        tensors = {**shared, **constants, **state}
        fused = local.fused()
        if self.chain is None:
            step = self._autograd_step(state, tensors, slots, local, fused)
        else:
            rule = fused or OneAtATime(local, list(state.values()), slots)
            step = ChainSteps(self.chain, tensors, self.losses, rule, self.paddings).step
        found = [step(cast(torch.Tensor, inputs), targets) for inputs, targets in batches]
        return torch.stack(found).sum(dim=0)

    def _autograd_step(
        self, state: State, tensors: State, slots: Slots, local: LocalTraining, fused: InPlaceSGD | None
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        # A fused step has no slots, so that these are of all tensors or of none.
        rest = [x for name, x in state.items() if fused is None or name not in self.graph.alone]

        def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            calls: list[LayerCall] = []
            outputs = self.graph(inputs, tensors, None if fused is None else calls)
            with torch.no_grad():
                values, gradient = self.losses(outputs.detach(), targets)
                wanted = (*(call.outputs for call in calls), *rest)
                gradients = torch.autograd.grad(outputs, wanted, gradient, materialize_grads=True)
                if fused is not None:
                    for call, for_outputs in zip(calls, gradients, strict=False):
                        call.layer.step(call.inputs, for_outputs, fused)
                if rest:
                    local.step(rest, gradients[len(calls) :], slots, stacked=True)
            return values

        return step


def _one_tensor(task: Task) -> torch.Tensor:
    if not isinstance(task.data.inputs, torch.Tensor):
        raise Unstackable("the module takes several tensors")
    return task.data.inputs


def _images(task: Task) -> Images | None:
    """How layers over images are stacked on the task's device, where the compiler for that is installed and
    knows the model's numbers."""
    kinds = {_one_tensor(task).dtype, *(parameter.dtype for parameter in task.model.parameters())}
    if task.data.device.type == "cpu":
        known = len(kinds) == 1 and kinds <= {torch.float32, torch.float64}
        return CpuImages() if known and numba_installed() else None
    return GpuImages(task.local.precision) if kinds == {torch.float32} and triton_installed() else None


class VmappedSteps:
    """Gradients of all clients by `vmap` over `grad`."""

    steps_a_launch = 5

    def __init__(self, task: Task) -> None:
        self.task = task
        self.gradients: Any = vmap(grad_and_value(self._loss))

    def _loss(self, state: State, constants: State, inputs: Inputs, targets: torch.Tensor) -> torch.Tensor:
        with in_a_local_step(), layers(self.task.local.precision, targets.device):
            return self.task.loss(
                functional_call(self.task.model, {**state, **constants}, *arguments(inputs)), targets
            )

    def clients_at_once(self, start: State) -> int | None:
        return None

    def laid_out(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def steps(
        self, state: State, constants: State, batches: Batches, slots: Slots, local: LocalTraining
    ) -> torch.Tensor:
        stacked = {name: tensor.detach() for name, tensor in state.items()}
        total = torch.zeros(len(next(iter(stacked.values()))), device=self.task.data.device)
        for inputs, targets in batches:
            gradients, values = self.gradients(stacked, constants, inputs, targets)
            given = [gradients[name] for name in stacked]
            local.step(list(stacked.values()), given, slots, stacked=True)
            total = total + values
        return total
