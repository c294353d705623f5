"""What the cloud makes of the merged model: the last step of a global round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from histfl.partition import State


class CloudStep(Protocol):
    """From the round's first model and the merged one to the next round's, both with all parameters."""

    def step(self, old: State, merged: State, memory: State) -> tuple[State, State]:
        """The new model and what the next step is given as `memory` ({} in the first round); all are new tensors or
        the given ones, never changed in place."""
        ...


@dataclass(frozen=True)
class Replace:
    """The merged model is the new one (HIST Algorithm 1)."""

    def step(self, old: State, merged: State, memory: State) -> tuple[State, State]:
        return merged, memory


CLOUD_STEPS: dict[str, Callable[..., CloudStep]] = {"replace": Replace}
