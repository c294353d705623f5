"""Where else runs are followed: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from histfl.reports.live import Follower
from histfl.runs.config import Config


@dataclass(frozen=True)
class Trackers:
    """The ones that are asked for; each is one of the package's extras."""

    tensorboard: bool = False
    mlflow: bool = False
    mlflow_uri: str | None = None
    wandb: bool = False

    def __bool__(self) -> bool:
        return self.tensorboard or self.mlflow or self.mlflow_uri is not None or self.wandb

    def of(self, name: str, config: Config, folder: Path, *, resume: bool) -> list[Follower]:
        """A line to each of them for one run; a UsageError where its package or its store is not there."""
        chosen: list[Follower] = []
        if self.tensorboard:
            from histfl.reports.tensorboard import TensorBoard

            chosen.append(TensorBoard(folder / "tensorboard"))
        if self.mlflow or self.mlflow_uri:
            from histfl.reports.mlflow import MLflow

            chosen.append(MLflow(name, config, folder, self.mlflow_uri, resume=resume))
        if self.wandb:
            from histfl.reports.wandb import WandB

            chosen.append(WandB(name, config, folder))
        return chosen
