"""How cell jobs are executed; a new engine is a class with `name`, `run` and `close`, and a line in `ENGINES`."""

from histfl.engines.choose import ENGINES, choose_engine
from histfl.engines.cluster import Cluster
from histfl.engines.on_ray import RayEngine
from histfl.engines.reference import ReferenceEngine
from histfl.engines.vectorised import VectorisedEngine

__all__ = ["ENGINES", "Cluster", "RayEngine", "ReferenceEngine", "VectorisedEngine", "choose_engine"]
