"""What a caller of Python may give in place of a number, some numbers or a path, checked where it enters."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from histfl.errors import UsageError, in_one_line, shown


def whole(name: str, value: Any, most: int) -> int:
    """A whole number from 1 to `most`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise UsageError(f"{name} = {shown(value)}; it must be a whole number, at least 1")
    if not 1 <= value <= most:
        bounds = "at least 1" if value < 1 else f"at most {most}"
        raise UsageError(f"{name} = {shown(value)}; it must be a whole number, {bounds}")
    return int(value)


def positive(name: str, value: Any, least: float = 0.0) -> float:
    """A positive and finite number, no smaller than `least`."""
    if not (0 < (found := _real(name, value)) < math.inf and found >= least):
        bound = f", at least {least:g}" if least else ""
        raise UsageError(f"{name} = {shown(value)}; it must be positive{bound} and finite")
    return found


def not_negative(name: str, value: Any) -> float:
    """A finite number, 0 or above."""
    if not 0 <= (found := _real(name, value)) < math.inf:
        raise UsageError(f"{name} = {shown(value)}; it must be at least 0 and finite")
    return found


def below_one(name: str, value: Any) -> float:
    """A number that is at least 0 and below 1."""
    if not 0 <= (found := _real(name, value)) < 1:
        raise UsageError(f"{name} = {shown(value)}; it must be at least 0 and below 1")
    return found


def share(name: str, value: Any) -> float:
    """A part of a whole that is not nothing."""
    if not 0 < (found := _real(name, value)) <= 1:
        raise UsageError(f"{name} = {shown(value)}; it must be above 0 and at most 1")
    return found


def between(name: str, value: Any, low: float, high: float) -> float:
    """A number from `low` to `high`."""
    if not low <= (found := _real(name, value)) <= high:
        raise UsageError(f"{name} = {shown(value)}; it must be from {low:g} to {high:g}")
    return found


def _real(name: str, value: Any) -> float:
    """Whatever stands for a number; a truth value or a text is a slip."""
    try:
        if not isinstance(value, bool | np.bool_ | str | bytes | bytearray):
            return float(value)
    except OverflowError:  # a whole number too large for a float
        return math.inf
    except Exception:  # somebody else's object may fail in any way
        pass
    raise UsageError(f"{name} = {shown(value)}; it must be a number")


def numbers(name: str, value: Any) -> npt.NDArray[Any]:
    """An array of real numbers, as it is or made of a list of them."""
    try:
        array = np.asarray(value)
    except Exception as error:  # somebody else's object may fail in any way
        raise UsageError(f"{name}: {in_one_line(error)}; give an array of numbers") from None
    if array.dtype.kind not in "iuf":
        raise UsageError(f"{name} = {shown(value)}; give an array of numbers")
    return array


def takes(name: str, function: Any, given: Sequence[str]) -> None:
    """A UsageError where a function cannot be called with what is `given`, in that order."""
    try:
        parameters = inspect.signature(function)
    except Exception:  # somebody else's object may fail in any way, and some of Python's own tell nothing
        return
    try:
        parameters.bind(*given)
    except TypeError as error:
        raise UsageError(f"{name}: {error}; it is called with ({', '.join(given)})") from None


def path(name: str, value: Any) -> Path:
    """A path, of text or of an object that stands for one."""
    try:
        text = os.fspath(value)
        os.fsencode(text)  # half a surrogate names no file
    except Exception:  # somebody else's object may fail in any way
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"{name} = {shown(value)}; give a path, such as 'runs/first'")
    return Path(text)
