"""The radio network: channels, rates, latency, beamforming and over-the-air averaging."""

from histfl.wireless.beamforming import max_min
from histfl.wireless.channels import Channel, PathLoss, Rayleigh, Rician
from histfl.wireless.relaxation import upper_bound

__all__ = ["Channel", "PathLoss", "Rayleigh", "Rician", "max_min", "upper_bound"]
