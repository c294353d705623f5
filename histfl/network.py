"""Who takes part: cells, their clients and the clients' resources, as flat arrays or described in TOML.

The clients of a cell are next to each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, model_validator

from histfl import arguments
from histfl.arrays import Floats, Ints
from histfl.errors import UsageError, shown
from histfl.limits import check_memory
from histfl.seeds import Seeds
from histfl.settings import Count, Decibels, Positive, Seed, Settings, checked, read_toml

DEFAULT_CPU_HZ = 2e9
DEFAULT_SNR_DB = 30.0
DEFAULT_TRANSMIT_POWER_W = 0.1
MAX_CLIENTS = 100_000_000  # more is a typing slip, not a network: its arrays alone would take gigabytes


@dataclass(frozen=True)
class Cell:
    """One cell: its edge server's index and its clients' resources, arrays of shape [client]."""

    index: int
    first_client: int
    cpu_hz: Floats
    snr: Floats
    transmit_power_w: Floats

    @property
    def num_clients(self) -> int:
        return len(self.cpu_hz)


@dataclass(frozen=True, repr=False)
class Network:
    """A cloud, its cells and their clients (HIST Sec. II-A).

    `clients_per_cell` is [cell]; the resources are [client] with cell 0's clients first. `snr` is the
    linear ratio of transmit power to noise power. No object is kept per client.
    """

    clients_per_cell: Ints
    cpu_hz: Floats
    snr: Floats
    transmit_power_w: Floats

    def __post_init__(self) -> None:
        for name in ("clients_per_cell", "cpu_hz", "snr", "transmit_power_w"):
            object.__setattr__(self, name, arguments.numbers(name, getattr(self, name)))
        object.__setattr__(self, "clients_per_cell", _whole_counts(self.clients_per_cell))
        if len(self.clients_per_cell) == 0:
            raise UsageError("a network needs at least one cell")
        if (empty := np.flatnonzero(self.clients_per_cell < 1)).size:
            raise UsageError(f"cell {empty[0]} has no client; every cell needs at least one")
        clients = int(self.clients_per_cell.sum())
        for name in ("cpu_hz", "snr", "transmit_power_w"):
            values = getattr(self, name)
            if values.shape != (clients,):
                raise UsageError(f"{name} has shape {values.shape}; it needs ({clients},), one a client")
            bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
            if bad.size:
                raise UsageError(
                    f"{name} of client {bad[0]} is {values[bad[0]]:g}; it must be positive and finite"
                )

    def __repr__(self) -> str:
        return f"Network({self.num_clients} clients in {self.num_cells} cells)"

    @property
    def num_cells(self) -> int:
        return len(self.clients_per_cell)

    @property
    def num_clients(self) -> int:
        return len(self.cpu_hz)

    @cached_property
    def offsets(self) -> Ints:
        """[cell + 1]: cell j's clients are offsets[j] to offsets[j + 1] - 1."""
        return np.concatenate(([0], np.cumsum(self.clients_per_cell))).astype(np.int64)

    @cached_property
    def cell_of_client(self) -> Ints:
        """[client]: the cell each client is in."""
        return np.repeat(np.arange(self.num_cells), self.clients_per_cell)

    def cell(self, index: int) -> Cell:
        """Cell `index`, as views of the network's arrays."""
        if not isinstance(index, int | np.integer) or not 0 <= index < self.num_cells:
            raise UsageError(f"cell {shown(index)}: the cells of this network are 0 to {self.num_cells - 1}")
        index = int(index)
        clients = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return Cell(
            index=index,
            first_client=clients.start,
            cpu_hz=self.cpu_hz[clients],
            snr=self.snr[clients],
            transmit_power_w=self.transmit_power_w[clients],
        )

    @classmethod
    def uniform(
        cls,
        cells: int,
        clients_per_cell: int | None = None,
        *,
        clients: int | None = None,
        cpu_hz: float = DEFAULT_CPU_HZ,
        snr_db: float = DEFAULT_SNR_DB,
        transmit_power_w: float = DEFAULT_TRANSMIT_POWER_W,
    ) -> Network:
        """Cells of equal clients; give the clients per cell, or their total (spread evenly)."""
        if (clients_per_cell is None) == (clients is None):
            raise UsageError("give either clients_per_cell or clients (the total), and not both")
        num_cells = arguments.whole("cells", cells, MAX_CLIENTS)
        if clients_per_cell is not None:
            total = num_cells * arguments.whole(
                "clients_per_cell", clients_per_cell, MAX_CLIENTS // num_cells
            )
        else:
            total = arguments.whole("clients", clients, MAX_CLIENTS)
        return cls(
            clients_per_cell=spread_evenly(total, num_cells),
            cpu_hz=np.full(total, arguments.positive("cpu_hz", cpu_hz)),
            snr=np.full(total, 10.0 ** (arguments.between("snr_db", snr_db, -300, 300) / 10)),
            transmit_power_w=np.full(total, arguments.positive("transmit_power_w", transmit_power_w)),
        )

    @classmethod
    def from_ranges(
        cls,
        clients_per_cell: Ints,
        *,
        cpu_hz: Floats,
        snr_db: Floats,
        transmit_power_w: Floats,
        generator: np.random.Generator,
    ) -> Network:
        """Each client's resource uniform in its cell's range; every range is an array [cell, 2]."""
        if not isinstance(generator, np.random.Generator | np.random.RandomState):
            raise UsageError(f"generator = {shown(generator)}; give a numpy.random.default_rng(seed)")
        counts = _whole_counts(arguments.numbers("clients_per_cell", clients_per_cell))

        def draw(name: str, given: Floats) -> Floats:
            ranges = arguments.numbers(name, given)
            if ranges.shape != (len(counts), 2):
                raise UsageError(
                    f"{name} has shape {ranges.shape}; it needs ({len(counts)}, 2), a lowest and a highest value a cell"
                )
            low, high = np.repeat(ranges, counts, axis=0).T
            return np.asarray(low + (high - low) * generator.random(len(low)))

        with np.errstate(over="ignore", invalid="ignore"):  # an infinite one is named as such below
            return cls(
                clients_per_cell=counts,
                cpu_hz=draw("cpu_hz", cpu_hz),
                snr=10.0 ** (draw("snr_db", snr_db) / 10),
                transmit_power_w=draw("transmit_power_w", transmit_power_w),
            )

    @classmethod
    def paper(cls, cells: int, clients: int, generator: np.random.Generator) -> Network:
        """The two halves of HIST Sec. VI-C: CPU in (1, 2) GHz at 30 dB, and in (2, 4) GHz at 40 dB."""
        cells = arguments.whole("cells", cells, MAX_CLIENTS)
        clients_per_cell = spread_evenly(arguments.whole("clients", clients, MAX_CLIENTS), cells)
        slow = np.arange(cells) < cells / 2
        return cls.from_ranges(
            clients_per_cell,
            cpu_hz=np.where(slow[:, None], (1e9, 2e9), (2e9, 4e9)),
            snr_db=np.where(slow[:, None], (30.0, 30.0), (40.0, 40.0)),
            transmit_power_w=np.full((cells, 2), DEFAULT_TRANSMIT_POWER_W),
            generator=generator,
        )

    @classmethod
    def from_toml(cls, path: Path | str) -> Network:
        """The network that a TOML file describes, as `NetworkDescription` says."""
        return read_network(arguments.path("path", path))


