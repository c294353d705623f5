"""Federated learning over hierarchical wireless networks with independent submodels (HIST).

run = histfl.train(model, train_set, test_set, network=histfl.Network.uniform(cells=4, clients_per_cell=15))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from histfl.errors import HistflError
    from histfl.experiments.api import train
    from histfl.experiments.compare import compare
    from histfl.experiments.run import Run
    from histfl.network import Network

__all__ = ["HistflError", "Network", "Run", "compare", "train"]

_HOMES = {
    "HistflError": "histfl.errors",
    "Network": "histfl.network",
    "Run": "histfl.experiments.run",
    "compare": "histfl.experiments.compare",
    "train": "histfl.experiments.api",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line's --help should not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'histfl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
