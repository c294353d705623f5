"""Following a run while it goes on, where people already look."""

from histfl.reports.live.follower import Follower, telling
from histfl.reports.live.mlflow import MLflow
from histfl.reports.live.page import LivePage
from histfl.reports.live.tensorboard import TensorBoard

__all__ = ["Follower", "LivePage", "MLflow", "TensorBoard", "telling"]
