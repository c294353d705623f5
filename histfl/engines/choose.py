"""Engines by name."""

from __future__ import annotations

import difflib

from histfl.engines.reference import ReferenceEngine
from histfl.engines.vectorised import VectorisedEngine
from histfl.errors import UsageError
from histfl.training import Engine, Task

ENGINES: dict[str, type[Engine]] = {"reference": ReferenceEngine, "vectorised": VectorisedEngine}


def choose_engine(name: str, task: Task, memory_gb: float | None = None) -> Engine:
    """The named engine, within `memory_gb` (None: what is free); `auto` is the fast one. Where no fast way fits the task, it is the reference engine,
    so that a run's summary names the engine that did the work."""
    if name != "auto" and name not in ENGINES:
        near = difflib.get_close_matches(name, ENGINES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use auto, {' or '.join(ENGINES)}"
        raise UsageError(f"--engine {name!r}: {hint}")
    if name == "reference":
        return ReferenceEngine()
    engine = VectorisedEngine(memory_gb)
    return engine if engine.supports(task) else ReferenceEngine()
