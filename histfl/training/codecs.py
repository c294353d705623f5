"""What a client's update is turned into on its way to the edge, and the bits that takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from histfl.arrays import Ints
from histfl.partition import State


class Codec(Protocol):
    """How clients write their updates. It is part of a run's numbers: what the edge averages is what it decodes."""

    def bits_per_parameter(self, plain: float) -> float:
        """What a parameter takes on the way, the mean over an update, where one as it is takes `plain` bits."""
        ...

    def decoded(self, start: State, finals: State, clients: Ints, key: int) -> State:
        """What the edge has of the `clients`' models `finals`, tensors [client, ...], that began at its own model
        `start`. Chance comes from `key` (one an edge round) and the client's number alone, so that engines agree."""
        ...


@dataclass(frozen=True)
class Plain:
    """Every number as it is (HIST Sec. IV-A: 32 bits a parameter)."""

    def bits_per_parameter(self, plain: float) -> float:
        return plain

    def decoded(self, start: State, finals: State, clients: Ints, key: int) -> State:
        return finals


CODECS: dict[str, Callable[..., Codec]] = {"plain": Plain}
