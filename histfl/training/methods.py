"""The methods: each is a way to cut the model, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from histfl.partition import Scheme
from histfl.training.dealers import Dealer, RandomDealer


def _disjoint(shared: float) -> Dealer:
    return RandomDealer()


@dataclass(frozen=True)
class Method:
    """`scheme` says which unit groups are cut; `dealer` makes who deals their units, given `method.shared`."""

    scheme: Scheme
    dealer: Callable[[float], Dealer] = _disjoint


METHODS: dict[str, Method] = {
    "hist": Method("alternating"),  # no parameter is cut along two axes: ratio 1/N
    "hfedavg": Method("none"),  # every cell holds everything: hierarchical FedAvg
    "ist": Method("every"),  # every hidden layer is cut: ratio 1/N^2, some links trained by nobody
    "overlap": Method("alternating", RandomDealer),  # HIST with a fraction of the units shared
}
