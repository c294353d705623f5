"""Channels: their statistics, shapes and refusals."""

from __future__ import annotations

import math

import pytest
import torch

from histfl.errors import UsageError
from histfl.wireless import PathLoss, Rayleigh, Rician
from histfl.wireless.channels import channel_gains, check_channels

CHANNELS = [Rayleigh(), Rician(k_factor_db=3.0), PathLoss()]


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("channel", CHANNELS, ids=lambda channel: type(channel).__name__)
def test_every_channel_keeps_the_contract(channel: Rayleigh | Rician | PathLoss) -> None:
    assert channel.draw(5, 3, generator()).shape == (5, 3)
    drawn = channel.draw((7, 2, 5), 3, generator())
    assert drawn.shape == (7, 2, 5, 3)
    assert drawn.dtype == torch.complex128
    assert torch.equal(drawn, channel.draw((7, 2, 5), 3, generator()))
    assert not torch.equal(drawn, channel.draw((7, 2, 5), 3, generator(2)))
    assert channel.draw(4, 1, generator(), torch.complex64).dtype == torch.complex64
    check_channels(drawn)


@pytest.mark.parametrize("channel", [Rayleigh(), Rician(-5.0), Rician(0.0), Rician(12.0)], ids=str)
def test_mean_power_an_antenna_is_one(channel: Rayleigh | Rician) -> None:
    drawn = channel.draw(40_000, 4, generator())
    assert drawn.abs().square().mean().item() == pytest.approx(1.0, abs=0.01)
    assert drawn.mean().abs().item() < 0.01


def test_rayleigh_antennas_and_parts_are_independent_and_alike() -> None:
    drawn = Rayleigh().draw(100_000, 3, generator())
    covariance = drawn.mT @ drawn.conj() / len(drawn)
    assert torch.allclose(covariance, torch.eye(3, dtype=torch.complex128), atol=0.02)
    assert drawn.real.var().item() == pytest.approx(0.5, rel=0.02)
    assert (drawn**2).mean().abs().item() < 0.01  # circular: no preferred phase


def test_rician_spread_of_power_falls_with_the_line_of_sight() -> None:
    """The variance of |h|^2 is (1 + 2K) / (1 + K)^2."""
    for k_factor_db in (-10.0, 0.0, 10.0):
        k_factor = 10 ** (k_factor_db / 10)
        power = Rician(k_factor_db).draw(200_000, 1, generator()).abs().square()
        assert power.var().item() == pytest.approx((1 + 2 * k_factor) / (1 + k_factor) ** 2, rel=0.05)


def test_rician_line_of_sight_is_a_plane_wave_over_the_array() -> None:
    drawn = Rician(80.0).draw(50, 6, generator())
    steps = drawn[:, 1:] / drawn[:, :-1]
    assert torch.allclose(steps, steps[:, :1].expand_as(steps), atol=1e-2)


def test_path_loss_is_one_at_the_reference_and_follows_the_exponent() -> None:
    loss = PathLoss(exponent=3.5, reference_m=50.0, shadowing_db=6.0)
    distances = torch.tensor([50.0, 500.0], dtype=torch.float64)
    gains = loss.gains(distances, torch.zeros(2, dtype=torch.float64))
    assert torch.allclose(gains, torch.tensor([1.0, 10**-3.5], dtype=torch.float64), rtol=1e-12)
    shadowed = loss.gains(distances, torch.ones(2, dtype=torch.float64))
    assert torch.allclose(shadowed / gains, torch.full((2,), 10**0.6, dtype=torch.float64), rtol=1e-12)


def test_path_loss_draws_follow_the_ring() -> None:
    """Without shadowing E gain = mean of (d/ref)^-2 over the ring = ref^2 2 ln(far/near)/(far^2 - near^2)."""
    loss = PathLoss(exponent=2.0, nearest_m=50.0, farthest_m=200.0, reference_m=100.0, shadowing_db=0.0)
    drawn = loss.draw(200_000, 2, generator())
    expected = 100.0**2 * 2 * math.log(4.0) / (200.0**2 - 50.0**2)
    assert drawn.abs().square().mean().item() == pytest.approx(expected, rel=0.02)


def test_gains_are_squared_norms() -> None:
    channels = torch.tensor([[3 + 4j, 0], [1j, 1]], dtype=torch.complex128)
    assert channel_gains(channels).tolist() == [25.0, 2.0]


def test_bad_parameters_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="antennas = 0"):
        Rayleigh().draw(3, 0, generator())
    with pytest.raises(UsageError, match="clients = 0"):
        Rayleigh().draw(0, 3, generator())
    with pytest.raises(UsageError, match=r"dtype = torch\.float64"):
        Rayleigh().draw(2, 3, generator(), torch.float64)
    with pytest.raises(UsageError, match="k_factor_db = nan"):
        Rician(float("nan"))
    with pytest.raises(UsageError, match="exponent = -1"):
        PathLoss(exponent=-1)
    with pytest.raises(UsageError, match="shadowing_db = -1"):
        PathLoss(shadowing_db=-1)
    with pytest.raises(UsageError, match="beyond farthest_m"):
        PathLoss(nearest_m=300.0)


def test_channels_that_are_no_channels_are_refused_where_they_enter() -> None:
    good = Rayleigh().draw((2, 3), 4, generator())
    bad = good.clone()
    bad[1, 2, 3] = complex("nan")
    with pytest.raises(UsageError, match=r"\(1, 2, 3\)"):
        check_channels(bad)
    with pytest.raises(UsageError, match="complex"):
        check_channels(good.real)
    with pytest.raises(UsageError, match="shape"):
        check_channels(good[..., :0])
    with pytest.raises(UsageError, match="shape"):
        check_channels(good[0, 0])
