"""The paper's data, where they are ($HISTFL_DATA)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Answer

pytestmark = pytest.mark.skipif("HISTFL_DATA" not in os.environ, reason="HISTFL_DATA names no data directory")


@pytest.mark.parametrize("method", ["hist", "hfedavg"])
def test_the_mlp_learns_fashion_mnist(
    histfl_command: Callable[..., Answer], tmp_path: Path, method: str
) -> None:
    options = ["--set", f"method.name={method}", "--set", "training.rounds=3", "--device", "cpu"]
    answer = histfl_command("run", "mlp", *options, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    summary = answer.json
    assert summary["best_accuracy"] > (0.6 if method == "hfedavg" else 0.45)
    size = 238_510 if method == "hfedavg" else 59_635
    assert summary["megabytes_per_client"] == pytest.approx(3 * 5 * size * 4 / 2**20, rel=1e-3)


def test_resnet18_takes_a_step_on_cifar10(histfl_command: Callable[..., Answer], tmp_path: Path) -> None:
    small = ["rounds=1", "edge_rounds=1", "local_steps=1", "batch_size=4"]
    options = [flag for setting in small for flag in ("--set", f"training.{setting}")]
    options += ["--set", "network.clients=4", "--set", "model.width=8", "--device", "cpu"]
    answer = histfl_command("run", "resnet18", *options, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    assert len(answer.json["cut"]) == 8
    assert max(answer.json["submodel_parameters"]) < 0.3 * answer.json["parameters"]


def test_figure_4_holds_on_fashion_mnist(histfl_command: Callable[..., Answer], tmp_path: Path) -> None:
    answer = histfl_command("reproduce", "fig4", "--quick", "--device", "cpu", "--out", tmp_path, "--json")
    assert answer.code == 0, answer.err
    found = answer.json["artefacts"]["fig4"]
    assert found["smaller"].startswith("Fashion-MNIST")
    verdicts = {row["what"]: row["holds"] for row in found["rows"]}
    assert [holds for what, holds in verdicts.items() if "HIST against HFedAvg" in what] == ["yes", "yes"]
    assert set(verdicts.values()) <= {"yes", "no"}
