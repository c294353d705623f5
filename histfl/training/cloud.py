"""What the cloud makes of the merged model: the last step of a global round.

A step that moves by more than the round's own change takes x' - x, merged less old, as a pseudo-gradient (Reddi et
al., "Adaptive Federated Optimization", arXiv 2003.00295). What nobody trained in a round, such as the links that IST
leaves out, has a pseudo-gradient of 0 and is stepped like the rest: its moments fade, and it moves on by its momentum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from histfl import arguments
from histfl.errors import UsageError
from histfl.partition import State
from histfl.settings import SMALLEST
from histfl.training import answers


class CloudStep(Protocol):
    """From the round's first model and the merged one to the next round's, both with all parameters."""

    def step(self, old: State, merged: State, memory: State) -> tuple[State, State]:
        """The new model and what the next step is given as `memory` ({} in the first round); all are new tensors or
        the given ones, never changed in place. A parameter that is frozen is the same tensor in both models."""
        ...


@dataclass(frozen=True)
class Replace:
    """The merged model is the new one (HIST Algorithm 1)."""

    def step(self, old: State, merged: State, memory: State) -> tuple[State, State]:
        return merged, memory


@dataclass(frozen=True)
class FedAvgM:
    """Momentum: m <- momentum m + (x' - x), x <- x + learning_rate m (Hsu et al., arXiv 1909.06335)."""

    learning_rate: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        arguments.positive("cloud.learning_rate", self.learning_rate)
        arguments.below_one("cloud.momentum", self.momentum)

    def step(self, old: State, merged: State, memory: State) -> tuple[State, State]:
        new, kept = dict(merged), State()
        for name, change in _pseudo_gradients(old, merged).items():
            moment = kept[name] = self.momentum * memory[name] + change if memory else change
            new[name] = _stepped(old[name], self.learning_rate * moment)
        return new, kept


@dataclass(frozen=True)
class FedAdam:
    """Adam on x' - x, without bias correction, the second moment from tau^2 (Reddi et al., Algorithm 2)."""

    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 0.001

    def __post_init__(self) -> None:
        arguments.positive("cloud.learning_rate", self.learning_rate)
        arguments.positive("cloud.tau", self.tau, least=SMALLEST)  # which float32 can tell from 0
        arguments.below_one("cloud.beta1", self.beta1)
        arguments.below_one("cloud.beta2", self.beta2)

    def second(self, moment: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """The second moment after a squared pseudo-gradient."""
        return self.beta2 * moment + (1 - self.beta2) * square

    def step(self, old: State, merged: State, memory: State) -> tuple[State, State]:
        new, kept = dict(merged), State()
        for name, change in _pseudo_gradients(old, merged).items():
            before = memory.get(f"first/{name}", torch.zeros_like(change))
            first = self.beta1 * before + (1 - self.beta1) * change
            before = memory.get(f"second/{name}", torch.full_like(change, self.tau**2))
            second = self.second(before, change.square())
            new[name] = _stepped(old[name], self.learning_rate * first / (second.sqrt() + self.tau))
            kept |= {f"first/{name}": first, f"second/{name}": second}
        return new, kept


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """As FedAdam, but the second moment moves by (1 - beta2) of the square, towards it (Reddi et al., Algorithm 2)."""

    def second(self, moment: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        return moment - (1 - self.beta2) * square * (moment - square).sign()


def _pseudo_gradients(old: State, merged: State) -> State:
    """x' - x of the parameters that are trained, in single precision at least."""
    return {
        name: tensor.to(wide) - old[name].to(wide)
        for name, tensor in merged.items()
        if tensor is not old[name]
        for wide in [torch.promote_types(tensor.dtype, torch.float32)]
    }


def _stepped(old: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    return (old + change).to(old.dtype)


def stepped(step: CloudStep, old: State, merged: State, memory: State) -> tuple[State, State]:
    """The new model and what the next step is given, or a UsageError where a step of the user's own gives no such."""
    whose = f"the cloud step {type(step).__name__}"
    new, kept = answers.pair(step.step(old, merged, memory), whose)
    return answers.alike(new, old, whose), answers.tensors(kept, f"the memory of {whose}")


CLOUD_STEPS: dict[str, Callable[..., CloudStep]] = {
    "replace": Replace,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
}


def check_cloud_step(step: Any, place: str) -> CloudStep:
    """`step`, or a UsageError where it is none."""
    if not callable(getattr(step, "step", None)):
        raise UsageError(f"{place} has no method step; see histfl.training.cloud.CloudStep")
    return step  # type: ignore[no-any-return]
