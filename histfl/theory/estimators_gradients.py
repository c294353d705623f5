"""Gradients of the full model's loss on a batch, as one vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from histfl.partition import State, with_tensors
from histfl.seeds import lent_to_layers
from histfl.training import Task
from histfl.training.batches import load_batch
from histfl.training.dropout import key_names

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Samples, or variants of them, by their `batch_numbers` [sample], and the seed of random layers such as dropout."""

    numbers: torch.Tensor
    layers_seed: int


@dataclass(frozen=True)
class Objective:
    """The loss of `task` as a function of the trained parameters; the others are constants."""

    task: Task
    trained: State
    constants: State

    @classmethod
    def of(cls, task: Task, state: State) -> Objective:
        """At `state`, all parameters of the model."""
        names = {name for name, parameter in task.model.named_parameters() if parameter.requires_grad}
        return cls(
            task,
            {name: x.detach().clone().requires_grad_() for name, x in state.items() if name in names},
            {name: x.detach() for name, x in state.items() if name not in names},
        )

    def of_loss(self, batch: Batch, compute: Callable[[torch.Tensor], T]) -> T:
        """What `compute` makes of the mean loss on the batch, []; backward passes belong in it."""
        task = self.task
        device = task.data.inputs.device
        inputs, targets = load_batch(task, batch.numbers.to(device))
        keys = dict.fromkeys(key_names(task.model), torch.tensor(batch.layers_seed, device=device))

        def computed(model: nn.Module) -> T:
            with lent_to_layers(batch.layers_seed, device):
                outputs = model(inputs)
            return compute(task.loss(outputs, targets))

        return with_tensors(task.model, {**self.trained, **self.constants, **keys}, computed)

    def gradient(self, batch: Batch) -> tuple[float, torch.Tensor]:
        """The loss on the batch and its gradient, float64 [parameter]."""
        parameters = tuple(self.trained.values())

        def computed(value: torch.Tensor) -> tuple[float, tuple[torch.Tensor, ...]]:
            return value.item(), torch.autograd.grad(value, parameters, materialize_grads=True)

        value, gradients = self.of_loss(batch, computed)
        return value, torch.cat([gradient.reshape(-1) for gradient in gradients]).double()
