"""Models, data and folders that do not fit each other: one line, before anything long begins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import SMALL, Answer
from small_training import INPUTS, NETWORK, TARGETS, mlp, train
from torch import nn
from torch.utils.data import Dataset

import histfl
from histfl.errors import CheckpointError, UsageError
from histfl.training import mean_of_clients


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.layer(left + right)


class Answers(nn.Module):
    """Returns what `wrap` makes of its scores."""

    def __init__(self, wrap: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.layer, self.wrap = mlp(), wrap

    def forward(self, inputs: torch.Tensor) -> object:
        return self.wrap(self.layer(inputs))


class Broken(Dataset[tuple[torch.Tensor, int]]):
    """Its fourth item cannot be read."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 3:
            raise OSError("unreadable")
        return INPUTS[index], int(TARGETS[index])


class Moving(nn.Module):
    """Subtracts a running mean, a buffer that its forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(inputs.mean(dim=0), alpha=0.1)
        return self.layers(inputs - self.mean)


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "more labels than scores": (
        {"model": nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))},
        "class",
    ),
    "other test samples": ({"test": (torch.zeros(9, 7), torch.arange(9) % 3)}, "must be alike"),
    "numbers that are none": (
        {"data": (INPUTS.index_fill(0, torch.tensor([7]), float("nan")), TARGETS)},
        "sample 7 holds NaN",
    ),
    "two inputs": ({"model": TwoInputs(), "method": "hfedavg"}, "fails on"),
    "a dict of scores": ({"model": Answers(lambda x: {"scores": x})}, "returns dict"),
    "one column": ({"model": Answers(lambda x: x[:, :1])}, "scores of shape"),
    "no axis of classes": ({"model": Answers(lambda x: x[:, 0])}, "scores of shape"),
    "nothing to train": ({"model": nn.Flatten()}, "no trainable parameter"),
    "lazy layers": ({"model": nn.LazyLinear(3)}, "lazy"),
    "a loss a sample": ({"loss": nn.CrossEntropyLoss(reduction="none")}, "one number"),
    "a loss with an axis": (
        {"loss": lambda scores, targets: nn.functional.cross_entropy(scores, targets).unsqueeze(0)},
        r"shape \(1,\); it must be one number",
    ),
    "a loss of detached scores": (
        {"loss": lambda scores, targets: nn.functional.cross_entropy(scores.detach(), targets)},
        "no gradient",
    ),
    "labels numbered from 1": ({"data": (INPUTS, TARGETS + 1)}, "labels 1 to 3.*number the classes from 0"),
    "a data set with a broken item": ({"data": Broken()}, r"Broken\[3\] fails: OSError: unreadable"),
    "no module": ({"model": 5}, "torch.nn.Module"),
    "no network": ({"network": None}, "histfl.Network"),
    "an unknown keyword": ({"name": "x"}, "no setting 'name'"),
    "one sample a batch under BatchNorm": (
        {"model": nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), "batch_size": 1},
        "fails on 1 training samples",
    ),
}


@pytest.mark.parametrize(("settings", "said"), MISFITS.values(), ids=MISFITS)
def test_a_misfit_is_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        train(**settings)
    assert "\n" not in str(raised.value)


def test_a_last_batch_of_one_does_not_break_batchnorm() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    data = (INPUTS.repeat(13, 1)[:501], TARGETS.repeat(13)[:501])
    assert train(model, data).accuracy.shape == (1,)


@pytest.mark.parametrize("method", ["hist", "hfedavg"])
def test_what_a_forward_pass_leaves_in_a_buffer_ends_with_a_clients_steps(
    tmp_path: Path, method: str
) -> None:
    settings = {"method": method, "out": tmp_path / "run", "learning_rate": 0.5}
    whole = train(Moving(), rounds=4, **(settings | {"out": None}))
    train(Moving(), rounds=2, **settings)
    resumed = train(Moving(), rounds=4, resume=True, **settings)
    for mine, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert not whole.model.get_buffer("mean").any()


def test_inputs_may_be_a_networks_outputs() -> None:
    features = nn.Linear(8, 8)(INPUTS)
    plain, traced = (train(data=(inputs, TARGETS)) for inputs in (features.detach(), features))
    assert plain.records[0]["accuracy"] == traced.records[0]["accuracy"]


def test_numbers_of_numpy_are_numbers() -> None:
    assert len(train(rounds=np.int64(2), learning_rate=np.float32(0.5)).records) == 2


def test_theory_can_be_asked_for_from_python() -> None:
    assert "theory" in train(theory_every=1).records[0]


def test_half_precision_models_are_averaged_in_full_precision() -> None:
    values = torch.linspace(1.0, 1.5, 300).to(torch.bfloat16)
    mean = mean_of_clients({"x": chunk.unsqueeze(1)} for chunk in values.split(7))["x"]
    assert mean.dtype == torch.bfloat16
    assert mean.item() == pytest.approx(values.double().mean().item(), rel=0.005)


def test_bits_decide_megabytes_and_seconds_alike() -> None:
    half, full = (train(uplink={"name": "fdma", "bits_per_parameter": bits}) for bits in (16.0, 32.0))
    assert half.megabytes_per_client[-1] == pytest.approx(full.megabytes_per_client[-1] / 2)
    assert half.records[-1]["latency"]["uplink_seconds"] == pytest.approx(
        full.records[-1]["latency"]["uplink_seconds"] / 2
    )
    double = train(mlp().double())
    assert double.megabytes_per_client[-1] == pytest.approx(2 * full.megabytes_per_client[-1])


@pytest.mark.parametrize(
    "other",
    [
        {"network": histfl.Network.uniform(cells=2, clients_per_cell=2, cpu_hz=1e6)},
        {"data": (INPUTS + 1, TARGETS)},
        {"model": nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))},
    ],
    ids=["network", "data", "first model"],
)
def test_a_run_is_not_resumed_on_other_ingredients(tmp_path: Path, other: dict[str, Any]) -> None:
    train(out=tmp_path)
    with pytest.raises(CheckpointError, match="another network, other data or another first model"):
        train(out=tmp_path, resume=True, rounds=2, **other)


def test_a_run_that_goes_on_is_not_said_to_be_finished(tmp_path: Path) -> None:
    train(out=tmp_path)
    seen = []
    train(
        out=tmp_path,
        resume=True,
        rounds=2,
        on_round=lambda _: seen.append((tmp_path / "summary.json").exists()),
    )
    assert seen == [False]
    assert (tmp_path / "summary.json").exists()
    assert (tmp_path / "report.html").exists()
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(UsageError, match="2 rounds already"):
        train(out=tmp_path, resume=True, rounds=1)
    assert (tmp_path / "config.toml").read_bytes() == before


def test_a_network_file_decides_cells_and_clients(
    histfl_command: Callable[..., Answer], tmp_path: Path
) -> None:
    path = tmp_path / "network.toml"
    path.write_text("[[cells]]\ncount = 3\nclients = 2\n")
    settings = [*SMALL[:3], *SMALL[5:], "--set", f"network.profile='{path}'", "--set", "training.rounds=1"]
    unset = tmp_path / "config.toml"
    unset.write_text(
        f"[model]\nhidden = 16\n[data]\nname = 'fashion-mnist-mini'\n[network]\nprofile = '{path}'\n"
        "[training]\nrounds = 1\nedge_rounds = 1\nlocal_steps = 1\n"
    )
    answer = histfl_command("run", unset, "--device", "cpu", "--out", tmp_path / "run", "--json")
    assert (answer.json["cells"], answer.json["clients"]) == (3, 6)
    assert "cells = 3" in (tmp_path / "run" / "config.toml").read_text()
    again = histfl_command(
        "run", tmp_path / "run" / "config.toml", "--device", "cpu", "--out", tmp_path / "two", "--json"
    )
    assert again.json["final_accuracy"] == answer.json["final_accuracy"]
    preset = histfl_command("run", *settings, "--out", tmp_path / "preset", "--json")
    assert (preset.json["cells"], preset.json["clients"]) == (3, 6)  # not the preset's
    regrouped = histfl_command(
        "run", *settings, "--set", "network.cells=2", "--out", tmp_path / "two cells", "--json"
    )
    assert (regrouped.json["cells"], regrouped.json["clients"]) == (2, 6)
    refused = histfl_command("run", *settings, "--set", "network.clients=7", "--out", tmp_path / "three")
    assert refused.code == 2
    assert "has 6" in refused.err


def test_another_model_does_not_inherit_the_presets_options(
    histfl_command: Callable[..., Answer], tmp_path: Path
) -> None:
    options = [*SMALL[3:], "--set", "training.rounds=1"]
    answer = histfl_command(
        "run", "quickstart", "--set", "model.name=lenet5", *options, "--out", tmp_path / "run", "--json"
    )
    assert answer.code == 0, answer.err
    assert answer.json["model"] == "lenet5"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"on_round": 3}, r"on_round=3\): give a function"),
        ({"uplink": 3}, r"uplink=3\) has no method draw; give a name"),
        ({"resume": True}, "without out: name the folder"),
        ({"participants": 3}, "participants = 3, but the largest cell has 2 clients"),
    ],
)
def test_a_misuse_of_train_is_said_before_it_begins(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        train(**settings)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"cells": 2.5, "clients_per_cell": 3}, r"cells = 2\.5; it must be a whole number"),
        (
            {"cells": 2, "clients_per_cell": -3},
            "clients_per_cell = -3; it must be a whole number, at least 1",
        ),
        ({"cells": 2, "clients": 4, "snr_db": 1e9}, r"snr_db = 1000000000\.0; it must be from -300 to 300"),
    ],
)
def test_a_network_of_no_sense_is_said(numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        histfl.Network.uniform(**numbers)


def test_a_torch_device_is_taken() -> None:
    run = histfl.train(
        mlp(),
        (INPUTS, TARGETS),
        (INPUTS, TARGETS),
        network=NETWORK,
        rounds=1,
        local_steps=1,
        batch_size=5,
        split="iid",
        device=torch.device("cpu"),
    )
    assert run.summary["device"] == "cpu"


def ids() -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    return ((torch.arange(320).reshape(40, 8), TARGETS),) * 2


def test_token_ids_are_not_for_an_mlp(
    histfl_command: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    answer = histfl_command(
        "run",
        *SMALL,
        "--set",
        "data.name=test_misfits:ids",
        "--set",
        "data.split=iid",
        "--out",
        tmp_path / "run",
    )
    assert answer.code == 2
    assert "model 'mlp' takes numbers, and the data 'test_misfits:ids' are token ids" in answer.err


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.jit.script])
@pytest.mark.parametrize("method", ["hist", "hfedavg"])
@pytest.mark.filterwarnings("ignore")
def test_modules_with_tensors_that_cannot_be_exchanged_are_refused(
    method: str, wrap: Callable[[nn.Module], nn.Module]
) -> None:
    with pytest.raises(UsageError, match="give the plain module"):
        train(wrap(mlp()), method=method)


def test_scores_have_two_axes() -> None:
    model = nn.Sequential(nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    with pytest.raises(UsageError, match=r"scores of shape \(5, 3, 2, 4\)"):
        train(model, loss=lambda outputs, targets: nn.functional.cross_entropy(outputs.mean((2, 3)), targets))


def test_a_run_is_not_resumed_with_other_buffers(tmp_path: Path) -> None:
    def scaled(by: float) -> nn.Module:
        model = mlp()
        model[1].register_buffer("scale", torch.tensor(by))
        return model

    train(scaled(1.0), out=tmp_path)
    with pytest.raises(CheckpointError, match="another first model"):
        train(scaled(3.0), out=tmp_path, rounds=2, resume=True)
    assert len(train(scaled(1.0), out=tmp_path, rounds=2, resume=True).records) == 2
