"""How cell jobs are executed; a new engine is a class with `name`, `run` and `close`, and a line in `ENGINES`."""

from histfl.engines.choose import ENGINES, choose_engine
from histfl.engines.reference import ReferenceEngine
from histfl.engines.vectorised import VectorisedEngine

__all__ = ["ENGINES", "ReferenceEngine", "VectorisedEngine", "choose_engine"]
