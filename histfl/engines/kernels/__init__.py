"""Leaves: functions and layers of tensors [client, ...], compiled for a CPU (numba) or a GPU (Triton) where that is faster."""
