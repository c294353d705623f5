"""Models whose clients cannot be stacked, on a CPU: one client after another, several threads side by side."""

from __future__ import annotations

from queue import Empty, SimpleQueue

import torch
from torch import nn

from histfl.engines.blocks import Batches
from histfl.engines.kernels.cpu_pooling import pool_across_images
from histfl.partition import State, copy_of, with_tensors
from histfl.training import Task
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

    def steps(self, state: State, constants: State, batches: Batches, slots: Slots) -> torch.Tensor:
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
                value = self.task.loss(model(inputs[0]), targets[0])
                gradients = torch.autograd.grad(value, tensors, materialize_grads=True)
                self.task.local.step(tensors, gradients, own_slots)
                total = total + value.detach()
            return total

        # One call for all steps: the module holds the client's tensors meanwhile.
        total = with_tensors(copy, own | {name: x[0] for name, x in constants.items()}, steps)
        self._copies.put(copy)
        return total.view(1)
