"""Which cells and clients take part, and whose updates are lost (HIST Sec. II-C, III-C).

The work grows with those that take part, not with the network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from histfl.arrays import Ints
from histfl.errors import UsageError
from histfl.network import Cell, Network
from histfl.seeds import Seeds, random_uniform


@dataclass(frozen=True)
class CellSchedule:
    """The global round of cell number `cell`: per edge round, positions [client] within the cell.

    `sampled` clients train and transmit; the updates of `arrived`, a subset, reach the edge.
    """

    cell: int
    sampled: tuple[Ints, ...]
    arrived: tuple[Ints, ...]

    @property
    def transmissions(self) -> int:
        return sum(len(clients) for clients in self.sampled)

    @property
    def share_heard(self) -> float:
        """Of the edge rounds, the share in which an update arrived."""
        return sum(len(clients) > 0 for clients in self.arrived) / len(self.arrived)


@dataclass(frozen=True)
class Participation:
    """`active_cells` cells (None: all) sampled uniformly in each global round, or always the ones that it lists;
    in each of them `per_cell` clients (None: all) sampled uniformly in each edge round; each sampled client's
    update is lost with probability `dropout`, independently.

    The other cells do nothing in that round: the cloud cuts the model for the active ones alone.
    """

    per_cell: int | None = None
    dropout: float = 0.0
    active_cells: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.per_cell is not None and self.per_cell < 1:
            raise UsageError(f"participants = {self.per_cell}; at least one client a cell must take part")
        if not 0 <= self.dropout <= 1:
            raise UsageError(f"dropout = {self.dropout}; it is a probability from 0 to 1")
        if isinstance(self.active_cells, tuple):
            if len(set(self.active_cells)) < max(1, len(self.active_cells)):
                raise UsageError(
                    f"active_cells = {list(self.active_cells)}; list one cell at least, and each of them once"
                )
        elif self.active_cells is not None and self.active_cells < 1:
            raise UsageError(f"active_cells = {self.active_cells}; at least one cell must take part")

    def check(self, network: Network) -> None:
        """A UsageError where the network has not so many clients in a cell, or not these cells."""
        largest = int(network.clients_per_cell.max())
        if self.per_cell is not None and self.per_cell > largest:
            raise UsageError(
                f"participants = {self.per_cell}, but the largest cell has {largest} clients; let at most as many "
                "take part"
            )
        self.num_cells(network)

    def num_cells(self, network: Network) -> int:
        """How many cells take part in a global round."""
        if self.active_cells is None:
            return network.num_cells
        if isinstance(self.active_cells, tuple):
            return len(self._listed(self.active_cells, network))
        if self.active_cells > network.num_cells:
            raise UsageError(
                f"active_cells = {self.active_cells}, but the network has {network.num_cells} cells; "
                "let at most as many take part"
            )
        return self.active_cells

    def cells(self, network: Network, round: int, seeds: Seeds) -> Ints:
        """The numbers of the cells of a global round, ascending."""
        if isinstance(self.active_cells, tuple):
            return np.array(self._listed(self.active_cells, network))
        active = self.num_cells(network)
        if active == network.num_cells:
            return np.arange(active)
        return _subset(seeds.numpy("active-cells", round), network.num_cells, active)

    @staticmethod
    def _listed(cells: tuple[int, ...], network: Network) -> list[int]:
        outside = [cell for cell in cells if not 0 <= cell < network.num_cells]
        if outside:
            raise UsageError(
                f"active_cells has {outside[0]}, but the cells of this network are 0 to {network.num_cells - 1}; "
                "list some of these"
            )
        return sorted(cells)

    def schedules(
        self, network: Network, edge_rounds: int, round: int, seeds: Seeds
    ) -> tuple[CellSchedule, ...]:
        """Draw one global round of all its cells."""
        cells = self.cells(network, round, seeds).tolist()
        return tuple(self.schedule(network.cell(cell), edge_rounds, round, seeds) for cell in cells)

    def schedule(self, cell: Cell, edge_rounds: int, round: int, seeds: Seeds) -> CellSchedule:
        """Draw one global round of `cell`, by (round, cell) alone; whether a sampled client's update is
        lost depends on (round, edge round, client) alone."""
        if self.per_cell is not None and self.per_cell < cell.num_clients:
            generator = seeds.numpy("participation", round, cell.index)
            sampled = [_subset(generator, cell.num_clients, self.per_cell) for _ in range(edge_rounds)]
        else:
            sampled = [np.arange(cell.num_clients)] * edge_rounds
        arrived = sampled
        if self.dropout > 0:
            clients = torch.from_numpy(np.stack(sampled)) + cell.first_client
            chance = random_uniform(
                seeds.key("dropout", round), torch.arange(edge_rounds)[:, None], clients
            ).numpy()
            arrived = [own[kept] for own, kept in zip(sampled, chance >= self.dropout, strict=True)]
        return CellSchedule(cell=cell.index, sampled=tuple(sampled), arrived=tuple(arrived))


def _subset(generator: np.random.Generator, of: int, count: int) -> Ints:
    """`count` different numbers below `of`, ascending, in work that grows with `count`."""
    return np.sort(generator.choice(of, count, replace=False, shuffle=False))
