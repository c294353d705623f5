"""An artefact whose runs take a second: embedded images, a small model, few clients."""

from __future__ import annotations

from typing import Any

from histfl.reports.plots import Plot
from histfl.reproduce.artefact import Artefact, Choice, Row, arm, learning_curve, panel
from histfl.reproduce.claims import versus
from histfl.reproduce.results import Results

SETTINGS: dict[str, Any] = {
    "model.name": "mlp",
    "model.hidden": 16,
    "data.name": "fashion-mnist-mini",
    "network.cells": 2,
    "network.clients": 4,
    "training.rounds": 4,
    "training.edge_rounds": 2,
    "training.local_steps": 3,
    "training.batch_size": 10,
    "training.learning_rate": 0.1,
    "training.targets": (0.3, 0.4),
}
METHODS = ("hist", "hfedavg")


def small_artefact(*, seeds: tuple[int, ...] = (1,), smaller: str = "", **settings: Any) -> Artefact:
    """The name and title of a real one; `settings` by section__key."""
    changed = {key.replace("__", "."): value for key, value in settings.items()}

    def rows(results: Results) -> list[Row]:
        ours, theirs = (
            {"0.3": results.of(method=method).to_target(0.3, "megabytes_per_client")} for method in METHODS
        )
        return [versus("MB to 30%", "lower", ours, theirs)]

    def panels(results: Results) -> list[Plot]:
        curves = [
            learning_curve(results.of(method=method), method, "round", colour=colour)
            for colour, method in enumerate(METHODS)
        ]
        return [panel("learning", "rounds", "accuracy", curves)]

    return Artefact(
        name="fig4",
        paper="HIST is cheaper.",
        choices=(Choice("a small model", "seconds, not minutes"),),
        arms=tuple(arm(SETTINGS | changed, method=method, seed=seed) for seed in seeds for method in METHODS),
        rows=rows,
        panels=panels,
        smaller=smaller,
    )
