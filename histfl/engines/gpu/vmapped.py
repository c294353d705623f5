"""Any model whose operations `torch.func.vmap` knows: all clients' steps as one, for a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call, grad_and_value, vmap

from histfl.engines.blocks import Batches
from histfl.engines.updates import StackedSGD
from histfl.partition import State
from histfl.training import Task
from histfl.training.precision import layers


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

    def placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def steps(
        self, start: State, constants: State, batches: Batches, velocity: State | None = None
    ) -> tuple[State, torch.Tensor]:
        """A step on each batch from `start` [client, ...], which it changes; final models and losses."""
        state = {name: tensor.detach() for name, tensor in start.items()}
        sgd = StackedSGD(
            list(state.values()),
            self.task.local,
            velocity if velocity is None else [velocity[name] for name in state],
        )
        total = torch.zeros(len(next(iter(state.values()))), device=self.task.data.inputs.device)
        for inputs, targets in batches:
            gradients, values = self.gradients(state, constants, inputs, targets)
            sgd.step([gradients[name] for name in state])
            total = total + values
        return state, total
