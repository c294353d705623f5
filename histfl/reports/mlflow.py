"""A run in MLflow: its settings as parameters, every number of its records as metrics, its files as artifacts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from histfl.errors import UsageError, in_one_line, missing_extra
from histfl.runs.config import Config
from histfl.runs.records import Record, scalars
from histfl.runs.run import Run

EXPERIMENT = "histfl"
LOCAL_STORE = "sqlite:///mlflow.db"  # MLflow's own default: `mlflow ui` in the same folder shows it
BATCH = 900  # MLflow takes at most a thousand metrics at once
LONGEST = 6000  # characters of a parameter
FOLDER_TAG = "histfl.folder"
FILES = ("config.toml", "rounds.jsonl", "summary.json")


class MLflow:
    """Logs to a run in the store at `uri`; with `resume`, to the one that `folder` was logged to before."""

    def __init__(
        self, name: str, config: Config, folder: Path, uri: str | None = None, *, resume: bool = False
    ) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a run tells nobody but the given store
        try:
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise missing_extra("--mlflow", "mlflow", error) from None
        self._name, self._config, self._folder, self._resume = name, config, folder, resume
        self._metric, self._param = Metric, Param
        store = uri or os.environ.get("MLFLOW_TRACKING_URI") or LOCAL_STORE
        try:
            self._client = MlflowClient(tracking_uri=store)
            known = self._client.get_experiment_by_name(EXPERIMENT)
            self._experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        except (MlflowException, OSError) as error:
            raise UsageError(
                f"--mlflow: the store {store} cannot be used ({in_one_line(error)}); start it, or give --mlflow-uri"
            ) from None

    @cached_property
    def _run(self) -> str:
        """Begun by the first round: until then the folder may still turn out to be another run's."""
        place = str(self._folder.resolve())
        if self._resume:
            quoted = place.replace("'", "\\'")
            found = self._client.search_runs(
                [self._experiment], f"tags.`{FOLDER_TAG}` = '{quoted}'", max_results=1
            )
            if found:
                return str(found[0].info.run_id)
        run = self._client.create_run(
            self._experiment, tags={FOLDER_TAG: place}, run_name=self._name
        ).info.run_id
        settings = [self._param(key, value[:LONGEST]) for key, value in _settings(self._config)]
        self._client.log_batch(run, params=settings)
        return str(run)

    @cached_property
    def _logged(self) -> int:
        """The rounds that are in the store already."""
        history = self._client.get_metric_history(self._run, "round")
        return max((metric.step for metric in history), default=0)

    def on_round(self, record: Record) -> None:
        if record["round"] > self._logged:
            self._log(scalars(record), record["round"])

    def on_end(self, run: Run) -> None:
        self._log(scalars(run.summary, "summary/"), run.records[-1]["round"])
        for name in FILES:
            if (self._folder / name).exists():
                self._client.log_artifact(self._run, str(self._folder / name))

    def close(self, *, finished: bool) -> None:
        if "_run" in vars(self):
            self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = time.time_ns() // 1_000_000
        metrics = [self._metric(key, value, now, step) for key, value in values.items()]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + BATCH])


def _settings(config: Config) -> list[tuple[str, Any]]:
    sections = config.model_dump(mode="json", exclude_none=True)
    return [
        (f"{section}.{key}", value if isinstance(value, str) else json.dumps(value))
        for section, keys in sections.items()
        for key, value in keys.items()
    ]
