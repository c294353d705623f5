"""Who is given which units in a round: dealers, and a method, which is a way to cut the model with its dealer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import numpy as np

from histfl import arguments
from histfl.arrays import Ints
from histfl.errors import UsageError, shown
from histfl.partition import Plan, Scheme, Submodel, draw, windows
from histfl.seeds import Seeds


class Dealer(Protocol):
    """Deals the units of a plan out to the cells of a round. The same arguments give the same submodels, so that
    a resumed run goes on as it would have."""

    @property
    def shared(self) -> float:
        """The fraction of units that every cell holds, besides those that the sizes deal out."""
        ...

    @property
    def covers(self) -> bool:
        """Whether a round's cells hold all units together, so that a list of sizes is relative; otherwise each is the
        part of every layer that its cell holds."""
        ...

    def reached(self, counts: Ints, rounds: int) -> Ints | None:
        """How many neighbouring units [group] some cell holds at some time in so many rounds; None: all of them."""
        ...

    def deal(
        self, plan: Plan, counts: Ints, cells: Sequence[int], round: int, seeds: Seeds
    ) -> tuple[Submodel, ...]:
        """A submodel for each of the round's `cells`, of counts[cell, group] units and the shared ones."""
        ...


@dataclass(frozen=True)
class RandomDealer:
    """Units dealt at random, anew in every round, every one to exactly one cell but for the shared ones
    (HIST Algorithm 1)."""

    shared: float = 0.0
    covers = True

    def reached(self, counts: Ints, rounds: int) -> Ints | None:
        return None

    def deal(
        self, plan: Plan, counts: Ints, cells: Sequence[int], round: int, seeds: Seeds
    ) -> tuple[Submodel, ...]:
        return draw(plan, counts, seeds.numpy("partition", round), shared=self.shared)


def _disjoint() -> Dealer:
    return RandomDealer()


@dataclass(frozen=True)
class RollingDealer:
    """A window of units that moves on by `roll` of them in every round and comes round at a layer's end (FedRolex,
    arXiv 2212.01548, where `roll` is 1 and all windows begin at the same unit).

    `apart`: a cell's window begins where that of the cell before it ends, so that cells meet as little as can be.
    """

    roll: int = 1
    apart: bool = False
    shared = 0.0
    covers = False

    def __post_init__(self) -> None:
        arguments.whole("method.roll", self.roll, 10**9)

    def reached(self, counts: Ints, rounds: int) -> Ints | None:
        together = counts.sum(axis=0) if self.apart else counts.max(axis=0)
        return np.asarray(together + self.roll * (rounds - 1), dtype=np.int64)

    def deal(
        self, plan: Plan, counts: Ints, cells: Sequence[int], round: int, seeds: Seeds
    ) -> tuple[Submodel, ...]:
        before = np.cumsum(counts, axis=0) - counts if self.apart else np.zeros_like(counts)
        return windows(plan, counts, self.roll * round + before)


@dataclass(frozen=True)
class NestedDealer:
    """The first units of every layer, in every round the same: a small submodel is part of every larger one (HeteroFL,
    arXiv 2010.01264; the ordered dropout of FjORD, arXiv 2102.13451)."""

    shared = 0.0
    covers = False

    def reached(self, counts: Ints, rounds: int) -> Ints | None:
        return np.asarray(counts.max(axis=0), dtype=np.int64)

    def deal(
        self, plan: Plan, counts: Ints, cells: Sequence[int], round: int, seeds: Seeds
    ) -> tuple[Submodel, ...]:
        return windows(plan, counts, np.zeros_like(counts))


def dealt(
    dealer: Dealer, plan: Plan, counts: Ints, cells: Sequence[int], round: int, seeds: Seeds
) -> tuple[Submodel, ...]:
    """The round's submodels, or a UsageError where a dealer of the user's own gives no such."""
    found = dealer.deal(plan, counts, cells, round, seeds)
    whose = f"the dealer {type(dealer).__name__}"
    if not isinstance(found, tuple | list) or not all(isinstance(each, Submodel) for each in found):
        raise UsageError(
            f"{whose} returns {shown(found)}; it must return a Submodel for each cell of the round"
        )
    if len(found) != len(cells):
        raise UsageError(f"{whose} returns {len(found)} submodels for {len(cells)} cells; give one for each")
    return tuple(found)


def check_dealer(dealer: Any) -> Dealer:
    """`dealer`, or a UsageError where it is none."""
    for part in ("shared", "covers", "reached", "deal"):
        if not hasattr(dealer, part):
            raise UsageError(
                f"the dealer of the method, {shown(dealer)}, has no {part}; see histfl.training.dealers.Dealer"
            )
    return dealer  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Method:
    """`scheme` says which unit groups are cut; `dealer` makes who deals their units, given those settings of [method]
    that it has parameters for.

    `title` is its name in figures, `about` what it is. Reports compare others with a `baseline`. The convergence
    theorems are about methods with `theorems`: disjoint submodels that cover the model.
    """

    scheme: Scheme
    dealer: Callable[..., Dealer] = _disjoint
    title: str = ""
    about: str = ""
    baseline: bool = False
    theorems: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The settings of [method] that its dealer takes."""
        return tuple(signature(self.dealer).parameters)
