"""Local steps on a GPU, recorded once as a CUDA graph and replayed.

A step of a small model is dozens of short kernels, and launching them one by one from Python takes several
times longer than running them. A recording holds its clients' models, the samples of their batches and a
step counter in memory of its own, so that a replay needs nothing from the host.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from histfl.engines.blocks import Block, Samples, Way, num_clients
from histfl.partition import State
from histfl.training import Task

MOST_RECORDINGS = 16  # of different shapes or numbers of clients, the last used kept
TIMED_STEPS = 3


def record(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`step` as a graph. It runs once before, so that libraries load and choose their kernels."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        step()
    return graph


class CapturedTrainer:
    """Replays the local steps of a block; of several ways the fastest on the first block is kept."""

    def __init__(self, task: Task, ways: Sequence[Way]) -> None:
        self.task = task
        self.samples = Samples(task)
        self._ways = tuple(ways)
        self._recordings: OrderedDict[object, _Recording] = OrderedDict()
        self._most: int | None = None

    def clients_at_once(self, start: State) -> int | None:
        return self._most

    def train(self, block: Block) -> tuple[State, torch.Tensor]:
        try:
            recording = self._recording(block)
        except torch.OutOfMemoryError:
            self._most = max(1, num_clients(block) // 2)
            self._recordings.clear()
            torch.cuda.empty_cache()
            raise
        return recording.replay(block, self.samples.indices(block))

    def _recording(self, block: Block) -> _Recording:
        room = rounded_up(num_clients(block))
        shapes = tuple((name, tensor.shape) for name, tensor in block[0].state.items())
        key = (room, shapes)
        if key not in self._recordings:
            found = [_Recording(way, self.samples, block, room) for way in self._ways]
            if len(found) > 1:
                seconds = [recording.step_seconds() for recording in found]
                fastest = seconds.index(min(seconds))
                self._ways, found = (self._ways[fastest],), [found[fastest]]
            self._recordings[key] = found[0]
            while len(self._recordings) > MOST_RECORDINGS:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        return self._recordings[key]


def rounded_up(clients: int) -> int:
    """Room for at least that many clients, an eighth too much at most: where the number that takes part
    changes from round to round, a few recordings serve all of them."""
    unit = max(1, (1 << clients.bit_length() - 1) // 8)
    return math.ceil(clients / unit) * unit


class _Recording:
    """One step of `room` clients with the block's shapes."""

    def __init__(self, way: Way, samples: Samples, block: Block, room: int) -> None:
        local, device = samples.task.local, samples.task.data.inputs.device
        part = block[0]
        self.state = {name: way.placed(name, _roomy(x, room)) for name, x in part.state.items()}
        self.constants = {name: _roomy(x, room) for name, x in part.job.constants.items()}
        self.velocity = (
            {name: torch.zeros_like(x) for name, x in self.state.items()} if local.momentum else {}
        )
        self.losses = torch.zeros(room, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        shape = (local.local_steps, room, local.batch_size)
        self.indices = torch.zeros(shape, dtype=torch.int64, device=device)

        def one_step() -> None:
            chosen = self.indices.index_select(0, self.step)
            # New leaves: autograd waits for the stream on which a leaf was first used.
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in self.state.items()}
            _, losses = way.steps(leaves, self.constants, samples.batches(chosen), self.velocity or None)
            self.losses.add_(losses)
            self.step.add_(1)

        self.graph = record(one_step)

    def replay(self, block: Block, indices: torch.Tensor) -> tuple[State, torch.Tensor]:
        """The clients' models after all steps, and the sums of their losses."""
        first = 0
        for part in block:
            rows = slice(first, first + len(part.clients))
            for own, given in ((self.state, part.state), (self.constants, part.job.constants)):
                for name, tensor in given.items():
                    own[name][rows].copy_(tensor)
            first = rows.stop
        self.indices[:, :first].copy_(indices)
        self._restart()
        for _ in range(len(indices)):
            self.graph.replay()
        return {name: tensor[:first].clone() for name, tensor in self.state.items()}, self.losses[
            :first
        ].clone()

    def step_seconds(self) -> float:
        """The time of one step, the best of a few."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(TIMED_STEPS + 1)]
        for event in events:
            event.record()
            self._restart()
            self.graph.replay()
        events[-1].synchronize()
        milliseconds: list[float] = [before.elapsed_time(after) for before, after in pairwise(events)]
        return min(milliseconds) / 1e3

    def _restart(self) -> None:
        self.losses.zero_()
        self.step.zero_()
        for tensor in self.velocity.values():
            tensor.zero_()


def _roomy(tensor: torch.Tensor, room: int) -> torch.Tensor:
    return tensor.expand(room, *tensor.shape).contiguous()
