"""`Network`: every client's resources as flat arrays, the clients of a cell next to each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from histfl.errors import UsageError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DEFAULT_CPU_HZ = 2e9
DEFAULT_SNR_DB = 30.0
DEFAULT_TRANSMIT_POWER_W = 0.1


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


@dataclass(frozen=True)
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
        for name, value in (("cells", cells), ("clients_per_cell", clients_per_cell), ("clients", clients)):
            if value is not None and (not isinstance(value, int | np.integer) or value < 1):
                raise UsageError(f"{name} = {value!r}; it must be a whole number, at least 1")
        if not -300 <= snr_db <= 300:
            raise UsageError(f"snr_db = {snr_db!r}; it must be from -300 to 300")
        total = clients if clients is not None else cells * (clients_per_cell or 0)
        counts = spread_evenly(total, cells)
        return cls(
            clients_per_cell=counts,
            cpu_hz=np.full(total, float(cpu_hz)),
            snr=np.full(total, 10.0 ** (snr_db / 10)),
            transmit_power_w=np.full(total, float(transmit_power_w)),
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

        def draw(ranges: Floats) -> Floats:
            low, high = np.repeat(ranges, clients_per_cell, axis=0).T
            return np.asarray(low + (high - low) * generator.random(len(low)))

        return cls(
            clients_per_cell=clients_per_cell,
            cpu_hz=draw(cpu_hz),
            snr=10.0 ** (draw(snr_db) / 10),
            transmit_power_w=draw(transmit_power_w),
        )

    @classmethod
    def paper(cls, cells: int, clients: int, generator: np.random.Generator) -> Network:
        """The two halves of HIST Sec. VI-C: CPU in (1, 2) GHz at 30 dB, and in (2, 4) GHz at 40 dB."""
        slow = np.arange(cells) < cells / 2
        return cls.from_ranges(
            spread_evenly(clients, cells),
            cpu_hz=np.where(slow[:, None], (1e9, 2e9), (2e9, 4e9)),
            snr_db=np.where(slow[:, None], (30.0, 30.0), (40.0, 40.0)),
            transmit_power_w=np.full((cells, 2), DEFAULT_TRANSMIT_POWER_W),
            generator=generator,
        )

    @classmethod
    def from_toml(cls, path: Path | str) -> Network:
        """The network that a TOML file describes (see `histfl.network.file`)."""
        from histfl.network.file import read_network

        return read_network(Path(path))


def spread_evenly(total: int, parts: int) -> Ints:
    """`total` things over `parts` places, [part]; the remainder goes to the first places."""
    if parts < 1:
        raise UsageError(f"cells = {parts}; there must be at least one")
    if total < parts:
        raise UsageError(f"{total} clients cannot fill {parts} cells; use at most {max(total, 1)} cells")
    return np.full(parts, total // parts, dtype=np.int64) + (np.arange(parts) < total % parts)
