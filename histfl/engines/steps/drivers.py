"""What drives a stepper: its local steps as they come, on a CPU, or on a GPU recorded once as a CUDA graph and replayed.

A step of a small model is dozens of short kernels, and launching them one by one from Python takes several
times longer than running them. A recording holds its clients' models, the samples of their batches and a
step counter in memory of its own, so that a replay needs nothing from the host.
"""

from __future__ import annotations

import gc
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from histfl.engines.blocks import (
    Block,
    Stepper,
    num_clients,
    stacked_constants,
    stacked_corrections,
    stacked_start,
)
from histfl.engines.samples import Drawn, Samples
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
        local = self.task.local.at(block[0].job.round)
        laid_out = {name: self.stepper.laid_out(name, x) for name, x in stacked_start(block).items()}
        slots = local.slots(list(laid_out.values()), in_order(stacked_corrections(block), laid_out))
        state = {name: tensor.requires_grad_() for name, tensor in laid_out.items()}
        key, keyed = self.samples.empty_keys(num_clients(block))
        batches = self.samples.batches(self.samples.draw(block), key)
        losses = self.stepper.steps(state, stacked_constants(block) | keyed, batches, slots, local)
        return {name: tensor.detach() for name, tensor in state.items()}, losses


MOST_RECORDINGS = 16  # of different shapes or numbers of clients, the last used kept
TIMED_LAUNCHES = 3
_log = logging.getLogger(__name__)


