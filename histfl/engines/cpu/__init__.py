"""Threads, and kernels compiled by numba (the extra `fast`), for clients that train on a CPU."""
