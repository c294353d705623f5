"""Moving numbers to where they are used."""

from __future__ import annotations

import torch


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on the device, without waiting for the work that a GPU has still to do.

    The copy is made from pinned memory, which torch keeps until it is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
