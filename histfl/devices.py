"""Moving numbers to where they are used, and what there is to work on them."""

from __future__ import annotations

from importlib.util import find_spec

import torch


def triton_installed() -> bool:
    """Whether kernels of our own can be compiled for a GPU (torch for CUDA brings Triton)."""
    return find_spec("triton") is not None


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on the device, without waiting for the work that a GPU has still to do.

    The copy is made from pinned memory, which torch keeps until it is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
