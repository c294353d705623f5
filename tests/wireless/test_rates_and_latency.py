"""Rates, seconds and joules: hand cases, the reference table, scaling laws and monotone physics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.errors import UsageError
from histfl.network import Network
from histfl.seeds import Seeds
from histfl.wireless import (
    Rayleigh,
    aircomp_seconds,
    cell_seconds,
    channel_gains,
    compute_seconds,
    energy_joules,
    fdma_rates,
    round_seconds,
    step_cycles,
    tdma_rates,
    uplink_seconds,
)

MLP_PARAMETERS = 238_510


def seconds_a_round(
    cells: int,
    clients: int,
    share: float,
    uplink: str,
    *,
    draws: int = 200,
    bandwidth_hz: float = 10e6,
    double_count_clients: bool = False,
) -> float:
    """Mean seconds of a global round in the setting of Sec. VI-C, resources and channels drawn anew."""
    seeds = Seeds(11)
    networks = [Network.paper(cells, clients, seeds.numpy("network", draw)) for draw in range(draws)]
    cpu_hz = np.stack([network.cpu_hz for network in networks])
    snr = np.stack([network.snr for network in networks])
    parameters = share * MLP_PARAMETERS
    cycles = step_cycles(parameters, full_parameters=MLP_PARAMETERS, local_steps=20)
    seconds = compute_seconds(cycles, cpu_hz)
    if uplink == "aircomp":
        seconds = seconds + aircomp_seconds(np.ceil(parameters), bandwidth_hz=bandwidth_hz)
    else:
        gains = channel_gains(Rayleigh().draw((draws, clients), 10, seeds.torch("channel")))
        senders = networks[0].clients_per_cell[networks[0].cell_of_client]
        rates = fdma_rates(
            snr, gains, senders, bandwidth_hz=bandwidth_hz, double_count_clients=double_count_clients
        )
        seconds = seconds + uplink_seconds(parameters, rates)
    return float(round_seconds(cell_seconds(seconds, networks[0].offsets), edge_rounds=5).mean())


@pytest.mark.parametrize(
    ("cells", "full_oma", "uniform_oma", "full_air", "uniform_air"),
    [(2, 9.49, 4.74, 0.225, 0.113), (4, 4.78, 1.20, 0.225, 0.0563), (6, 3.21, 0.535, 0.225, 0.0375)],
)
def test_reference_seconds_of_sec_vi_c(
    cells: int, full_oma: float, uniform_oma: float, full_air: float, uniform_air: float
) -> None:
    assert seconds_a_round(cells, 60, 1.0, "fdma") == pytest.approx(full_oma, rel=0.03)
    assert seconds_a_round(cells, 60, 1 / cells, "fdma") == pytest.approx(uniform_oma, rel=0.03)
    assert seconds_a_round(cells, 60, 1.0, "aircomp") == pytest.approx(full_air, rel=0.03)
    assert seconds_a_round(cells, 60, 1 / cells, "aircomp") == pytest.approx(uniform_air, rel=0.03)


def slope(uplink: str, *, double_count_clients: bool = False) -> float:
    """Log-log slope of a round's seconds in the clients a cell, from 10 to 30, four cells."""
    sizes = np.array([10, 15, 20, 25, 30])
    seconds = [
        seconds_a_round(4, 4 * int(size), 0.25, uplink, double_count_clients=double_count_clients)
        for size in sizes
    ]
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def test_fdma_seconds_grow_linearly_with_the_clients_of_a_cell() -> None:
    assert 0.95 < slope("fdma") < 1.05


def test_fdma_counted_twice_grows_quadratically() -> None:
    assert slope("fdma", double_count_clients=True) == pytest.approx(2.0, abs=0.05)


def test_aircomp_seconds_do_not_grow_with_the_clients_of_a_cell() -> None:
    assert -0.01 < slope("aircomp") < 0.05


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


def test_computing_by_hand() -> None:
    cycles = step_cycles([50, 100], full_parameters=100, local_steps=20)
    assert cycles.tolist() == [1e7, 2e7]
    assert compute_seconds(cycles, [1e9, 2e9]).tolist() == [0.01, 0.01]
    # 1e-28 * 1e7 * (1e9)^2 = 1 mJ; 0.1 W over half a second = 50 mJ.
    assert energy_joules(1e7, 1e9) == pytest.approx(1e-3)
    assert energy_joules(1e7, 1e9, transmit_power_w=0.1, transmit_seconds=0.5) == pytest.approx(0.051)


def test_a_round_waits_for_its_slowest_cell_and_a_cell_for_its_slowest_client() -> None:
    seconds = np.array([[1.0, 5.0, 2.0, 3.0], [4.0, 1.0, 9.0, 0.0]])
    by_cell = cell_seconds(seconds, np.array([0, 1, 3, 4]))
    assert by_cell.tolist() == [[1.0, 5.0, 3.0], [4.0, 9.0, 0.0]]
    assert round_seconds(by_cell, 5).tolist() == [25.0, 45.0]
    # Cells whose clients all dropped out take no time, the last one included.
    assert cell_seconds(seconds, np.array([0, 0, 4, 4])).tolist() == [[0.0, 5.0, 0.0], [0.0, 9.0, 0.0]]


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
    with pytest.raises(UsageError, match="edge_rounds = 0"):
        round_seconds([1.0], 0)
    with pytest.raises(UsageError, match="offsets end"):
        cell_seconds([1.0, 2.0], np.array([0, 1]))
