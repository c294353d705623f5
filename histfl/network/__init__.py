"""Who takes part: cells, their clients and the clients' resources."""

from histfl.network.network import Cell, Network, spread_evenly

__all__ = ["Cell", "Network", "spread_evenly"]
