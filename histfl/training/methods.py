"""The methods by name, and what the rest of the package says of them."""

from __future__ import annotations

from histfl.settings import check_given
from histfl.training.dealers import Method, NestedDealer, RandomDealer, RollingDealer

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
    "rolling": Method(
        "every",
        RollingDealer,
        title="rolling",
        about="FedRolex: every hidden layer is cut, to a window of units that moves on by `roll` of them in every round",
    ),
    "nested": Method(
        "every",
        NestedDealer,
        title="nested",
        about="HeteroFL: every hidden layer is cut, to its first units, as many as the cell's share",
    ),
}

DEFAULT_METHOD = next(iter(METHODS))
BASELINE = next(name for name, method in METHODS.items() if method.baseline)


def method_named(name: str) -> Method:
    """The method of that name."""
    check_given("method.name", "method", name, METHODS)
    return METHODS[name]


def is_baseline(name: str) -> bool:
    """Whether others are compared with the method of that name, which may be one of an old run."""
    return name in METHODS and METHODS[name].baseline


def has_theorems(name: str) -> bool:
    """Whether the convergence theorems are about the method of that name."""
    return name in METHODS and METHODS[name].theorems
