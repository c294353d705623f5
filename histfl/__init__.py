"""Federated learning over hierarchical wireless networks with independent submodels (HIST)."""
