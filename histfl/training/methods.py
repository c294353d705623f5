"""The methods: each is a way to cut the model, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from histfl.partition import Scheme


@dataclass(frozen=True)
class Method:
    """`scheme` says which unit groups are cut, `overlapping` whether cells share a part of the units."""

    scheme: Scheme
    overlapping: bool = False


METHODS: dict[str, Method] = {
    "hist": Method("alternating"),  # no parameter is cut along two axes: ratio 1/N
    "hfedavg": Method("none"),  # every cell holds everything: hierarchical FedAvg
    "ist": Method("every"),  # every hidden layer is cut: ratio 1/N^2, some links trained by nobody
    "overlap": Method("alternating", overlapping=True),  # HIST with a fraction of the units shared
}
