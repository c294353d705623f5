"""Gradients of the full model's loss on a batch, as one vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.func import functional_call

from histfl.partition import State
from histfl.seeds import lent_to_layers
from histfl.training import Task
from histfl.training.dropout import key_names


@dataclass(frozen=True)
class Batch:
    """Samples by their numbers [sample] in the training set, and the seed of random layers such as dropout."""

    samples: torch.Tensor
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

    def loss(self, batch: Batch) -> torch.Tensor:
        """The mean loss on the batch, []."""
        task = self.task
        device = task.data.inputs.device
        samples = batch.samples.to(device)
        keys = dict.fromkeys(key_names(task.model), torch.tensor(batch.layers_seed, device=device))
        with lent_to_layers(batch.layers_seed, device):
            outputs = functional_call(
                task.model, {**self.trained, **self.constants, **keys}, (task.data.inputs[samples],)
            )
        return task.loss(outputs, task.data.targets[samples])

    def gradient(self, batch: Batch) -> tuple[float, torch.Tensor]:
        """The loss on the batch and its gradient, float64 [parameter]."""
        value = self.loss(batch)
        gradients = torch.autograd.grad(value, tuple(self.trained.values()), materialize_grads=True)
        return value.item(), torch.cat([gradient.reshape(-1) for gradient in gradients]).double()
