"""Engines by name; a new one is a class and a line in `ENGINES`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from histfl.engines.memory import check_budget
from histfl.engines.on_ray import RayEngine
from histfl.engines.reference import ReferenceEngine
from histfl.engines.vectorised import VectorisedEngine
from histfl.errors import UsageError, did_you_mean, shown
from histfl.training import Engine, Task

_log = logging.getLogger(__name__)
# Each is made with the gigabytes that clients in training may take (None: what is free); more settings have defaults.
ENGINES: dict[str, Callable[[float | None], Engine]] = {
    "reference": ReferenceEngine,
    "vectorised": VectorisedEngine,
    "ray": RayEngine,
}
FASTEST = "vectorised"


def check_engine(name: str | Engine, memory_gb: float | None = None) -> None:
    """A UsageError where there is no such engine or budget of memory; an engine itself has its own."""
    check_budget(memory_gb)
    made = not isinstance(name, type)
    if made and callable(getattr(name, "run", None)) and callable(getattr(name, "close", None)):
        if memory_gb is not None:
            raise UsageError(f"memory_gb = {memory_gb:g}: give it to the engine itself, {shown(name)}")
        return
    *names, last = "auto", *ENGINES
    hint = f"use {', '.join(names)} or {last}"
    if not isinstance(name, str):
        raise UsageError(f"engine {shown(name)}: {hint}")
    if name != "auto" and name not in ENGINES:
        raise UsageError(f"engine {shown(name)}: {did_you_mean(name, ENGINES, hint)}")


def choose_engine(name: str | Engine, task: Task, memory_gb: float | None = None) -> Engine:
    """The given or named engine, within `memory_gb` (None: what is free); `auto` is the fast one. Where that has no
    fast trainer for the task, it is the reference engine, so that a run's summary names the one that did the work."""
    check_engine(name, memory_gb)
    engine = ENGINES[FASTEST if name == "auto" else name](memory_gb) if isinstance(name, str) else name
    if not isinstance(engine, VectorisedEngine | RayEngine) or engine.supports(task):
        return engine
    _log.warning(
        "the clients train one after another (engine reference, slow): no fast trainer fits the model. One that changes "
        "a buffer or anything else of itself, or draws random numbers, has none, but for dropout: give every place a dropout layer of its own"
    )
    return engine if isinstance(engine, RayEngine) else ReferenceEngine()
