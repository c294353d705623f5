"""A run's numbers come from its configuration: threads, folder, locale and hash seed are none of it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from commands import SMALL, Answer
from torch import nn

from histfl.data.dataset import TensorData
from histfl.runs.build import Ingredients, build, prepare
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.runs.loading import load_config
from histfl.runs.named import build_network
from histfl.training.evaluation import evaluate
from histfl.training.objectives import classification

SETTINGS = [setting for setting in SMALL if "=" in setting]
SAME = ("rounds.jsonl", "model.safetensors", "config.toml")


@pytest.fixture(autouse=True)
def threads_come_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def on_threads(make: Callable[[], object]) -> list[object]:
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(make())
    return found


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("reference", ["model.hidden=300", "training.rounds=1"]),
        ("vectorised", ["model.hidden=300", "training.rounds=1", "theory.every=1", "network.clients=4"]),
        ("vectorised", ["uplink.name=aircomp", "uplink.signal=simulated", "data.test_samples=7"]),
        ("reference", ["uplink.name=aircomp", "model.hidden=300", "training.rounds=1"]),
    ],
    ids=["reference", "theory", "simulated", "air"],
)
def test_the_number_of_threads_changes_no_bit(engine: str, settings: list[str]) -> None:
    def made() -> object:
        run = execute(prepare(load_config("quickstart", [*SETTINGS, *settings]), device="cpu", engine=engine))
        return run.records, {name: x.numpy().tobytes() for name, x in run.model.state_dict().items()}

    first, *others = on_threads(made)
    assert all(other == first for other in others)


def test_nor_do_batch_statistics_change() -> None:
    config = load_config("quickstart", [*SETTINGS, "training.rounds=1"])
    generator = torch.Generator().manual_seed(1)
    data = TensorData(
        torch.randn(2000, 40, generator=generator), torch.arange(2000) % 4, ("a", "b", "c", "d")
    )

    def made() -> object:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(40, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 4))
        ingredients = Ingredients(model, data, data, build_network(config))
        run = execute(build(Config.model_validate(config.model_dump()), ingredients, device="cpu"))
        return run.records, {name: x.numpy().tobytes() for name, x in run.model.state_dict().items()}

    first, *others = on_threads(made)
    assert all(other == first for other in others)


def test_nor_does_a_loss_that_adds_up_many_numbers() -> None:
    generator = torch.Generator().manual_seed(1)
    data = TensorData(
        torch.randn(1007, 30, generator=generator), torch.arange(1007) % 300, tuple(map(str, range(300)))
    )
    torch.manual_seed(1)
    model = nn.Linear(30, 300)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - nn.functional.one_hot(targets, 300)).square().mean()

    objective = dataclasses.replace(classification(), loss=loss)
    first, *others = on_threads(lambda: evaluate(model, data, objective))
    assert all(other == first for other in others)


def test_threads_folder_locale_and_hash_seed_change_no_file(
    histfl_command: Callable[..., Answer], tmp_path: Path
) -> None:
    options = ["--set", "theory.every=2", "--set", "network.clients=4"]
    assert histfl_command("run", *SMALL, *options, "--out", tmp_path / "here").code == 0
    command = [sys.executable, "-m", "histfl", "run", *SMALL, *options, "--out", "deep/er one"]
    environment = {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "7", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Tokyo"}
    subprocess.run(command, env=os.environ | environment, cwd=tmp_path, check=True, capture_output=True)
    for name in SAME:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "deep" / "er one" / name).read_bytes()
