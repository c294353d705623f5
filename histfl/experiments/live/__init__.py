"""Following a run while it goes on, where people already look."""

from histfl.experiments.live.follower import Follower, telling
from histfl.experiments.live.mlflow import MLflow
from histfl.experiments.live.page import LivePage
from histfl.experiments.live.tensorboard import TensorBoard

__all__ = ["Follower", "LivePage", "MLflow", "TensorBoard", "telling"]
