"""Dense models and those of images: the local steps of many clients as batched products."""

from __future__ import annotations

from collections.abc import Callable

import torch

from histfl.devices import numba_installed, triton_installed
from histfl.engines.blocks import (
    FEWEST,
    Batches,
    Block,
    Samples,
    num_clients,
    stacked_constants,
    stacked_start,
)
from histfl.engines.gpu.images import GpuImages
from histfl.engines.layout import kernels_innermost
from histfl.engines.linear_products import tiles_fit
from histfl.engines.losses import stacked_loss
from histfl.engines.room import with_room
from histfl.engines.stacked_chain import ChainSteps, chain_of, rooms, tensors_of
from histfl.engines.stacked_graph import CpuImages, Images, StackedGraph, shared_tensors
from histfl.engines.stacked_linear import InPlaceSGD, LayerCall
from histfl.engines.updates import StackedSGD
from histfl.partition import State
from histfl.training import LocalTraining, Task

CACHE_BYTES = 5 * 2**20  # a block's weights, or images: a core's share of the last cache, on most machines
MOST = 16  # clients a block on a CPU: more and nothing is gained
MOST_OF_IMAGES = 5  # their activations need the cache more than their weights do


class StackedTrainer:
    """Runs the module's graph with every client's tensors at once."""

    steps_a_launch = 5

    def __init__(self, task: Task) -> None:
        self.task = task
        self.graph = StackedGraph(task.model, images=_images(task))
        self.losses = stacked_loss(task.loss)
        self.samples = Samples(task)
        self.in_place = in_place_sgd(task.local)
        trained = {name for name, value in task.model.named_parameters() if value.requires_grad}
        chain = chain_of(self.graph.module)
        simple = self.in_place is not None and chain is not None and trained <= tensors_of(chain)
        self.chain = chain if simple else None
        # The compiled products of a CPU take any width.
        any_width = task.data.inputs.device.type == "cpu" and tiles_fit()
        self.rooms = {} if self.chain is None or any_width else rooms(self.chain, trained)

    def clients_at_once(self, start: State) -> int | None:
        if self.task.data.inputs.device.type != "cpu":
            return None
        if self.graph.of_images:
            sample = self.task.data.inputs[0]
            batch = self.task.local.batch_size * sample.numel() * sample.element_size()
            return min(max(CACHE_BYTES // batch, 1), MOST_OF_IMAGES)
        size = sum(tensor.numel() * tensor.element_size() for tensor in start.values())
        return min(max(CACHE_BYTES // size, FEWEST), MOST)

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        start = {name: self.placed(name, x).requires_grad_() for name, x in stacked_start(block).items()}
        key, keyed = self.samples.room_for_keys(num_clients(block))
        batches = self.samples.batches(self.samples.draw(block), key)
        return self.steps(start, stacked_constants(block) | keyed, batches)

    def steps(
        self, start: State, constants: State, batches: Batches, velocity: State | None = None
    ) -> tuple[State, torch.Tensor]:
        """A step on each batch from leaves `start` [client, ...], which it changes; final models and losses."""
        clients = len(next(iter(start.values())))
        shared = shared_tensors(self.task.model, clients, start | constants)
        tensors = {**shared, **constants, **start}
        if self.chain is None or self.in_place is None:
            step = self._autograd_step(start, tensors, velocity)
        else:
            step = ChainSteps(self.chain, tensors, self.losses, self.in_place, self.rooms).step
        losses = torch.stack([step(inputs, targets) for inputs, targets in batches])
        return {name: tensor.detach() for name, tensor in start.items()}, losses.sum(dim=0)

    def _autograd_step(
        self, start: State, tensors: State, velocity: State | None
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        stepped = [name for name in start if self.in_place is None or name not in self.graph.alone]
        rest = [start[name] for name in stepped]
        before = velocity if velocity is None else [velocity[name] for name in stepped]
        sgd = StackedSGD(rest, self.task.local, before)

        def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            calls: list[LayerCall] = []
            outputs = self.graph(inputs, tensors, None if self.in_place is None else calls)
            with torch.no_grad():
                values, pull = self.losses(outputs.detach(), targets)
                wanted = (*(call.outputs for call in calls), *rest)
                gradients = torch.autograd.grad(outputs, wanted, pull, materialize_grads=True)
                if self.in_place is not None:
                    for call, gradient in zip(calls, gradients, strict=False):
                        call.layer.step(call.inputs, gradient, self.in_place)
                sgd.step(gradients[len(calls) :])
            return values

        return step

    def placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor where products with it are fast."""
        if name in self.rooms:
            return with_room(tensor, self.rooms[name])
        return kernels_innermost(tensor) if tensor.device.type == "cuda" else tensor


def _images(task: Task) -> Images | None:
    """How layers over images are stacked on the task's device, where the compiler for that is installed and
    knows the model's numbers."""
    kinds = {task.data.inputs.dtype, *(parameter.dtype for parameter in task.model.parameters())}
    if task.data.inputs.device.type == "cpu":
        known = len(kinds) == 1 and kinds <= {torch.float32, torch.float64}
        return CpuImages() if known and numba_installed() else None
    return GpuImages(task.local.precision) if kinds == {torch.float32} and triton_installed() else None


def in_place_sgd(local: LocalTraining) -> InPlaceSGD | None:
    """The step as one that needs the gradient of a single tensor at a time, where it is one."""
    if local.momentum or local.clip_norm is not None:
        return None
    return InPlaceSGD(local.learning_rate, keep=1.0 - local.learning_rate * local.weight_decay)