def record(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """What repeats `step`: the replay of a graph on a GPU, `step` itself on a CPU.

    It runs once before it is recorded, so that libraries load and choose their kernels.
    """
    if device.type == "cpu":
        return step
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(aside):
            step()
    finally:  # also where memory ran out halfway: what the step reads is freed then, and soon overwritten
        torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with _no_garbage_collected(), torch.cuda.graph(graph, stream=aside):
        step()

    def replay(read: Callable[[], None] = step) -> None:  # a graph does not keep the tensors that it reads
        graph.replay()

    return replay


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """An older graph that is thrown away while a new one is recorded would spoil the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class RecordedTrainer:
    """Replays the local steps of a block; of several steppers the fastest on the first block is kept."""

    def __init__(self, task: Task, steppers: Sequence[Stepper]) -> None:
        self.task = task
        self.samples = Samples(task)
        self._steppers = tuple(steppers)
        self._recordings: OrderedDict[object, _Recording] = OrderedDict()
        self._rate: float | None = None  # that is in all recordings
        self._most: int | None = None
        self._drawn: tuple[int, dict[object, Drawn]] = -1, {}  # of a global round, by its length and clients

    def clients_at_once(self, start: State) -> int | None:
        return self._most

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        try:
            recording = self._recording(block)
        except torch.OutOfMemoryError:
            if not self._recordings:
                self._most = max(1, num_clients(block) // 2)
                raise
        else:
            return recording.replay(block, self._draw(block))
        self._recordings.clear()  # it may fit without the others
        torch.cuda.empty_cache()
        return self.train(block)

    def _draw(self, block: Block) -> Drawn:
        """For the block's edge round; drawn for a whole global round where the same clients take part in all of
        it, since it takes as many kernels as one edge round."""
        part, steps = block[0], self.task.local.local_steps
        schedules = [part.job.schedule.arrived for part in block]
        if not all(np.array_equal(clients, arrived[0]) for arrived in schedules for clients in arrived):
            return self.samples.draw(block)
        if self._drawn[0] != part.job.round:
            self._drawn = part.job.round, {}
        edge_rounds, drawn = len(schedules[0]), self._drawn[1]
        key = edge_rounds, *(part.clients.tobytes() for part in block)
        if key not in drawn:
            whole = [replace(part, edge_round=0) for part in block]
            drawn[key] = self.samples.draw(whole, edge_rounds=edge_rounds)
        return drawn[key].at(slice(part.edge_round * steps, (part.edge_round + 1) * steps))

    def _recording(self, block: Block) -> _Recording:
        size, rate = rounded_up(num_clients(block)), self.task.local.at(block[0].job.round).learning_rate
        if rate != self._rate:  # a number of the kernels' calls: they are recorded anew
            self._recordings.clear()
            self._rate = rate
        shapes = tuple((name, tensor.shape) for name, tensor in block[0].state.items())
        key = (size, shapes)
        if key not in self._recordings:
            self._recordings[key] = self._fastest(block, size)
            while len(self._recordings) > MOST_RECORDINGS:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        return self._recordings[key]

    def _fastest(self, block: Block, size: int) -> _Recording:
        if len(self._steppers) == 1:
            return _Recording(self._steppers[0], self.samples, block, size)
        found: list[tuple[float, Stepper, _Recording]] = []
        failed: Exception | None = None
        for stepper in self._steppers:
            try:
                recording = _Recording(stepper, self.samples, block, size)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # vmap has no rule for some operations in half precision
                failed = error
                _log.debug("%s cannot be recorded", type(stepper).__name__, exc_info=True)
            else:
                found.append((recording.step_seconds(), stepper, recording))
                _log.debug("%s takes %.3g s a step", type(stepper).__name__, found[-1][0])
        if not found:
            raise failed or RuntimeError("nothing steps the clients")
        _, stepper, recording = min(found, key=lambda timed: timed[0])
        self._steppers = (stepper,)
        return recording


def rounded_up(clients: int) -> int:
    """A size for at least that many clients, an eighth too much at most: where the number that takes part
    changes from round to round, a few recordings serve all of them."""
    unit = max(1, (1 << clients.bit_length() - 1) // 8)
    return math.ceil(clients / unit) * unit


class _Recording:
    """A few steps of `size` clients with the block's shapes."""

    def __init__(self, stepper: Stepper, samples: Samples, block: Block, size: int) -> None:
        part, device = block[0], samples.task.data.device
        self.local = local = samples.task.local.at(part.job.round)
        self.state = {name: stepper.laid_out(name, _repeated(x, size)) for name, x in part.state.items()}
        self.key, keyed = samples.empty_keys(size)
        self.constants = {name: _repeated(x, size) for name, x in part.job.constants.items()} | keyed
        self.slots = local.slots(list(self.state.values()))
        self.losses = torch.zeros(size, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        shape = local.local_steps, size
        self.drawn = Drawn(
            torch.zeros(*shape, local.batch_size, dtype=torch.int64, device=device),
            torch.zeros(shape, dtype=torch.int64, device=device) if keyed else None,
        )

        # The next few steps follow from one launch, which takes the host as long as several small kernels.
        self.steps_each = max(n for n in range(1, stepper.steps_a_launch + 1) if local.local_steps % n == 0)

        self.replay_steps = record(self._steps(stepper, samples), device)

    def _steps(self, stepper: Stepper, samples: Samples) -> Callable[[], None]:
        """What is recorded. It holds the tensors and not the recording, which is then freed when dropped."""
        state, constants, slots, local = self.state, self.constants, self.slots, self.local
        step, drawn, key = self.step, self.drawn, self.key
        total, each = self.losses, self.steps_each
        following = torch.arange(each, device=step.device)

        def steps() -> None:
            chosen = drawn.at(step + following)
            # New leaves: autograd waits for the stream on which a leaf was first used.
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in state.items()}
            total.add_(stepper.steps(leaves, constants, samples.batches(chosen, key), slots, local))
            step.add_(each)

        return steps

    def replay(self, block: Block, drawn: Drawn) -> tuple[State, torch.Tensor]:
        """The clients' models after all steps, and the sums of their losses."""
        first = 0
        for part in block:
            rows = slice(first, first + len(part.clients))
            for own, given in ((self.state, part.state), (self.constants, part.job.constants)):
                if given:
                    kept = [own[name][rows] for name in given]
                    new = [tensor.expand_as(row) for tensor, row in zip(given.values(), kept, strict=True)]
                    torch._foreach_copy_(kept, new)
            first = rows.stop
        self.drawn.numbers[:, :first].copy_(drawn.numbers)
        if self.drawn.keys is not None and drawn.keys is not None:
            self.drawn.keys[:, :first].copy_(drawn.keys)
        self._restart(stacked_corrections(block))
        for _ in range(len(drawn.numbers) // self.steps_each):
            self.replay_steps()
        models = {name: tensor[:first].clone() for name, tensor in self.state.items()}
        return models, self.losses[:first].clone()

    def step_seconds(self) -> float:
        """The time of one step, the best of a few launches."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(TIMED_LAUNCHES + 1)]
        for event in events:
            event.record()
            self._restart()
            self.replay_steps()
        events[-1].synchronize()
        milliseconds: list[float] = [before.elapsed_time(after) for before, after in pairwise(events)]
        return min(milliseconds) / 1e3 / self.steps_each

    def _restart(self, corrections: State | None = None) -> None:
        self.losses.zero_()
        self.step.zero_()
        if corrections is not None:
            corrections = {name: _lengthened(x, len(self.losses)) for name, x in corrections.items()}
        slots = self.local.slots(list(self.state.values()), in_order(corrections, self.state))
        for kept, first in zip(self.slots, slots, strict=True):
            torch._foreach_copy_(kept, first)


def in_order(given: State | None, state: State) -> list[torch.Tensor] | None:
    """The tensors `given`, in the order of those of `state`."""
    return None if given is None else [given[name] for name in state]


def _lengthened(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """[client, ...] with zeros for clients beyond, `size` in all."""
    return torch.cat([tensor, tensor.new_zeros(size - len(tensor), *tensor.shape[1:])])


def _repeated(tensor: torch.Tensor, size: int) -> torch.Tensor:
    return tensor.expand(size, *tensor.shape).clone(memory_format=torch.contiguous_format)
