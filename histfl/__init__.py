"""Federated learning over hierarchical wireless networks with independent submodels (HIST).

run = histfl.train(model, train_set, test_set, network=histfl.Network.uniform(cells=4, clients_per_cell=15))
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from histfl.api import Run, train
    from histfl.errors import HistflError
    from histfl.network import Network
    from histfl.reports.compare import compare

__all__ = ["HistflError", "Network", "Run", "compare", "train"]

_HOMES = {
    "HistflError": "histfl.errors",
    "Network": "histfl.network",
    "Run": "histfl.api",
    "compare": "histfl.reports.compare",
    "train": "histfl.api",
}


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    """Import on first use: the command line's --help should not wait for torch."""
    if name == "__version__":
        try:
            return metadata.version("histfl")
        except metadata.PackageNotFoundError:  # run from a checkout that was never installed
            return "0+unknown"
    if name not in _HOMES:
        raise AttributeError(f"module 'histfl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
