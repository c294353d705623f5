"""HIST Sec. II-C: client steps, edge aggregation, cloud merge; `hist` is Algorithm 1."""

from histfl.partition import State
from histfl.training.hist import Hist, RoundOutcome, hist
from histfl.training.jobs import CellJob, CellResult, Engine, RoundCost, Task, Uplink, mean_of_clients
from histfl.training.local import LocalTraining, client_steps
from histfl.training.participation import CellSchedule, Participation

__all__ = [
    "CellJob",
    "CellResult",
    "CellSchedule",
    "Engine",
    "Hist",
    "LocalTraining",
    "Participation",
    "RoundCost",
    "RoundOutcome",
    "State",
    "Task",
    "Uplink",
    "client_steps",
    "hist",
    "mean_of_clients",
]
