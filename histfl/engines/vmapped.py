"""Any model whose operations `torch.func.vmap` knows: all clients' steps as one, for a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call, grad_and_value, vmap

from histfl.engines.blocks import Block, Samples, num_clients, stacked_constants, stacked_start
from histfl.engines.updates import StackedSGD
from histfl.partition import State
from histfl.training import Task


class VmappedTrainer:
    """Gradients of all clients by `vmap` over `grad`."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.samples = Samples(task)
        self.gradients: Any = vmap(grad_and_value(self._loss))

    def _loss(
        self, state: State, constants: State, inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        return self.task.loss(functional_call(self.task.model, {**state, **constants}, (inputs,)), targets)

    def clients_at_once(self, start: State) -> int | None:
        return None

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        state, constants = stacked_start(block), stacked_constants(block)
        sgd = StackedSGD(list(state.values()), self.task.local)
        total = torch.zeros(num_clients(block), device=self.task.data.inputs.device)
        for inputs, targets in self.samples.batches(self.samples.indices(block)):
            gradients, values = self.gradients(state, constants, inputs, targets)
            sgd.step([gradients[name] for name in state])
            total = total + values
        return state, total
