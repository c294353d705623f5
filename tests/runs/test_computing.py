"""The cycles of a local step: who has the paper's, who counts its own, and what a run says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Answer
from torch import nn

import histfl
from histfl.planning.request import PlanRequest
from histfl.reproduce.artefact import Scale
from histfl.reproduce.registry import ARTEFACTS
from histfl.runs.config import Config
from histfl.runs.loading import load_config, preset_names
from histfl.settings import checked

PAPERS = 1e6


def cycles(source: str, *settings: str) -> float | str:
    return load_config(source, settings).network.cycles_per_step


def test_auto_is_the_default_and_the_papers_network_and_presets_keep_its_number() -> None:
    assert Config().network.cycles_per_step == "auto"
    assert checked(Config, {"network": {"profile": "paper"}}, "here").network.cycles_per_step == PAPERS
    assert {cycles(preset) for preset in preset_names()} == {PAPERS}
    assert cycles("quickstart", "network.cycles_per_step=auto") == "auto"
    assert cycles("mlp", "network.cycles_per_step=5e6", "model.name=lenet5") == 5e6


def test_another_model_or_network_does_not_take_the_papers_number(tmp_path: Path) -> None:
    network = tmp_path / "network.toml"
    network.write_text("[[cells]]\nclients = 5\ncount = 2\n")
    assert cycles("mlp", "model.name=lenet5") == "auto"
    assert cycles("mlp", "model.name=mlp", "network.profile=uniform") == PAPERS
    assert cycles("mlp", "model.name=lenet5", "network.profile=paper") == PAPERS
    for preset in preset_names():
        assert cycles(preset, f"network.profile={network}") == "auto"
    assert cycles("quickstart", "network.profile=uniform") == "auto"


@pytest.mark.parametrize(
    ("source", "expected"), [("uniform", "auto"), ("paper", PAPERS), ("resnet18", PAPERS)]
)
def test_a_plan_of_a_network_counts_and_one_of_the_papers_does_not(
    source: str, expected: float | str
) -> None:
    assert PlanRequest(source, "resnet18").config().network.cycles_per_step == expected


def test_the_reproduction_keeps_the_papers_number() -> None:
    arms = [arm for make in ARTEFACTS.values() for quick in (False, True) for arm in make(Scale(quick)).arms]
    assert {arm.config.network.cycles_per_step for arm in arms} == {PAPERS}


def test_runs_from_before_are_what_they_were() -> None:
    """The checksums of configurations whose default was the paper's number."""
    before = checked(Config, {"network": {"cycles_per_step": PAPERS}}, "config.toml")
    assert before.fingerprint() == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # of {}
    assert len({each.fingerprint() for each in (before, Config(), load_config("mlp"))}) == 3
    kept = load_config("quickstart")
    again = checked(Config, kept.model_dump(mode="json", exclude_none=True), "config.toml")
    assert again.fingerprint() == kept.fingerprint()


def train(model: nn.Module, **settings: object) -> histfl.Run:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(60, 6, generator=generator), torch.arange(60) % 3
    network = histfl.Network.uniform(cells=2, clients_per_cell=2, cpu_hz=1e6)
    small = {"rounds": 1, "edge_rounds": 2, "local_steps": 3, "batch_size": 5, "split": "iid"}
    return histfl.train(model, data, data, network=network, uplink="ideal", **small, **settings)


def model(hidden: int = 8) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))


@pytest.mark.parametrize(("method", "hidden"), [("hfedavg", 8), ("hist", 4)])
def test_seconds_and_joules_by_hand(method: str, hidden: int) -> None:
    run = train(model(), method=method, operations_per_cycle=2.0)
    each = 2 * 5 * (2 * 6 * hidden + 3 * hidden * 3) / 2
    assert run.records[0]["latency"]["compute_seconds"] == pytest.approx(2 * 3 * each / 1e6)
    assert run.records[0]["latency"]["predicted_seconds"] == pytest.approx(2 * 3 * each / 1e6)
    assert run.records[0]["energy_joules"] == pytest.approx(4 * 2 * 3 * each * 1e-28 * 1e12)
    assert run.summary["operations_per_step"] == 2 * 5 * (2 * 6 * 8 + 3 * 8 * 3)
    assert run.summary["cycles_per_step"] == run.summary["operations_per_step"] / 2
    assert "a step of 5 samples has 1.68e+03 operations, 840 cycles at 2 a cycle" in run.summary["computing"]


def test_the_same_rounds_whatever_computing_takes() -> None:
    counted, papers = train(model()), train(model(), cycles_per_step=PAPERS)
    assert np.array_equal(counted.accuracy, papers.accuracy)
    assert papers.records[0]["latency"]["compute_seconds"] > counted.records[0]["latency"]["compute_seconds"]
    assert papers.summary["operations_per_step"] is None


class Scaling(nn.Module):
    """Nothing in it is a product that torch counts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * self.weight)[:, :3]


def test_a_model_that_cannot_be_counted_runs_with_the_papers_number_and_says_so() -> None:
    run = train(Scaling(), method="hfedavg")
    assert run.summary["cycles_per_step"] == PAPERS
    assert run.summary["computing"] == (
        "computing: the paper's 10^6 cycles a step, since torch counts no operation in a step of Scaling; give "
        "network.cycles_per_step a number"
    )


def test_run_and_report_say_where_computing_comes_from(
    histfl_command: Callable[..., Answer], tmp_path: Path
) -> None:
    small = (
        "--set",
        "training.rounds=1",
        "--set",
        "training.edge_rounds=1",
        "--set",
        "training.local_steps=1",
    )
    for settings, words in (
        ((), "the paper&#x27;s 10^6 cycles a step, whatever the model"),
        (
            ("--set", "network.cycles_per_step=auto"),
            "a step of 50 samples has 4.79e+07 operations, 1.2e+07 cycles",
        ),
    ):
        out = tmp_path / str(len(settings))
        answer = histfl_command("run", "quickstart", *small, *settings, "--out", out)
        assert answer.code == 0, answer.err
        assert f"computing: {words.replace('&#x27;', chr(39))}" in answer.err
        assert words in (out / "report.html").read_text("utf-8")
