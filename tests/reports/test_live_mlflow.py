"""`--mlflow` against a real local MLflow store."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL

from histfl.runs.records import scalars

# MLflow's own use of SQLAlchemy, sqlite and others is not ours to mend.
pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("alembic", reason="the extra mlflow is not installed")
    monkeypatch.chdir(tmp_path)  # artifacts of a sqlite store go below the current folder
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def runs_in(store: str) -> tuple[Any, list[Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("histfl")
    return client, list(client.search_runs([experiment.experiment_id]))


def test_mlflow_has_every_number_of_the_records_and_the_summary(
    tmp_path: Path, histfl_command: Callable[..., Any], store: str
) -> None:
    out = tmp_path / "run"
    command = ("run", *SMALL, "--out", out, "--mlflow-uri", store)
    assert histfl_command(*command, "--set", "training.rounds=2").code == 0
    assert histfl_command(*command, "--resume").code == 0
    client, (run,) = runs_in(store)  # the resumed run goes on in the same one
    assert run.info.status == "FINISHED"
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    for tag in ("accuracy", "megabytes_per_client", "latency/uplink_seconds", "submodel_parameters/cell_0"):
        history = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, tag)]
        assert history == [(record["round"], scalars(record)[tag]) for record in records]
    summary = scalars(json.loads((out / "summary.json").read_text()), "summary/")
    assert {tag: run.data.metrics[tag] for tag in summary} == summary
    assert run.data.params["method.name"] == "hist"
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"summary.json", "config.toml"}


def test_a_store_that_cannot_be_used_ends_in_one_line(
    tmp_path: Path, histfl_command: Callable[..., Any], store: str
) -> None:
    answer = histfl_command("run", *SMALL, "--out", tmp_path / "run", "--mlflow-uri", "nonsense://x")
    assert (answer.code, answer.out) == (2, "")
    assert "nonsense://x cannot be used" in answer.err
    assert not (tmp_path / "run").exists()


def test_a_store_that_fails_in_between_is_told_the_rest_by_resume(
    tmp_path: Path, histfl_command: Callable[..., Any], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    log_batch = MlflowClient.log_batch

    def until_round_two(self: Any, run_id: str, metrics: Any = (), **others: Any) -> None:
        if any(metric.step == 2 for metric in metrics):
            raise MlflowException("the disk is full")
        log_batch(self, run_id, metrics=metrics, **others)

    command = ("run", *SMALL, "--out", tmp_path / "run", "--mlflow-uri", store, "--json")
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_batch", until_round_two)
        first = histfl_command(*command)
    assert (first.code, first.json["rounds"]) == (0, 3)
    assert first.err.count("the disk is full") == 1
    assert runs_in(store)[1][0].info.status == "KILLED"
    assert histfl_command(*command, "--resume").code == 0
    client, (run,) = runs_in(store)
    assert [m.step for m in client.get_metric_history(run.info.run_id, "accuracy")] == [1, 2, 3]
    assert run.info.status == "FINISHED"


def test_without_the_extra_the_install_line_is_given(
    tmp_path: Path, histfl_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mlflow", "mlflow.entities"):
        monkeypatch.setitem(sys.modules, name, None)
    answer = histfl_command("run", *SMALL, "--out", tmp_path / "run", "--mlflow")
    assert answer.code == 2
    assert "pip install 'histfl[mlflow]'" in answer.err
