"""Following a run while it goes on, where people already look."""

from histfl.experiments.live.page import LivePage

__all__ = ["LivePage"]
