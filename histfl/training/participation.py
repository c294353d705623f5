"""Which clients take part in an edge round, and whose updates are lost (HIST Sec. II-C, III-C)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from histfl.errors import UsageError
from histfl.network import Cell
from histfl.network.network import Ints
from histfl.seeds import Seeds, random_bits, random_uniform


@dataclass(frozen=True)
class CellSchedule:
    """One cell's global round: per edge round, positions [client] within the cell.

    `sampled` clients train and transmit; the updates of `arrived`, a subset, reach the edge.
    """

    sampled: tuple[Ints, ...]
    arrived: tuple[Ints, ...]

    @property
    def transmissions(self) -> int:
        return sum(len(clients) for clients in self.sampled)


@dataclass(frozen=True)
class Participation:
    """`per_cell` clients (None: all) sampled uniformly in each cell and edge round; each sampled
    client's update is lost with probability `dropout`, independently."""

    per_cell: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.per_cell is not None and self.per_cell < 1:
            raise UsageError(f"participants = {self.per_cell}; at least one client a cell must take part")
        if not 0 <= self.dropout <= 1:
            raise UsageError(f"dropout = {self.dropout}; it is a probability from 0 to 1")

    def schedule(self, cell: Cell, edge_rounds: int, round: int, seeds: Seeds) -> CellSchedule:
        """Draw one global round of `cell`; a client's fate depends on (round, edge round, client) alone."""
        clients = torch.arange(cell.num_clients)
        ids = clients + cell.first_client
        edges = torch.arange(edge_rounds)[:, None]
        sampled = clients.expand(edge_rounds, -1)
        if self.per_cell is not None and self.per_cell < cell.num_clients:
            order = random_bits(seeds.key("participation", round), edges, ids).argsort(dim=1)
            sampled = order[:, : self.per_cell].sort(dim=1).values
        arrived = torch.ones_like(sampled, dtype=torch.bool)
        if self.dropout > 0:
            chance = random_uniform(seeds.key("dropout", round), edges, sampled + cell.first_client)
            arrived = chance >= self.dropout
        return CellSchedule(
            sampled=tuple(_array(row) for row in sampled),
            arrived=tuple(_array(row[kept]) for row, kept in zip(sampled, arrived, strict=True)),
        )


def _array(positions: torch.Tensor) -> Ints:
    return positions.numpy().astype(np.int64)
