"""Corrections: what is added to clients' gradients so that they do not drift apart where their data differ.

A new one is a class like `Mtgc` and a line in `CORRECTIONS`. It is made for one cell and global round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from histfl.arrays import Ints
from histfl.errors import UsageError
from histfl.partition import State
from histfl.settings import check_given
from histfl.training import answers
from histfl.training.memory import CellMemory, Memory


class Correction(Protocol):
    """In one cell and global round. What outlives the round is kept in the cell's memory."""

    def of_clients(self, clients: Ints) -> State:
        """What is added to the `clients`' gradients, new tensors [client, ...]."""
        ...

    def trained(self, clients: Ints, start: State, finals: State) -> None:
        """The `clients`' models are `finals`, [client, ...], after their local steps from the edge's model `start`."""
        ...

    def averaged(self, clients: Ints, start: State, new: State) -> None:
        """The edge's model is `new` after an edge round, from `start`, in which those `clients` were heard."""
        ...

    def merged(self, final: State, merged: State, edge_rounds: int) -> None:
        """The cell's model is `final` after its edge rounds, and the merged model has `merged` of the same entries."""
        ...


def added(correction: Correction | None, clients: Ints, like: State) -> State | None:
    """What is added to the `clients`' gradients, [client, ...], where `like` has the tensors of one; None where
    nothing is, and a UsageError where a correction of the user's own gives no such."""
    if correction is None:
        return None
    whose = f"of_clients of the correction {type(correction).__name__}"
    return answers.alike(correction.of_clients(clients), like, whose, clients=len(clients))


MakeCorrection = Callable[[State, CellMemory, float], Correction]
"""From the cell's first model in the round, what it keeps, and how far a client's steps go by a gradient of 1."""


class Mtgc:
    """Multi-timescale gradient correction (arXiv 2409.18448, Algorithm 1): a client's gradient g becomes g + z_i + y_j.

    z_i, from the client to its cell, starts from zero in every global round, as in the authors' code, and after an
    edge round of H steps of rate r it grows by (x_i - x_cell) / (H r). y_j, from the cell to the whole network,
    grows after the merge, which follows E edge rounds, by (x_j - x_merged) / (H E r), and stays.

    Deviation: the paper trains whole models at all clients. Here a cell corrects the entries that it holds; an entry
    that it alone holds is merged as it is, so that its y_j stays. Clients that are not heard keep their z_i for the
    round, cells that heard nobody their y_j.
    """

    def __init__(self, start: State, memory: CellMemory, path: float) -> None:
        """`path` is H r: how far a client's steps go by a gradient of 1."""
        self.start, self.memory, self.path = start, memory, path
        self._of_cell = memory.of_cell(KIND, start)
        self._of_clients = CellMemory(Memory())

    def of_clients(self, clients: Ints) -> State:
        own = self._of_clients.of_clients(KIND, clients, self.start)
        return {name: tensor + self._of_cell[name] for name, tensor in own.items()}

    def trained(self, clients: Ints, start: State, finals: State) -> None:
        self._move(clients, {name: final - start[name] for name, final in finals.items()})

    def averaged(self, clients: Ints, start: State, new: State) -> None:
        self._move(clients, {name: start[name] - tensor for name, tensor in new.items()})

    def _move(self, clients: Ints, moves: State) -> None:
        own = self._of_clients.of_clients(KIND, clients, self.start)
        moved = {name: torch.add(own[name], move, alpha=1 / self.path) for name, move in moves.items()}
        self._of_clients.keep_of_clients(KIND, clients, moved)

    def merged(self, final: State, merged: State, edge_rounds: int) -> None:
        by = 1 / (self.path * edge_rounds)
        apart = {name: tensor - merged[name] for name, tensor in final.items()}
        self.memory.keep_of_cell(
            KIND, {name: torch.add(self._of_cell[name], x, alpha=by) for name, x in apart.items()}
        )


KIND = "mtgc"  # of its tensors in a cell's memory
NO_CORRECTION = "none"
CORRECTIONS: dict[str, MakeCorrection] = {"mtgc": Mtgc}


def name_of(make: MakeCorrection) -> str:
    """Of what makes a correction: its name here or, of the user's own, in Python."""
    known = [name for name, known in CORRECTIONS.items() if known is make]
    return known[0] if known else str(getattr(make, "__name__", make))


def check_correction(given: Any, place: str) -> MakeCorrection:
    """The class `given`, or a UsageError where its objects are no corrections."""
    for method in ("of_clients", "trained", "averaged", "merged"):
        if not callable(getattr(given, method, None)):
            raise UsageError(f"{place} has no method {method}; see histfl.training.corrections.Correction")
    return given  # type: ignore[no-any-return]


def correction_named(name: str) -> MakeCorrection | None:
    """What makes the correction of that name; None where it names none."""
    check_given("training.correction", "correction", name, (NO_CORRECTION, *CORRECTIONS))
    return None if name == NO_CORRECTION else CORRECTIONS[name]
