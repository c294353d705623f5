"""Engines by name."""

from __future__ import annotations

import logging

from histfl.engines.memory import check_budget
from histfl.engines.reference import ReferenceEngine
from histfl.engines.vectorised import VectorisedEngine
from histfl.errors import UsageError, did_you_mean, shown
from histfl.training import Engine, Task

_log = logging.getLogger(__name__)
ENGINES: dict[str, type[Engine]] = {"reference": ReferenceEngine, "vectorised": VectorisedEngine}


def check_engine(name: str, memory_gb: float | None = None) -> None:
    """A UsageError where there is no such engine or budget of memory."""
    check_budget(memory_gb)
    if not isinstance(name, str):
        raise UsageError(f"engine {shown(name)}: use auto, {' or '.join(ENGINES)}")
    if name != "auto" and name not in ENGINES:
        hint = did_you_mean(name, ENGINES, f"use auto, {' or '.join(ENGINES)}")
        raise UsageError(f"engine {shown(name)}: {hint}")


def choose_engine(name: str, task: Task, memory_gb: float | None = None) -> Engine:
    """The named engine, within `memory_gb` (None: what is free); `auto` is the fast one. Where no fast way fits
    the task, it is the reference engine, so that a run's summary names the engine that did the work."""
    check_engine(name, memory_gb)
    if name == "reference":
        return ReferenceEngine()
    engine = VectorisedEngine(memory_gb)
    if engine.supports(task):
        return engine
    _log.warning(
        "the clients train one after another (engine reference, slow): no fast way fits the model. One that changes "
        "a buffer or draws random numbers has none, but for dropout: give every place a dropout layer of its own"
    )
    return ReferenceEngine()
