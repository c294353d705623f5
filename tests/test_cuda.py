"""What runs on a GPU must agree with the CPU; skipped visibly where there is none."""

from pathlib import Path

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


def run(device: str, uplink: object, **more: object) -> histfl.Run:
    return histfl.train(
        make_model(),
        make_data(96),
        make_data(30),
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
