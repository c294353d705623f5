"""Which steppers fit a task: by what its module can do, tried on a few samples, not by its name."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch.utils import _pytree as pytree

from histfl.data.inputs import Inputs, called, chosen, in_batches, mapped
from histfl.devices import generator_state, products
from histfl.engines.blocks import Stepper, Trainer
from histfl.engines.steps.drivers import DirectTrainer, RecordedTrainer, record
from histfl.engines.steps.one_by_one import OneByOneSteps, StreamedSteps
from histfl.engines.steps.stacked import StackedSteps, VmappedSteps
from histfl.partition import State, copy_of
from histfl.training import Task, client_steps
from histfl.training.dropout import key_names
from histfl.training.optimisers import SGD, Optimiser
from histfl.training.scaling import scale_ones

TRIED_SAMPLES, TRIES = 8, 3
_log = logging.getLogger(__name__)
# Of a tensor's move. Rounding alone is a millionth, but where it turns a ReLU on or off it is up to a hundredth,
# and more on a GPU, where the order of sums depends on the layout.
ROUNDING = {"cpu": 0.005, "cuda": 0.02}
_Batch = tuple[Inputs, torch.Tensor]
_HALF = (torch.float16, torch.bfloat16)


def choose_trainer(task: Task) -> Trainer | None:
    """What trains fastest and gives what the reference engine gives, or None where that alone will do."""
    with products("float32"):
        if not _repeatable(task) or not _works(partial(_elementwise, task.local.optimiser, task)):
            return None
        stacked = StackedSteps(task) if _works(partial(_agrees, StackedSteps, task)) else None
        if task.data.device.type == "cpu":
            return DirectTrainer(task, stacked or OneByOneSteps(task))
        fitting: list[Stepper] = [stacked] if stacked else []
        if stacked is None or stacked.graph.of_images:  # the first block shows which is the fastest
            others: list[Callable[[Task], Stepper]] = [VmappedSteps, StreamedSteps]
            fitting += [make(task) for make in others if _works(partial(_agrees, make, task))]
        return RecordedTrainer(task, fitting) if fitting else None


def _works(attempt: Callable[[], bool]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one that is given once would strike the first stepper alone
            warnings.filterwarnings("error", message="There is a performance drop")  # vmap would loop
            return attempt()
    except Exception:  # a user's module, loss or optimiser may fail in any way
        _log.debug("a stepper does not fit", exc_info=True)
        return False


def _tried(task: Task) -> list[_Batch]:
    """A few batches of the task's samples."""
    few = TRIES * TRIED_SAMPLES
    inputs, targets = chosen(task.data.inputs, slice(few)), task.data.targets[:few]
    return list(zip(in_batches(inputs, TRIED_SAMPLES), targets.split(TRIED_SAMPLES), strict=True))


def _parameters(task: Task) -> State:
    return {name: parameter.detach() for name, parameter in task.model.named_parameters()}


