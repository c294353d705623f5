"""How cell jobs are executed; a new engine is a class with `name` and `run`, and a line in `ENGINES`."""

from histfl.engines.reference import ReferenceEngine
from histfl.training import Engine

ENGINES: dict[str, type[Engine]] = {"reference": ReferenceEngine}

__all__ = ["ENGINES", "ReferenceEngine"]
