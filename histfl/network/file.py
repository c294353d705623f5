"""A network described in TOML.

seed = 1                    # for values drawn from ranges

[[cells]]
count = 2                   # this many cells alike
clients = 15                # in each of them
cpu_hz = [1e9, 2e9]         # a range to draw each client's value from, or one number
snr_db = 30
transmit_power_w = 0.1
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from histfl.limits import check_memory
from histfl.network.network import (
    DEFAULT_CPU_HZ,
    DEFAULT_SNR_DB,
    DEFAULT_TRANSMIT_POWER_W,
    MAX_CLIENTS,
    Floats,
    Ints,
    Network,
)
from histfl.seeds import Seeds
from histfl.settings import Count, Decibels, Positive, Seed, Settings, checked, read_toml

_BYTES_A_CLIENT = 48  # three float64s that are kept, and those of a range that one is drawn from


class CellsSettings(Settings):
    """A block of cells alike."""

    count: Count = 1
    clients: Count
    cpu_hz: Positive | tuple[Positive, Positive] = DEFAULT_CPU_HZ
    snr_db: Decibels | tuple[Decibels, Decibels] = DEFAULT_SNR_DB
    transmit_power_w: Positive | tuple[Positive, Positive] = DEFAULT_TRANSMIT_POWER_W

    @model_validator(mode="after")
    def _ranges_ascend(self) -> CellsSettings:
        for name in ("cpu_hz", "snr_db", "transmit_power_w"):
            value = getattr(self, name)
            if isinstance(value, tuple) and value[0] > value[1]:
                raise ValueError(f"{name} = {list(value)}: a range goes from low to high")
        return self


class NetworkSettings(Settings):
    """The whole file."""

    seed: Seed = 1
    cells: tuple[CellsSettings, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _not_too_many(self) -> NetworkSettings:
        if self.num_clients > MAX_CLIENTS:
            raise ValueError(f"{self.num_clients} clients; at most {MAX_CLIENTS} can be described")
        return self

    @property
    def num_cells(self) -> int:
        return sum(block.count for block in self.cells)

    @property
    def clients_per_cell(self) -> Ints:
        """[cell]"""
        clients = np.array([block.clients for block in self.cells], dtype=np.int64)
        return np.repeat(clients, [block.count for block in self.cells])

    @property
    def num_clients(self) -> int:
        return sum(block.count * block.clients for block in self.cells)


def read_description(path: Path) -> NetworkSettings:
    """What a TOML file says of a network, before any client is drawn."""
    return checked(NetworkSettings, read_toml(path), str(path))


def read_network(path: Path) -> Network:
    """The network in a TOML file."""
    settings = read_description(path)
    check_memory(
        f"{path}: {settings.num_clients:,} clients", settings.num_clients * _BYTES_A_CLIENT, "describe fewer"
    )
    counts = [block.count for block in settings.cells]

    def ranges(name: str) -> Floats:
        values = [np.broadcast_to(np.asarray(getattr(block, name), float), 2) for block in settings.cells]
        return np.repeat(np.stack(values), counts, axis=0)

    return Network.from_ranges(
        settings.clients_per_cell,
        cpu_hz=ranges("cpu_hz"),
        snr_db=ranges("snr_db"),
        transmit_power_w=ranges("transmit_power_w"),
        generator=Seeds(settings.seed).numpy("network"),
    )
