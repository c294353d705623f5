"""Models whose clients are not stacked: one client's step after another, on a CPU with several threads side by side, on a
GPU on a few parallel streams.

A large convolution fills the GPU by itself; streams fill the gaps that its smaller neighbours leave.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue

import torch
from torch import nn
from torch.func import functional_call

from histfl.data.inputs import Inputs, arguments, called, mapped
from histfl.devices import layers
from histfl.engines.blocks import Batches
from histfl.engines.kernels.cpu_pooling import pool_across_images
from histfl.engines.kernels.layout import kernels_innermost
from histfl.partition import State, copy_of, with_tensors
from histfl.training import LocalTraining, Task
from histfl.training.answers import in_a_local_step
from histfl.training.optimisers import Slots


class OneByOneSteps:
    """Each thread that trains borrows a copy of the module, since running tensors through one changes it."""

    steps_a_launch = 1

    def __init__(self, task: Task) -> None:
        self.task = task
        self._copies: SimpleQueue[nn.Module] = SimpleQueue()

    def clients_at_once(self, start: State) -> int | None:
        return 1

    def laid_out(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def steps(
        self, state: State, constants: State, batches: Batches, slots: Slots, local: LocalTraining
    ) -> torch.Tensor:
        """The steps of the one client there is."""
        own = {name: tensor[0].detach().requires_grad_() for name, tensor in state.items()}
        own_slots = tuple([tensor[0] for tensor in slot] for slot in slots)
        try:
            copy = self._copies.get_nowait()
        except Empty:
            copy = copy_of(self.task.model)
            pool_across_images(copy)

        def steps(model: nn.Module) -> torch.Tensor:
            tensors, total = tuple(own.values()), torch.zeros((), device=next(iter(own.values())).device)
            for inputs, targets in batches:
                with in_a_local_step():
                    value = self.task.loss(called(model, mapped(partial(_nth, 0), inputs)), targets[0])
                    gradients = torch.autograd.grad(value, tensors, materialize_grads=True)
                local.step(tensors, gradients, own_slots)
                total = total + value.detach()
            return total

        # One call for all steps: the module holds the client's tensors meanwhile.
        total = with_tensors(copy, own | {name: x[0] for name, x in constants.items()}, steps)
        self._copies.put(copy)
        return total.view(1)


def _nth(client: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor[client]


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Images [client, batch, channel, height, width] as convolutions take them fastest; others as they are."""
    if tensor.dim() != 5:
        return tensor
    images = tensor.flatten(0, 1).to(memory_format=torch.channels_last)
    laid_out: torch.Tensor = images.unflatten(0, tensor.shape[:2])
    return laid_out


STREAMS = 6


class StreamedSteps:
    """Every client's forward and backward pass on its own, inside a recording."""

    steps_a_launch = 1  # a step alone is thousands of kernels

    def __init__(self, task: Task) -> None:
        self.task = task
        device = task.data.device
        self._streams = [torch.cuda.Stream(device) for _ in range(STREAMS)] if device.type == "cuda" else []

    def clients_at_once(self, start: State) -> int | None:
        return None

    def laid_out(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return kernels_innermost(tensor)

    def steps(
        self, state: State, constants: State, batches: Batches, slots: Slots, local: LocalTraining
    ) -> torch.Tensor:
        total = torch.zeros(len(next(iter(state.values()))), device=self.task.data.device)
        for inputs, targets in batches:
            inputs = mapped(_channels_last, inputs)
            values = []
            for stream in self._streams:
                stream.wait_stream(torch.cuda.current_stream())
            for client in range(len(total)):
                with self._aside(client):
                    own, fixed = _of_client(state, client), _of_client(constants, client)
                    own_slots = tuple([tensor[client] for tensor in slot] for slot in slots)
                    given = mapped(partial(_nth, client), inputs)
                    values.append(self._step(own, fixed, given, targets[client], own_slots, local))
            for stream in self._streams:
                torch.cuda.current_stream().wait_stream(stream)
            total = total + torch.stack(values)
        return total

    def _aside(self, client: int) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._streams[client % STREAMS]) if self._streams else nullcontext()

    def _step(
        self,
        state: State,
        constants: State,
        inputs: Inputs,
        targets: torch.Tensor,
        slots: Slots,
        local: LocalTraining,
    ) -> torch.Tensor:
        leaves = {name: tensor.requires_grad_() for name, tensor in state.items()}
        with in_a_local_step(), layers(local.precision, targets.device):
            value = self.task.loss(
                functional_call(self.task.model, {**leaves, **constants}, *arguments(inputs)), targets
            )
        tensors = tuple(leaves.values())
        gradients = torch.autograd.grad(value, tensors, materialize_grads=True)
        local.step(tensors, gradients, slots)
        return value.detach()


def _of_client(stacked: State, client: int) -> State:
    return {name: tensor[client].detach() for name, tensor in stacked.items()}
