"""Who gets which units of a global round: the dealers, a part of every method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from histfl.arrays import Ints
from histfl.partition import Plan, Submodel, draw
from histfl.seeds import Seeds


class Dealer(Protocol):
    """Deals the units of a plan out to the cells of a round. The same arguments give the same submodels, so that
    a resumed run goes on as it would have."""

    @property
    def shared(self) -> float:
        """The fraction of units that every cell holds, besides those that the sizes deal out."""
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

    def deal(
        self, plan: Plan, counts: Ints, cells: Sequence[int], round: int, seeds: Seeds
    ) -> tuple[Submodel, ...]:
        return draw(plan, counts, seeds.numpy("partition", round), shared=self.shared)