def _whole_counts(counts: npt.NDArray[Any]) -> Ints:
    """Clients per cell, [cell], as whole numbers that a network can have; the rest is checked by `Network`."""
    if counts.ndim != 1:
        raise UsageError(f"clients_per_cell has shape {counts.shape}; it needs one axis, [cell]")
    bad = np.flatnonzero(~((counts >= 0) & (counts <= MAX_CLIENTS) & (counts % 1 == 0)))
    if bad.size:
        raise UsageError(
            f"cell {bad[0]} has {counts[bad[0]]} clients; give each cell a whole number of them, at least 1"
        )
    if counts.sum(dtype=float) > MAX_CLIENTS:
        raise UsageError(f"{counts.sum(dtype=float):.0f} clients; at most {MAX_CLIENTS} can be described")
    return counts.astype(np.int64, copy=False)


def spread_evenly(total: int, parts: int) -> Ints:
    """`total` things over `parts` places, [part]; the remainder goes to the first places."""
    if parts < 1:
        raise UsageError(f"cells = {parts}; there must be at least one")
    if total < parts:
        raise UsageError(f"{total} clients cannot fill {parts} cells; use at most {max(total, 1)} cells")
    return np.full(parts, total // parts, dtype=np.int64) + (np.arange(parts) < total % parts)


def _host_and_port(text: str) -> str:
    if not re.fullmatch(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}", text):
        raise ValueError('write "HOST:PORT", such as "hub.example.org:8443" or "[2001:db8::1]:8443"')
    return text


HostAndPort = Annotated[str, AfterValidator(_host_and_port)]  # read by a deployment alone
_BYTES_A_CLIENT = 48  # three float64s that are kept, and those of a range that one is drawn from


class CellsDescription(Settings):
    """A block of cells alike."""

    count: Count = 1
    clients: Count
    cpu_hz: Positive | tuple[Positive, Positive] = DEFAULT_CPU_HZ
    snr_db: Decibels | tuple[Decibels, Decibels] = DEFAULT_SNR_DB
    transmit_power_w: Positive | tuple[Positive, Positive] = DEFAULT_TRANSMIT_POWER_W
    edges: tuple[HostAndPort, ...] = ()

    @model_validator(mode="after")
    def _ranges_ascend(self) -> CellsDescription:
        for name in ("cpu_hz", "snr_db", "transmit_power_w"):
            value = getattr(self, name)
            if isinstance(value, tuple) and value[0] > value[1]:
                raise ValueError(f"{name} = {list(value)}: a range goes from low to high")
        return self


class NetworkDescription(Settings):
    """A network described in TOML.

    seed = 1                    # for values drawn from ranges
    cloud = "cloud.example.org:8443"   # where it listens, in a deployment

    [[cells]]
    count = 2                   # this many cells alike
    clients = 15                # in each of them
    cpu_hz = [1e9, 2e9]         # a range to draw each client's value from, or one number
    snr_db = 30
    transmit_power_w = 0.1
    edges = ["edge0.example.org:8443", "edge1.example.org:8443"]   # where they listen, in a deployment
    """

    seed: Seed = 1
    cloud: HostAndPort | None = None
    cells: tuple[CellsDescription, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _not_too_many(self) -> NetworkDescription:
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


def read_description(path: Path) -> NetworkDescription:
    """What a TOML file says of a network, before any client is drawn."""
    return checked(NetworkDescription, read_toml(path), str(path))


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
