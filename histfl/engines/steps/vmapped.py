"""Any model whose operations `torch.func.vmap` knows: all clients' steps as one, for a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call, grad_and_value, vmap

from histfl.devices import layers
from histfl.engines.blocks import Batches
from histfl.partition import State
from histfl.training import Task
from histfl.training.optimisers import Slots


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
