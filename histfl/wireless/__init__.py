"""The radio network: channels, rates, latency, beamforming and over-the-air averaging."""

from histfl.wireless.aircomp import (
    Link,
    add_equivalent_noise,
    aggregate,
    draw_noise,
    equivalent_noise_variance,
    power_factor,
    precode,
    receive,
    superpose,
    update_rms,
)
from histfl.wireless.channels import (
    Channel,
    PathLoss,
    Rayleigh,
    Rician,
    channel_gains,
    check_channels,
)
from histfl.wireless.latency import (
    cell_seconds,
    compute_seconds,
    energy_joules,
    round_seconds,
    step_cycles,
)
from histfl.wireless.rates import aircomp_seconds, fdma_rates, tdma_rates, uplink_seconds

__all__ = [
    "Channel",
    "Link",
    "PathLoss",
    "Rayleigh",
    "Rician",
    "add_equivalent_noise",
    "aggregate",
    "aircomp_seconds",
    "cell_seconds",
    "channel_gains",
    "check_channels",
    "compute_seconds",
    "draw_noise",
    "energy_joules",
    "equivalent_noise_variance",
    "fdma_rates",
    "power_factor",
    "precode",
    "receive",
    "round_seconds",
    "step_cycles",
    "superpose",
    "tdma_rates",
    "update_rms",
    "uplink_seconds",
]
