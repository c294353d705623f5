"""Compiling by numba, kept on disk for the next process where there is a place to keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compiled(function: Callable[..., None], *signature: Any, **options: Any) -> Callable[..., None]:
    """`function` as machine code that holds no lock of the interpreter; without a home or a folder to write to
    it is compiled anew by every process."""
    from numba import njit

    try:
        kept: Callable[..., None] = njit(*signature, nogil=True, cache=True, **options)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        kept = njit(*signature, nogil=True, **options)(function)
    return kept