def _repeatable(task: Task) -> bool:
    """Whether a forward pass draws no random numbers and changes nothing of the model.

    Random layers draw from one generator, and buffers, frozen parameters and whatever else a model keeps live in one
    module, so that none of it could be told apart between clients that train side by side.
    """
    device, model = task.data.device, copy_of(task.model)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    versions = [parameter._version for parameter in model.parameters()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        generator = generator_state(device)
        try:
            with torch.no_grad():
                first, second = (_tensors(called(model, _tried(task)[0][0])) for _ in range(2))
        except Exception:  # the reference engine says what is wrong with it
            return False
        drawn = not torch.equal(generator, generator_state(device))
    changed = versions != [parameter._version for parameter in model.parameters()] or any(
        not torch.equal(before[name].to_dense(), buffer.to_dense())  # torch compares no sparse ones
        for name, buffer in model.named_buffers()
    )
    repeats = all(
        x.shape == y.shape and torch.allclose(x, y, rtol=1e-3, atol=1e-5, equal_nan=True)
        for x, y in zip(first, second, strict=True)
    )
    return repeats and not drawn and not changed


def _tensors(outputs: object) -> list[torch.Tensor]:
    return [leaf.to_dense() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _two_clients(task: Task) -> State:
    """The task's trained parameters [client, ...] for two clients that differ."""
    return {
        name: torch.stack([value, 1.1 * value])
        for name, value in _parameters(task).items()
        if task.model.get_parameter(name).requires_grad
    }


def _two_constants(task: Task) -> State:
    """The keys of random layers, and the scales of cut inputs, for two clients that differ."""
    keys = torch.arange(2, device=task.data.device)
    scales = {name: torch.stack([ones, 1.5 * ones]) for name, ones in scale_ones(task.model).items()}
    return dict.fromkeys(key_names(task.model), keys) | scales


def _one_step(task: Task, batch: _Batch) -> tuple[State, torch.Tensor]:
    """What the reference path makes of one step of the two clients: models [client, ...], losses [client]."""
    stacked, constants = _two_clients(task), _two_constants(task)
    ends = [
        client_steps(
            task.model,
            {name: tensor[i] for name, tensor in stacked.items()},
            {name: tensor[i] for name, tensor in constants.items()},
            [(mapped(torch.clone, batch[0]), batch[1])],  # which a model may work on in place
            loss=task.loss,
            training=task.local,
        )
        for i in range(2)
    ]
    finals = {name: torch.stack([final[name] for final, _ in ends]) for name in stacked}
    return finals, torch.stack([loss for _, loss in ends])


def _elementwise(optimiser: Optimiser, task: Task) -> bool:
    """Whether two clients' tensors are stepped together as each alone, twice; only then may they be stacked."""
    ramp = torch.linspace(-1.0, 1.0, 24, device=task.data.device).view(2, 3, 4)

    def stepped(tensor: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        tensors = [tensor.clone()]
        slots = optimiser.slots(tensors)
        with torch.no_grad():
            for factor in (1.0, 0.5):
                optimiser.step(tensors, [factor * gradient], slots)
        return tensors[0]

    gradients = ramp.sin() + 2.0
    apart = torch.stack([stepped(ramp[i], gradients[i]) for i in range(2)])
    return torch.allclose(stepped(ramp, gradients), apart, rtol=1e-3, atol=1e-5)


def _trial(task: Task) -> Task:
    """The task with plain steps, large enough for a parameter that is not stepped to be seen, in full precision.

    They are fused where the task's own are. Another optimiser might make large moves of gradients' rounding.
    """
    plain = task.local.optimiser
    if type(plain) is not SGD:
        plain = SGD(momentum=0.0 if plain.fused() else 0.5)
    plain = dataclasses.replace(plain, learning_rate=0.1)
    local = dataclasses.replace(task.local, optimiser=plain, precision="float32")
    task = dataclasses.replace(task, local=local)
    if not any(parameter.dtype in _HALF for parameter in task.model.parameters()):
        return task
    # A right stepper and the reference differ by the rounding of half precision, as a wrong one might.
    tried = slice(TRIES * TRIED_SAMPLES)
    few = dataclasses.replace(
        task.data, inputs=chosen(task.data.inputs, tried), targets=task.data.targets[tried]
    )
    return dataclasses.replace(
        task, model=copy_of(task.model).float(), data=few.to(few.device, torch.float32)
    )


def _agrees(make: Callable[[Task], Stepper], task: Task) -> bool:
    """Whether one step of that kind is what the reference computes, on one of a few batches: a fault is seen on
    all of them, a ReLU that rounding turns on or off on some."""
    own = make(task)  # the trial's precision may be another, and a stepper for that one alone
    if type(task.local.optimiser) is not SGD:
        _step(own, task, _tried(task)[0])  # which a user's own optimiser may stop
    trial = _trial(task)
    stepper = make(trial)
    return any(
        _same(_two_clients(trial), _step(stepper, trial, batch), _one_step(trial, batch))
        for batch in _tried(trial)
    )


def _step(stepper: Stepper, task: Task, batch: _Batch) -> tuple[State, torch.Tensor]:
    """One step of the two clients, from a recording where there is a GPU: models [client, ...] and losses [client]."""
    start = _two_clients(task)
    state = {name: stepper.laid_out(name, tensor.clone()) for name, tensor in start.items()}
    inputs, targets = mapped(_twice, batch[0]), _twice(batch[1])
    losses = torch.zeros(2, device=targets.device)

    def step() -> None:
        slots = task.local.slots(list(state.values()))
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in state.items()}
        losses.copy_(stepper.steps(leaves, _two_constants(task), [(inputs, targets)], slots, task.local))

    replay = record(step, losses.device)
    for name, tensor in start.items():
        state[name].copy_(tensor)
    replay()
    return state, losses


def _twice(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.expand(2, *tensor.shape).contiguous()


def _same(start: State, found: tuple[State, torch.Tensor], expected: tuple[State, torch.Tensor]) -> bool:
    """Whether the losses are alike and every tensor has moved as it should, but for rounding.

    A tensor that moves far less than the model as a whole, such as a bias before a normalisation, moves by
    rounding alone; it is held to the model's scale.
    """
    norm = torch.linalg.vector_norm
    moves = {name: norm(right - start[name]) for name, right in expected[0].items()}
    whole = norm(torch.stack(list(moves.values())))
    rounding = ROUNDING[whole.device.type]
    apart = {name: norm(found[0][name] - right) for name, right in expected[0].items()}
    wrong = [name for name in moves if not apart[name] <= rounding * moves[name] + 1e-5 * whole]
    if wrong:
        parts = ", ".join(f"{name} by {float(apart[name] / moves[name]):.2g} of its move" for name in wrong)
        _log.debug("a stepper steps otherwise than the reference: %s", parts)
    return not wrong and torch.allclose(found[1], expected[1].to(found[1]), rtol=1e-3, atol=1e-5)
