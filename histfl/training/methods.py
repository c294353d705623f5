"""The methods: each is a way to cut the model and to deal out its units, and nothing else; and what the rest of the
package says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from histfl.arrays import Ints
from histfl.partition import Plan, Scheme, Submodel, draw
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


def _disjoint(shared: float) -> Dealer:
    return RandomDealer()


@dataclass(frozen=True)
class Method:
    """`scheme` says which unit groups are cut; `dealer` makes who deals their units, given `method.shared`.

    `title` is its name in figures, `about` what it is. Reports compare others with a `baseline`. The convergence
    theorems are about methods with `theorems`: disjoint submodels that cover the model.
    """

    scheme: Scheme
    dealer: Callable[[float], Dealer] = _disjoint
    title: str = ""
    about: str = ""
    baseline: bool = False
    theorems: bool = False

    @property
    def reads_shared(self) -> bool:
        """Whether `method.shared` says anything."""
        return self.dealer is not _disjoint


METHODS: dict[str, Method] = {
    "hist": Method(
        "alternating",
        title="HIST",
        about="disjoint submodels; no parameter is cut along two axes, so a cell holds about 1/N of the model",
        theorems=True,
    ),
    "hfedavg": Method(
        "none",
        title="HFedAvg",
        about="hierarchical FedAvg: nothing is cut, and every cell holds everything",
        baseline=True,
    ),
    "ist": Method(
        "every",
        title="IST",
        about="every hidden layer is cut: about 1/N^2 a cell, and some links are trained by nobody",
    ),
    "overlap": Method(
        "alternating",
        RandomDealer,
        title="overlap",
        about="HIST with a fraction of the units, `shared`, in every cell",
    ),
}

DEFAULT_METHOD = next(iter(METHODS))
BASELINE = next(name for name, method in METHODS.items() if method.baseline)


def is_baseline(name: str) -> bool:
    """Whether others are compared with the method of that name, which may be one of an old run."""
    return name in METHODS and METHODS[name].baseline


def has_theorems(name: str) -> bool:
    """Whether the convergence theorems are about the method of that name."""
    return name in METHODS and METHODS[name].theorems
