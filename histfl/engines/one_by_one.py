"""Models with convolutions on a CPU: one client after another, several threads side by side."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from queue import Empty, SimpleQueue

import torch
from torch import nn
from torch.func import functional_call

from histfl.engines.blocks import Block, Samples, stacked_start
from histfl.engines.updates import StackedSGD
from histfl.partition import State
from histfl.training import Task


class OneByOneTrainer:
    """Each thread that trains borrows a copy of the module, since running tensors through one changes it.

    With `channels_last`, images and kernels lie in memory with their channels innermost.
    """

    def __init__(self, task: Task, *, channels_last: bool) -> None:
        self.task = task
        self.samples = Samples(task)
        self.channels_last = channels_last
        self._copies: SimpleQueue[nn.Module] = SimpleQueue()

    def clients_at_once(self, start: State) -> int | None:
        return 1

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        try:
            copy = self._copies.get_nowait()
        except Empty:
            copy = _Loop(deepcopy(self.task.model))
        try:
            (part,) = block
            state = {
                name: tensor.requires_grad_() for name, tensor in self._placed(stacked_start(block)).items()
            }
            tensors = {f"model.{name}": tensor for name, tensor in {**state, **part.job.constants}.items()}

            def steps(model: nn.Module) -> torch.Tensor:
                return self._steps(model, block, tuple(state.values()))

            # One call for all steps: the module holds the client's tensors meanwhile.
            total: torch.Tensor = functional_call(copy, tensors, (steps,))
        finally:
            self._copies.put(copy)
        return {
            name: tensor.detach().contiguous().unsqueeze(0) for name, tensor in state.items()
        }, total.view(1)

    def _placed(self, stacked: State) -> State:
        """The one client's tensors, in the memory format of the run."""
        state = {name: tensor.squeeze(0) for name, tensor in stacked.items()}
        return {name: self._format(tensor) for name, tensor in state.items()} if self.channels_last else state

    def _format(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    def _steps(self, model: nn.Module, block: Block, state: tuple[torch.Tensor, ...]) -> torch.Tensor:
        sgd = StackedSGD([tensor.detach().unsqueeze(0) for tensor in state], self.task.local)
        total = torch.zeros((), device=state[0].device)
        for inputs, targets in self.samples.batches(self.samples.indices(block)):
            images = self._format(inputs[0]) if self.channels_last else inputs[0]
            value = self.task.loss(model(images), targets[0])
            gradients = torch.autograd.grad(value, state, materialize_grads=True)
            sgd.step([gradient.unsqueeze(0) for gradient in gradients])
            total = total + value.detach()
        return total


class _Loop(nn.Module):
    """Hands its model, holding whatever tensors it was called with, to a function."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module], torch.Tensor]) -> torch.Tensor:
        return function(self.model)
