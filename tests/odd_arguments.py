"""Odd values for every parameter of the Python interface: each call runs, or is refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_training import INPUTS, NETWORK, TARGETS, mlp
from torch import nn

import histfl
from histfl.api import _HOMES

Call = Callable[[], object]


class Unshowable:
    """An object that cannot even be written down or compared."""

    def __repr__(self) -> str:
        raise RuntimeError("no words for it")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    __hash__ = None  # type: ignore[assignment]


class NegativeLength:
    def __len__(self) -> int:
        return -1

    def __getitem__(self, index: int) -> object:
        raise IndexError(index)


class Opaque:
    """Numbers that cannot be made: every conversion fails in its own way."""

    def __float__(self) -> float:
        raise ZeroDivisionError("float")

    def __index__(self) -> int:
        raise OverflowError("index")

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        raise KeyError("array")

    def __bool__(self) -> bool:
        raise AssertionError("bool")

    def __fspath__(self) -> str:
        raise LookupError("path")

    def __str__(self) -> str:
        raise UnicodeError("str")


def _nested() -> list[Any]:
    nest: list[Any] = []
    nest.append(nest)
    return nest


ODD: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "minus one": -1,
    "a half": 0.5,
    "three": 3,
    "a billion": 10**9,
    "beyond 64 bits": 10**30,
    "a number of a thousand digits": 10**5000,
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "the largest": 1e308,
    "the least": 5e-324,
    "complex": 1j,
    "decimal": Decimal("4"),
    "fraction": Fraction(4, 3),
    "a number as text": "4",
    "text": "odd",
    "no text": "",
    "nul": "a\0b",
    "lines": "one\ntwo",
    "half a surrogate": "\ud800",
    "long text": "x" * 5000,
    "bytes": b"x",
    "no list": [],
    "list": [1, 2],
    "list of text": ["4"],
    "list of none": [None],
    "list of odd things": [None, "x", 1.5, {}],
    "list in itself": _nested(),
    "tuple": (1, 2),
    "set": {1, 2},
    "range": range(3),
    "no dict": {},
    "dict": {"a": 1},
    "dict of numbers": {1: 2},
    "numpy text": np.str_("odd"),
    "numpy whole": np.int64(2),
    "numpy nan": np.float64("nan"),
    "numpy truth": np.bool_(True),
    "numpy array": np.arange(3.0),
    "numpy objects": np.array([None, "x"], dtype=object),
    "numpy scalar array": np.array(2),
    "numpy date": np.datetime64("2026-01-01"),
    "tensor": torch.tensor([1.0, 2.0]),
    "tensor of one": torch.tensor(2),
    "tensor of nothing": torch.tensor(2.0, device="meta"),
    "function": lambda *given: None,
    "generator": (number for number in range(3)),
    "class": dict,
    "module": nn.Linear(2, 2),
    "dtype": torch.float32,
    "path": Path("nowhere"),
    "object": object(),
    "unshowable": Unshowable(),
    "opaque": Opaque(),
    "negative length": NegativeLength(),
    "ellipsis": ...,
    "an error": ValueError("odd"),
}

SETTINGS: dict[str, Any] = {
    "rounds": 1,
    "edge_rounds": 1,
    "local_steps": 2,
    "batch_size": 5,
    "split": "iid",
    "device": "cpu",
    "network": NETWORK,
}
# A run of so many is what was asked for: it shows its progress and would not end here.
LONG = {("rounds", "a billion"), ("edge_rounds", "a billion"), ("local_steps", "a billion")}


def train(**given: Any) -> object:
    data = (INPUTS, TARGETS)
    given = {"model": mlp(), "train_set": data, "test_set": data} | SETTINGS | given
    return histfl.train(given.pop("model"), given.pop("train_set"), given.pop("test_set"), **given)


TRAIN = (
    *("model", "train_set", "test_set", "network", "split", "method", "uplink", "loss", "device", "engine"),
    *("objective", "metrics"),
    *("memory_gb", "out", "resume", "on_round", "progress", "tensorboard", "mlflow", "wandb"),
    *(name for name in _HOMES if name != "split"),
)
UPLINK = (
    *("name", "bandwidth_hz", "antennas", "bits_per_parameter", "channel", "k_factor_db"),
    *("double_count_clients", "noise_scales_with_band", "paper_power", "normalise", "signal"),
)
NETWORKS: dict[str, tuple[Callable[..., object], Mapping[str, Any]]] = {
    "Network": (
        histfl.Network,
        {
            "clients_per_cell": np.array([1, 2]),
            "cpu_hz": np.full(3, 1e9),
            "snr": np.full(3, 10.0),
            "transmit_power_w": np.full(3, 0.1),
        },
    ),
    "uniform": (
        histfl.Network.uniform,
        {"cells": 2, "clients_per_cell": 3, "cpu_hz": 1e9, "snr_db": 30.0, "transmit_power_w": 0.1},
    ),
    "uniform total": (histfl.Network.uniform, {"cells": 2, "clients": 6}),
    "paper": (
        histfl.Network.paper,
        {"cells": 2, "clients": 6, "generator": np.random.default_rng(1)},
    ),
    "from_ranges": (
        histfl.Network.from_ranges,
        {
            "clients_per_cell": np.array([1, 2]),
            "cpu_hz": np.full((2, 2), 1e9),
            "snr_db": np.full((2, 2), 30.0),
            "transmit_power_w": np.full((2, 2), 0.1),
            "generator": np.random.default_rng(1),
        },
    ),
    "from_toml": (histfl.Network.from_toml, {"path": "nowhere.toml"}),
    "cell": (NETWORK.cell, {"index": 0}),
}


def crossed() -> Iterator[tuple[str, Call]]:
    """Every odd value for every parameter."""
    for name, value in ODD.items():
        for parameter in TRAIN:
            if (parameter, name) not in LONG:
                yield f"train({parameter}={name})", _call(train, {parameter: value})
        for key in UPLINK:
            yield f"train(uplink={key}={name})", _call(train, {"uplink": {"name": "fdma", key: value}})
        for what, (function, good) in NETWORKS.items():
            for parameter in good:
                if (parameter, name) == ("path", "lines"):
                    continue  # a file's name may have two lines, and so has what says that there is none
                yield f"{what}({parameter}={name})", _call(function, {**good, parameter: value})


def _call(function: Callable[..., object], given: Mapping[str, Any]) -> Call:
    return lambda: function(**given)
