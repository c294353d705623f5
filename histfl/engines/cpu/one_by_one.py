"""Models whose clients cannot be stacked, on a CPU: one client after another, several threads side by side."""

from __future__ import annotations

from queue import Empty, SimpleQueue

import torch
from torch import nn

from histfl.engines.blocks import Batches, Block, Samples
from histfl.engines.cpu.pooling import pool_across_images
from histfl.engines.updates import StackedSGD
from histfl.partition import State, copy_of, with_tensors
from histfl.training import Task


class OneByOneTrainer:
    """Each thread that trains borrows a copy of the module, since running tensors through one changes it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.samples = Samples(task)
        self._copies: SimpleQueue[nn.Module] = SimpleQueue()

    def clients_at_once(self, start: State) -> int | None:
        return 1

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        (part,) = block
        state = {name: tensor.detach().clone().requires_grad_() for name, tensor in part.state.items()}
        key, keyed = self.samples.room_for_keys(1)
        constants = part.job.constants | {name: tensor[0] for name, tensor in keyed.items()}
        try:
            copy = self._copies.get_nowait()
        except Empty:
            copy = copy_of(self.task.model)
            pool_across_images(copy)

        def steps(model: nn.Module) -> torch.Tensor:
            return self._steps(
                model, self.samples.batches(self.samples.draw(block), key), tuple(state.values())
            )

        # One call for all steps: the module holds the client's tensors meanwhile.
        total = with_tensors(copy, {**state, **constants}, steps)
        self._copies.put(copy)
        return {name: tensor.detach().unsqueeze(0) for name, tensor in state.items()}, total.view(1)

    def _steps(self, model: nn.Module, batches: Batches, state: tuple[torch.Tensor, ...]) -> torch.Tensor:
        sgd = StackedSGD([tensor.detach().unsqueeze(0) for tensor in state], self.task.local)
        total = torch.zeros((), device=state[0].device)
        for inputs, targets in batches:
            value = self.task.loss(model(inputs[0]), targets[0])
            gradients = torch.autograd.grad(value, state, materialize_grads=True)
            sgd.step([gradient.unsqueeze(0) for gradient in gradients])
            total = total + value.detach()
        return total
