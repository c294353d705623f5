"""Uplink rates and times: orthogonal access (HIST Sec. IV-A) and over the air (Sec. V-E).

Pure functions of arrays that broadcast against each other; leading axes are draws, rounds or cells, and
the last one is the client. SI units: hertz, bits a second, seconds; SNR and gains are linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from histfl.arrays import Floats
from histfl.errors import UsageError

DEFAULT_BANDWIDTH_HZ = 10e6
DEFAULT_ANTENNAS = 10
SUB_CHANNEL_HZ = 15e3
SYMBOL_S = 1e-3 / 14  # an LTE symbol
MOST_SUB_CHANNELS = 2**52  # more than any model has numbers


def fdma_rates(
    snr: npt.ArrayLike,
    gains: npt.ArrayLike,
    num_clients: npt.ArrayLike,
    *,
    bandwidth_hz: float = DEFAULT_BANDWIDTH_HZ,
    noise_scales_with_band: bool = False,
    double_count_clients: bool = False,
) -> Floats:
    """Rate of each client, [..., client] bits a second, in its own share of the band (HIST Eq. (18)).

    R_i = (B / n) log2(1 + SNR_i ||h_i||^2), with n = `num_clients` sending in the cell.

    `noise_scales_with_band`: SNR_i is stated over the whole band, and a share of it collects only a share
    of the noise, so the SNR inside is n SNR_i. `double_count_clients` is the paper's literal Eq. (20).

    Deviation: the paper's log is taken as log2 (bits), and Eq. (20) multiplies the uplink time by n
    although R_i already holds B / n; by default n counts once.
    """
    clients = _checked_clients(num_clients)
    in_band = clients * _checked_snr(snr) if noise_scales_with_band else _checked_snr(snr)
    rates = _full_band_rate(in_band, gains, bandwidth_hz) / clients
    return rates / clients if double_count_clients else rates


def tdma_rates(
    snr: npt.ArrayLike,
    gains: npt.ArrayLike,
    num_clients: npt.ArrayLike,
    *,
    bandwidth_hz: float = DEFAULT_BANDWIDTH_HZ,
    double_count_clients: bool = False,
) -> Floats:
    """Rate of each client, [..., client] bits a second, with the whole band in one slot of n.

    R_i = (1 / n) B log2(1 + SNR_i ||h_i||^2), averaged over the n equal slots; the power is the same
    peak power as in FDMA. With a fixed SNR this is FDMA's rate. It never depends on how noise scales
    with the band, since the band is always whole: there FDMA, whose n clients send all the time and
    so spend n times the energy, is the faster one.
    """
    clients = _checked_clients(num_clients)
    rates = _full_band_rate(_checked_snr(snr), gains, bandwidth_hz) / clients
    return rates / clients if double_count_clients else rates


def uplink_seconds(
    parameters: npt.ArrayLike, rates: npt.ArrayLike, *, bits_per_parameter: float = 32.0
) -> Floats:
    """Time to send `parameters` numbers at `rates` bits a second (HIST Eq. (18), L0 = 32 d bits).

    Infinite where the rate is 0: a client whose channel is zero never ends.
    """
    if not (math.isfinite(bits_per_parameter) and bits_per_parameter > 0):
        raise UsageError(f"bits_per_parameter = {bits_per_parameter}; it must be positive and finite (32)")
    bits = bits_per_parameter * _checked_parameters(parameters)
    with np.errstate(divide="ignore"):
        return np.asarray(bits / np.asarray(rates, dtype=np.float64))


def aircomp_seconds(
    parameters: npt.ArrayLike,
    *,
    bandwidth_hz: float = DEFAULT_BANDWIDTH_HZ,
    sub_channel_hz: float = SUB_CHANNEL_HZ,
    symbol_s: float = SYMBOL_S,
) -> Floats:
    """Time to send `parameters` numbers over the air, whoever many send (HIST Eq. (37)).

    ceil(s / floor(B / sub_channel)) symbols of `symbol_s` seconds. Deviation: the paper's quotient is
    s / (B / sub_channel), without whole sub-channels and whole symbols.
    """
    if not (math.isfinite(symbol_s) and symbol_s > 0):
        raise UsageError(f"symbol_s = {symbol_s}; a symbol's length must be positive and finite")
    sub_channels = num_sub_channels(bandwidth_hz, sub_channel_hz)
    return np.asarray(np.ceil(_checked_parameters(parameters) / sub_channels) * symbol_s)


def num_sub_channels(bandwidth_hz: float, sub_channel_hz: float = SUB_CHANNEL_HZ) -> int:
    """Whole sub-channels in the band: the numbers that one symbol carries over the air."""
    if not (math.isfinite(sub_channel_hz) and sub_channel_hz > 0):
        raise UsageError(f"sub_channel_hz = {sub_channel_hz}; it must be positive and finite (15e3)")
    # A band of exactly k sub-channels holds k of them, whatever the quotient's last bit says.
    sub_channels = math.floor(_checked_bandwidth(bandwidth_hz) / sub_channel_hz * (1 + 1e-12))
    if sub_channels < 1:
        raise UsageError(
            f"bandwidth_hz = {bandwidth_hz:g} is narrower than one sub-channel of {sub_channel_hz:g} Hz; "
            "widen the band or narrow the sub-channel"
        )
    return min(sub_channels, MOST_SUB_CHANNELS)


def _full_band_rate(snr: Floats, gains: npt.ArrayLike, bandwidth_hz: float) -> Floats:
    power = checked_array(
        gains, "a channel gain", "gains are ||channel||^2 >= 0, finite", lambda gain: gain >= 0
    )
    # log1p keeps the rate of a very weak channel above 0.
    return np.asarray(_checked_bandwidth(bandwidth_hz) * np.log1p(snr * power) / math.log(2))


def checked_array(
    given: npt.ArrayLike, what: str, need: str, allowed: Callable[[Floats], npt.NDArray[np.bool_]]
) -> Floats:
    """`given` as real numbers, all finite and `allowed`; a UsageError names the first that is not."""
    values = np.asarray(given, dtype=np.float64)
    good = np.isfinite(values) & allowed(values)
    if not np.all(good):
        raise UsageError(f"{what} is {float(values[~good].flat[0])}; {need}")
    return values


def _checked_bandwidth(bandwidth_hz: float) -> float:
    if not (math.isfinite(bandwidth_hz) and bandwidth_hz > 0):
        raise UsageError(f"bandwidth_hz = {bandwidth_hz}; it must be positive and finite, such as 10e6")
    return bandwidth_hz


def _checked_snr(snr: npt.ArrayLike) -> Floats:
    need = "it must be positive, finite and linear (not in dB)"
    return checked_array(snr, "an SNR", need, lambda ratio: ratio > 0)


def _checked_clients(num_clients: npt.ArrayLike) -> Floats:
    need = "a cell that sends has at least one"
    return checked_array(num_clients, "num_clients", need, lambda count: count >= 1)


def _checked_parameters(parameters: npt.ArrayLike) -> Floats:
    need = "it must be at least 0 and finite"
    return checked_array(parameters, "parameters", need, lambda count: count >= 0)
