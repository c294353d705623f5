"""Which way of training fits a task: by what its module can do, tried on a few samples, not by its name."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch.func import functional_call

from histfl.engines.blocks import Trainer
from histfl.engines.one_by_one import OneByOneTrainer
from histfl.engines.stacked import StackedTrainer
from histfl.engines.stacked_graph import shared_tensors
from histfl.engines.vmapped import VmappedTrainer
from histfl.partition import State
from histfl.training import Task

TRIED_SAMPLES = 8


def choose_trainer(task: Task) -> Trainer | None:
    """The fastest trainer that gives what the reference engine gives, or None where that alone will do."""
    if not _repeatable(task):
        return None
    if _works(lambda: _stacked_agrees(task)):
        return StackedTrainer(task)
    if task.data.inputs.device.type == "cpu":
        return OneByOneTrainer(task)
    return VmappedTrainer(task) if _works(lambda: _vmapped_agrees(task)) else None


def _works(attempt: Callable[[], bool]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it would loop over the clients after all
            return attempt()
    except Exception:  # a user's module or loss may fail in any way; the next way is then tried
        return False


def _tried(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    return task.data.inputs[:TRIED_SAMPLES], task.data.targets[:TRIED_SAMPLES]


def _parameters(task: Task) -> State:
    return {name: parameter.detach() for name, parameter in task.model.named_parameters()}


def _repeatable(task: Task) -> bool:
    """Whether a forward pass draws no random numbers and changes no buffer.

    Random layers draw from one generator, and buffers live in one module, so that neither could be told
    apart between clients that train side by side.
    """
    device = task.data.inputs.device
    before = {name: buffer.clone() for name, buffer in task.model.named_buffers()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        generator = _generator_state(device)
        try:
            with torch.no_grad():
                functional_call(task.model, _parameters(task), (_tried(task)[0],))
        except Exception:  # the reference engine says what is wrong with it
            return False
        drawn = not torch.equal(generator, _generator_state(device))
    changed = any(not torch.equal(before[name], buffer) for name, buffer in task.model.named_buffers())
    with torch.no_grad():
        for name, buffer in task.model.named_buffers():
            buffer.copy_(before[name])
    return not drawn and not changed


def _generator_state(device: torch.device) -> torch.Tensor:
    state = torch.random.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else state


def _two_clients(task: Task) -> State:
    """The task's parameters [client, ...] for two clients that differ."""
    return {name: torch.stack([value, 1.1 * value]) for name, value in _parameters(task).items()}


def _losses_of_two(task: Task, stacked: State) -> torch.Tensor:
    inputs, targets = _tried(task)
    return torch.stack(
        [
            task.loss(functional_call(task.model, {n: x[i] for n, x in stacked.items()}, (inputs,)), targets)
            for i in range(2)
        ]
    )


def _stacked_agrees(task: Task) -> bool:
    trainer = StackedTrainer(task)
    stacked = _two_clients(task)
    inputs, targets = (sample.expand(2, *sample.shape) for sample in _tried(task))
    tensors = {**shared_tensors(task.model, 2, stacked), **stacked}
    with torch.no_grad():
        found = trainer.losses(trainer.graph(inputs.contiguous(), tensors), targets)
        return _close(found, _losses_of_two(task, stacked))


def _vmapped_agrees(task: Task) -> bool:
    stacked = _two_clients(task)
    inputs, targets = (sample.expand(2, *sample.shape) for sample in _tried(task))
    _, found = VmappedTrainer(task).gradients(stacked, {}, inputs, targets)
    with torch.no_grad():
        return _close(found, _losses_of_two(task, stacked))


def _close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.allclose(left, right, rtol=1e-3, atol=1e-5)
