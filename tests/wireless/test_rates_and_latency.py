"""Rates, seconds and joules: hand cases, the reference table, scaling laws and monotone physics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.errors import UsageError
from histfl.wireless import Rayleigh
from histfl.wireless.channels import channel_gains
from histfl.wireless.clock import compute_seconds, energy_joules, step_cycles
from histfl.wireless.rates import aircomp_seconds, fdma_rates, num_sub_channels, tdma_rates, uplink_seconds


def test_rates_by_hand() -> None:
    # SNR 3, gain 1: log2(4) = 2 bits a symbol; 8 Hz over 4 clients.
    assert fdma_rates(3.0, 1.0, 4, bandwidth_hz=8.0) == pytest.approx(4.0)
    assert fdma_rates(3.0, 1.0, 4, bandwidth_hz=8.0, double_count_clients=True) == pytest.approx(1.0)
    # The quarter band holds a quarter of the noise: SNR 15/4 * 4 = 15, 4 bits a symbol.
    assert fdma_rates(3.75, 1.0, 4, bandwidth_hz=8.0, noise_scales_with_band=True) == pytest.approx(8.0)
    assert tdma_rates(3.0, 1.0, 4, bandwidth_hz=8.0) == pytest.approx(4.0)
    assert uplink_seconds(100, 64.0, bits_per_parameter=16) == pytest.approx(25.0)
    assert uplink_seconds(100, 0.0) == math.inf


def test_aircomp_seconds_by_hand() -> None:
    # 10 MHz holds 666 whole sub-channels; 667 numbers need a second symbol of 1/14 ms.
    assert aircomp_seconds(666) == pytest.approx(1e-3 / 14)
    assert aircomp_seconds(667) == pytest.approx(2e-3 / 14)
    assert aircomp_seconds(0) == 0.0
    # 15 kHz is one sub-channel exactly, and three tenths are three tenths whatever the rounding.
    assert aircomp_seconds(5, bandwidth_hz=15e3) == pytest.approx(5e-3 / 14)
    assert aircomp_seconds(3, bandwidth_hz=0.3, sub_channel_hz=0.1) == pytest.approx(1e-3 / 14)
    assert aircomp_seconds(10**9, bandwidth_hz=1e30) == pytest.approx(
        1e-3 / 14
    )  # one symbol carries them all
    assert num_sub_channels(1e30) == np.int64(num_sub_channels(1e30))  # a number that arrays hold


def test_computing_by_hand() -> None:
    cycles = step_cycles([50, 100], full_parameters=100, local_steps=20)
    assert cycles.tolist() == [1e7, 2e7]
    assert compute_seconds(cycles, [1e9, 2e9]).tolist() == [0.01, 0.01]
    # 1e-28 * 1e7 * (1e9)^2 = 1 mJ; 0.1 W over half a second = 50 mJ.
    assert energy_joules(1e7, 1e9) == pytest.approx(1e-3)
    assert energy_joules(1e7, 1e9, transmit_power_w=0.1, transmit_seconds=0.5) == pytest.approx(0.051)


positive = st.floats(1e-3, 1e6)


@settings(deadline=None, max_examples=60)
@given(
    snr=positive, gain=positive, more=st.floats(1.0, 100.0), clients=st.integers(1, 50), scales=st.booleans()
)
def test_more_band_snr_or_cpu_is_never_slower(
    snr: float, gain: float, more: float, clients: int, scales: bool
) -> None:
    def fdma(snr: float, bandwidth_hz: float) -> float:
        rates = fdma_rates(snr, gain, clients, bandwidth_hz=bandwidth_hz, noise_scales_with_band=scales)
        return float(uplink_seconds(1000, rates))

    def tdma(snr: float, bandwidth_hz: float) -> float:
        return float(uplink_seconds(1000, tdma_rates(snr, gain, clients, bandwidth_hz=bandwidth_hz)))

    for uplink in (fdma, tdma):
        slow = uplink(snr, 1e6)
        assert uplink(snr * more, 1e6) <= slow * (1 + 1e-12)
        assert uplink(snr, 1e6 * more) <= slow * (1 + 1e-12)
    assert fdma(snr, 1e6) <= tdma(snr, 1e6) * (1 + 1e-12)
    assert aircomp_seconds(1000, bandwidth_hz=1e6 * more) <= aircomp_seconds(1000, bandwidth_hz=1e6)
    assert compute_seconds(1e7, 1e9 * more) <= compute_seconds(1e7, 1e9)


@settings(deadline=None, max_examples=30)
@given(draws=st.integers(1, 3), clients=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_batch_of_draws_equals_the_draws_one_by_one(draws: int, clients: int, seed: int) -> None:
    gains = channel_gains(Rayleigh().draw((draws, clients), 3, torch.Generator().manual_seed(seed)))
    snr = np.linspace(1.0, 10.0, clients)
    together = fdma_rates(snr, gains, clients)
    for draw in range(draws):
        assert np.array_equal(together[draw], fdma_rates(snr, gains[draw], clients))


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="bandwidth_hz = 0"):
        fdma_rates(1.0, 1.0, 2, bandwidth_hz=0)
    with pytest.raises(UsageError, match="narrower than one sub-channel"):
        aircomp_seconds(10, bandwidth_hz=14e3)
    with pytest.raises(UsageError, match="bandwidth_hz = 0"):
        aircomp_seconds(10, bandwidth_hz=0)
    with pytest.raises(UsageError, match=r"SNR is -3\.0"):
        fdma_rates([1.0, -3.0], 1.0, 2)
    with pytest.raises(UsageError, match="gain is nan"):
        tdma_rates(1.0, float("nan"), 2)
    with pytest.raises(UsageError, match="num_clients is 0"):
        fdma_rates(1.0, 1.0, [3, 0])
    with pytest.raises(UsageError, match="parameters is -1"):
        aircomp_seconds(-1)
    with pytest.raises(UsageError, match="bits_per_parameter"):
        uplink_seconds(1, 1.0, bits_per_parameter=0)
    with pytest.raises(UsageError, match="cpu_hz is 0"):
        compute_seconds(1.0, [1e9, 0.0])
    with pytest.raises(UsageError, match="local_steps = 0"):
        step_cycles(1, full_parameters=1, local_steps=0)
