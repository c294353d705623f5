"""Local steps as they come, on a CPU."""

from __future__ import annotations

import torch

from histfl.engines.blocks import Block, Stepper, num_clients, stacked_constants, stacked_start
from histfl.engines.samples import Samples
from histfl.partition import State
from histfl.training import Task


class DirectTrainer:
    """Lets a stepper take the local steps of a block."""

    def __init__(self, task: Task, stepper: Stepper) -> None:
        self.task, self.stepper = task, stepper
        self.samples = Samples(task)

    def clients_at_once(self, start: State) -> int | None:
        return self.stepper.clients_at_once(start)

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        laid_out = {name: self.stepper.laid_out(name, x) for name, x in stacked_start(block).items()}
        slots = self.task.local.optimiser.slots(list(laid_out.values()))
        state = {name: tensor.requires_grad_() for name, tensor in laid_out.items()}
        key, keyed = self.samples.empty_keys(num_clients(block))
        batches = self.samples.batches(self.samples.draw(block), key)
        losses = self.stepper.steps(state, stacked_constants(block) | keyed, batches, slots)
        return {name: tensor.detach() for name, tensor in state.items()}, losses
