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
from histfl.wireless.beamforming import max_min
from histfl.wireless.beamforming_sca import min_gain, principal_eigenvector, sca
from histfl.wireless.channels import (
    Channel,
    PathLoss,
    Rayleigh,
    Rician,
    channel_gains,
    check_channels,
)
from histfl.wireless.clock import compute_seconds, energy_joules, step_cycles
from histfl.wireless.rates import aircomp_seconds, fdma_rates, tdma_rates, uplink_seconds
from histfl.wireless.relaxation import certify, relax, sdr_randomised, upper_bound

__all__ = [
    "Channel",
    "Link",
    "PathLoss",
    "Rayleigh",
    "Rician",
    "add_equivalent_noise",
    "aggregate",
    "aircomp_seconds",
    "certify",
    "channel_gains",
    "check_channels",
    "compute_seconds",
    "draw_noise",
    "energy_joules",
    "equivalent_noise_variance",
    "fdma_rates",
    "max_min",
    "min_gain",
    "power_factor",
    "precode",
    "principal_eigenvector",
    "receive",
    "relax",
    "sca",
    "sdr_randomised",
    "step_cycles",
    "superpose",
    "tdma_rates",
    "update_rms",
    "uplink_seconds",
    "upper_bound",
]
