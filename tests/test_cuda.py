"""What runs on a GPU must agree with the CPU; skipped visibly where there is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import histfl
from histfl.data import TensorData
from histfl.network import Network
from histfl.seeds import Seeds, random_bits
from histfl.wireless.beamforming import max_min
from histfl.wireless.channels import Rayleigh

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 16),
        nn.ReLU(),
        nn.Linear(16, 3),
    ).double()


def make_data(samples: int) -> TensorData:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 1, 8, 8, dtype=torch.float64, generator=generator)
    return TensorData(inputs, torch.arange(samples) % 3, ("a", "b", "c"))


def run(device: str, uplink: object, model: nn.Module | None = None, **more: object) -> histfl.Run:
    model = make_model() if model is None else model
    dtype = next(model.parameters()).dtype
    return histfl.train(
        model,
        make_data(96).to("cpu", dtype),
        make_data(30).to("cpu", dtype),
        network=Network.uniform(cells=3, clients=7),
        uplink=uplink,
        device=device,
        split="iid",
        local_steps=3,
        batch_size=8,
        edge_rounds=2,
        learning_rate=0.05,
        **{"rounds": 3, **more},
    )


def test_random_bits_are_the_same() -> None:
    points = torch.arange(1000)
    assert torch.equal(random_bits(5, points, points), random_bits(5, points.cuda(), points.cuda()).cpu())


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize("method", ["hist", "hfedavg", "ist", "overlap"])
def test_training_agrees_with_the_cpu(method: str, engine: str) -> None:
    cpu = run("cpu", "fdma", method=method, momentum=0.5, engine="reference")
    cuda = run("cuda", "fdma", method=method, momentum=0.5, engine=engine)
    for (name, left), right in zip(cpu.model.named_parameters(), cuda.model.parameters(), strict=True):
        torch.testing.assert_close(left, right.cpu(), rtol=1e-8, atol=1e-9, msg=name)
    assert cpu.records[-1]["latency"] == cuda.records[-1]["latency"]


def make_dense_model() -> nn.Module:
    torch.manual_seed(4)
    layers = nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 9), nn.Tanh(), nn.Linear(9, 3)
    return nn.Sequential(*layers).double()


def make_model_with_dropout() -> nn.Module:
    torch.manual_seed(5)
    layers = (
        nn.Conv2d(1, 8, 3),
        nn.Dropout2d(0.2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 16),
        nn.Dropout(0.4),
    )
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(16, 3)).double()


@pytest.mark.parametrize("model", [make_model, make_dense_model, make_model_with_dropout])
@pytest.mark.parametrize(
    "settings",
    [
        {"sizes": "optimised", "weight_decay": 0.1},
        {"participants": 2, "dropout": 0.3, "rounds": 6},
        {"momentum": 0.5, "clip_norm": 0.5},
        {"sizes": (0.5, 0.3, 0.2)},
        {"active_cells": 2, "participants": 2, "rounds": 6},
        {"augment": "crop-flip"},
        {"augment": "crop-flip", "participants": 2, "dropout": 0.3},
    ],
    ids=[
        "optimised sizes",
        "participation",
        "momentum",
        "uneven sizes",
        "sampled cells",
        "augmentation",
        "augmented participants",
    ],
)
def test_recorded_steps_agree_with_the_cpu(model: Callable[[], nn.Module], settings: dict[str, Any]) -> None:
    runs = {}
    for device, engine in (("cpu", "reference"), ("cuda", "vectorised")):
        runs[device] = run(device, "fdma", model=model(), engine=engine, **settings)
        assert runs[device].summary["engine"] == engine
    parameters = (run.model.named_parameters() for run in runs.values())
    for (name, left), (_, right) in zip(*parameters, strict=True):
        torch.testing.assert_close(left, right.cpu(), rtol=1e-8, atol=1e-9, msg=name)


def make_wide_model() -> nn.Module:
    """Tensor cores take part in products of multiples of eight."""
    torch.manual_seed(6)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 3))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_fast_products_train_about_as_well(precision: str) -> None:
    exact, fast = (
        run("cuda", "fdma", model=make_wide_model(), method="hfedavg", precision=name, rounds=6)
        for name in ("float32", precision)
    )
    for left, right in zip(exact.model.parameters(), fast.model.parameters(), strict=True):
        assert (left - right).norm() < 0.05 * left.norm()
    pairs = zip(exact.model.parameters(), fast.model.parameters(), strict=True)
    assert any(not torch.equal(left, right) for left, right in pairs)


def test_a_full_memory_trains_fewer_clients_at_once() -> None:
    """Four hundred clients of a model of 48 MB do not fit into six gigabytes at once."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 1_000_000), nn.Linear(1_000_000, 3))
    data = make_data(800).to("cpu", torch.float32)
    settings = {"split": "iid", "local_steps": 1, "batch_size": 2, "edge_rounds": 1, "rounds": 1}
    network = Network.uniform(cells=1, clients=400)
    torch.cuda.reset_peak_memory_stats()
    small = histfl.train(
        model, data, data, network=network, method="hfedavg", device="cuda", memory_gb=6.0, **settings
    )
    assert torch.cuda.max_memory_allocated() < 6e9
    large = histfl.train(model, data, data, network=network, method="hfedavg", device="cuda", **settings)
    for left, right in zip(small.model.parameters(), large.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("signal", ["equivalent", "simulated"])
def test_over_the_air_noise_has_the_same_size(signal: str) -> None:
    uplink = {"name": "aircomp", "signal": signal}
    cpu, cuda = (run(device, uplink) for device in ("cpu", "cuda"))
    ratio = cpu.records[0]["edge_error"] / cuda.records[0]["edge_error"]
    assert 0.9 < ratio < 1.1


def test_beams_agree_with_the_cpu() -> None:
    channels = Rayleigh().draw((50, 15), 10, Seeds(1).torch("test"))
    _, cpu = max_min(channels)
    _, cuda = max_min(channels.cuda())
    torch.testing.assert_close(cpu, cuda.cpu(), rtol=0.02, atol=0)
    assert abs(cpu.mean() - cuda.cpu().mean()) < 2e-3 * cpu.mean()


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    run("cuda", "aircomp", out=tmp_path / "whole", rounds=4)
    run("cuda", "aircomp", out=tmp_path / "parts", rounds=2)
    run("cuda", "aircomp", out=tmp_path / "parts", rounds=4, resume=True)
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
