"""Schedules: how the clients' learning rate changes from global round to global round.

A new one is a frozen dataclass, whose fields are keys of `[training]`, be they there or its own, and a line in
`SCHEDULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

from histfl import arguments
from histfl.errors import UsageError
from histfl.factories import call_factory
from histfl.settings import check_given

SMALLEST_FACTOR = 1e-9  # a rate of zero would train nothing, however long


class Schedule(Protocol):
    """The factor of the learning rate `rounds` global rounds after the warm-up, whose own are `warmup_rounds`."""

    def factor(self, rounds: int, *, warmup_rounds: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The same rate in every round."""

    def factor(self, rounds: int, *, warmup_rounds: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Step:
    """The rate times `schedule_factor` after every `schedule_every` rounds."""

    schedule_every: int = 20
    schedule_factor: float = 0.1

    def factor(self, rounds: int, *, warmup_rounds: int) -> float:
        return max(self.schedule_factor ** (rounds // self.schedule_every), SMALLEST_FACTOR)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from the whole rate down to `schedule_floor` of it at round `schedule_rounds` (arXiv 1608.03983).

    The warm-up is part of these rounds; after them the rate stays there.
    """

    schedule_rounds: int
    schedule_floor: float = 0.01

    def factor(self, rounds: int, *, warmup_rounds: int) -> float:
        done = min(rounds / (self.schedule_rounds - warmup_rounds), 1.0)
        return self.schedule_floor + (1 - self.schedule_floor) * (1 + math.cos(math.pi * done)) / 2


SCHEDULES: dict[str, Callable[..., Schedule]] = {"constant": Constant, "step": Step, "cosine": Cosine}


def keys_of(name: object) -> Collection[str]:
    """The settings that a schedule reads; none where there is no such schedule."""
    return signature(SCHEDULES[name]).parameters if isinstance(name, str) and name in SCHEDULES else ()


def make_schedule(name: str, settings: Mapping[str, Any]) -> Schedule:
    """The named schedule, of the settings that it has."""
    check_given("training.schedule", "schedule", name, SCHEDULES)
    made: Schedule = call_factory(SCHEDULES[name], {}, settings, place=f"schedule {name!r}")
    return made


def check_schedule(schedule: Any, place: str) -> Schedule:
    """`schedule`, or a UsageError where it is none."""
    if not callable(getattr(schedule, "factor", None)):
        raise UsageError(f"{place} has no method factor; see histfl.training.schedules.Schedule")
    return schedule  # type: ignore[no-any-return]


def schedule_factor(schedule: Schedule, round: int, warmup_rounds: int) -> float:
    """Of global round `round`: over the warm-up it rises by equal steps, 1 / (warmup_rounds + 1) first."""
    if round < warmup_rounds:
        return (round + 1) / (warmup_rounds + 1)
    factor = schedule.factor(round - warmup_rounds, warmup_rounds=warmup_rounds)
    return arguments.between(f"factor of {type(schedule).__name__} in round {round + 1}", factor, 1e-30, 1e6)


def check_rate(optimiser: object, schedule: Schedule, warmup_rounds: int) -> None:
    """A UsageError where an optimiser of the user's own has no rate that a schedule could change."""
    if "learning_rate" in getattr(type(optimiser), "__dataclass_fields__", {}):
        return
    name = type(schedule).__name__.lower()
    key = f"schedule = {name!r}" if name != "constant" else f"warmup_rounds = {warmup_rounds}"
    raise UsageError(
        f"training.{key} changes the optimiser's learning_rate, and {type(optimiser).__name__} is no dataclass with "
        "that field; add the field, or leave the schedule out"
    )
