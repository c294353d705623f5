"""What a cell and its clients keep from one global round to the next, besides the model.

A cell holds other units in every round. So between rounds what is kept has the shapes of the whole model (`Carried`);
in a round a cell gets the entries of its own submodel (`Memory`), and only these change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from histfl.arrays import Ints
from histfl.partition import State, Submodel, extract, put_back


@dataclass(frozen=True)
class Memory:
    """What a cell keeps, and its clients by their numbers in the network: tensors named KIND/PARAMETER."""

    cell: State = field(default_factory=dict)
    clients: Mapping[int, State] = field(default_factory=dict)


class CellMemory:
    """A cell's memory while its round goes on. Who has kept nothing yet begins with zeros."""

    def __init__(self, memory: Memory) -> None:
        self._cell, self._clients = dict(memory.cell), dict(memory.clients)

    def of_cell(self, kind: str, like: State) -> State:
        """The cell's tensors of a kind, with the names and shapes of `like`."""
        return _of_kind(self._cell, kind, like)

    def keep_of_cell(self, kind: str, tensors: State) -> None:
        self._cell |= _named(kind, tensors)

    def of_clients(self, kind: str, clients: Ints, like: State) -> State:
        """The `clients`' tensors of a kind, [client, ...], where `like` has those of one."""
        each = [_of_kind(self._clients.get(int(client), {}), kind, like) for client in clients]
        return {name: torch.stack([own[name] for own in each]) for name in like}

    def keep_of_clients(self, kind: str, clients: Ints, tensors: State) -> None:
        """From now on the `clients` have these `tensors`, [client, ...]."""
        for row, client in enumerate(clients):
            # Copies, since a row that is pickled takes its whole tensor along.
            own = {name: tensor[row].clone() for name, tensor in tensors.items()}
            self._clients[int(client)] = self._clients.get(int(client), {}) | _named(kind, own)

    def kept(self) -> Memory:
        """All of it, for the rounds to come."""
        return Memory(self._cell, self._clients)


def _of_kind(tensors: State, kind: str, like: State) -> State:
    return {
        name: tensors[f"{kind}/{name}"] if f"{kind}/{name}" in tensors else torch.zeros_like(tensor)
        for name, tensor in like.items()
    }


def _named(kind: str, tensors: State) -> State:
    return {f"{kind}/{name}": tensor for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Carried:
    """What outlives a round besides the model: the cloud's memory, and by number that of the cells and clients that
    took part. Theirs have the shapes of the whole model."""

    cloud: State = field(default_factory=dict)
    cells: Mapping[int, State] = field(default_factory=dict)
    clients: Mapping[int, State] = field(default_factory=dict)

    def memory(self, cell: int, clients: Iterable[int], submodel: Submodel) -> Memory:
        """What a cell and those of its `clients` that kept something have of the submodel's entries."""
        own = {
            client: _extract(self.clients[client], submodel) for client in clients if client in self.clients
        }
        return Memory(_extract(self.cells.get(cell, {}), submodel), own)

    def after(self, cloud: State, memories: Iterable[tuple[int, Submodel, Memory]], like: State) -> Carried:
        """After a round, from whose cells come their numbers, submodels and memories; `like` has the whole model's
        tensors. Who has nothing to keep takes no room."""
        cells, clients = dict(self.cells), dict(self.clients)
        for cell, submodel, memory in memories:
            if memory.cell:
                cells[cell] = _put_back(cells.get(cell, {}), submodel, memory.cell, like)
            for client, own in memory.clients.items():
                clients[client] = _put_back(clients.get(client, {}), submodel, own, like)
        return Carried(cloud, cells, clients)

    def tensors(self) -> State:
        """All of it by name, `cloud/NAME`, `cells/NUMBER/NAME` and `clients/NUMBER/NAME`."""
        tensors = {f"cloud/{name}": tensor for name, tensor in self.cloud.items()}
        for place, several in (("cells", self.cells), ("clients", self.clients)):
            for number, own in several.items():
                tensors |= {f"{place}/{number}/{name}": tensor for name, tensor in own.items()}
        return tensors

    @classmethod
    def of(cls, tensors: State) -> Carried:
        """What has these `tensors`; a ValueError where a name is none of ours."""
        several: dict[str, dict[int, State]] = {"cells": {}, "clients": {}}
        cloud: State = {}
        for path, tensor in tensors.items():
            place, _, name = path.partition("/")
            if place == "cloud":
                cloud[name] = tensor
            elif place in several:
                number, _, name = name.partition("/")
                several[place].setdefault(int(number), {})[name] = tensor
            else:
                raise ValueError(f"{path!r} is nothing that a run carries")
        return cls(cloud, **several)


def _by_kind(tensors: State) -> dict[str, State]:
    kinds: dict[str, State] = {}
    for path, tensor in tensors.items():
        kind, _, name = path.partition("/")
        kinds.setdefault(kind, {})[name] = tensor
    return kinds


def _extract(whole: State, submodel: Submodel) -> State:
    compact: State = {}
    for kind, tensors in _by_kind(whole).items():
        compact |= _named(kind, extract(tensors, submodel))
    return compact


def _put_back(whole: State, submodel: Submodel, compact: State, like: State) -> State:
    """`whole` with the submodel's entries from `compact`, as new tensors."""
    new = dict(whole)
    for kind, tensors in _by_kind(compact).items():
        old = _of_kind(whole, kind, {name: like[name] for name in tensors})
        new |= _named(kind, put_back(old, submodel, tensors))
    return new
