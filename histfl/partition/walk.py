"""Following a layer's outputs through torch-pruning's dependency graph.

The graph says which layer feeds which, and how positions move through flattening, splitting and
concatenation. A walk starts at the outputs of one layer (the root), goes along every edge in both
directions, and labels each position it reaches with the root output it came from. Root outputs that
meet at one position are one unit. Each position of a layer is passed on once, so a walk is linear in
the positions it reaches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch_pruning.ops import OPTYPE

IN, OUT, BOTH = "in", "out", "both"

CONVOLUTIONS = (OPTYPE.CONV, OPTYPE.DEPTHWISE_CONV)
MOST_VISITS = 500  # of a side; a layer whose outputs are split in many parts is reached once for each


class Index(NamedTuple):
    """A position, and the root output it came from; field names as torch-pruning's index maps read them."""

    idx: int
    root_idx: int


class Side(NamedTuple):
    """The inputs or the outputs of a node; `both` where they are one and the same axis."""

    node: Any
    name: str


def side_of(node: Any, name: str) -> Side:
    """The inputs or outputs of `node`, by `name`; only Linear and convolution layers have two axes."""
    return Side(node, name if node.type in (OPTYPE.LINEAR, *CONVOLUTIONS) else BOTH)


@dataclass
class Walk:
    """`labels` has position -> root output for every side reached; `lost` the nodes without a way on.

    Where torch-pruning's maps do not fit a layer, as with GRU, they lead round and round to ever higher positions:
    a side that is reached with new ones too often is lost.
    """

    labels: dict[Side, dict[int, int]] = field(default_factory=dict)
    lost: list[Any] = field(default_factory=list)
    _parent: dict[int, int] = field(default_factory=dict)
    _visits: Counter[Side] = field(default_factory=Counter)

    def unit(self, root: int) -> int:
        """The smallest root output that is one unit with `root`."""
        while (up := self._parent.get(root, root)) != root:
            self._parent[root] = self._parent.get(up, up)
            root = up
        return root

    def join(self, first: int, second: int) -> None:
        """Make two root outputs one unit."""
        low, high = sorted((self.unit(first), self.unit(second)))
        if low != high:
            self._parent[high] = low

    def follow(self, side: Side, indices: list[Index]) -> None:
        """Walk on from some positions of one side until nothing new is reached."""
        stack = [(side, indices)]
        while stack:
            side, indices = stack.pop()
            label = self.labels.setdefault(side, {})
            fresh = []
            for index in indices:
                known = label.setdefault(index.idx, -1)
                if known < 0:
                    label[index.idx] = index.root_idx
                    fresh.append(index)
                elif known != index.root_idx:
                    self.join(known, index.root_idx)
            if not fresh:
                continue
            self._visits[side] += 1
            if self._visits[side] > MOST_VISITS:
                self.lost.append(side.node)
            else:
                stack.extend(self._across_blocks(side, fresh))
                stack.extend(self._along_edges(side, fresh))

    def _along_edges(self, side: Side, fresh: list[Index]) -> Iterator[tuple[Side, list[Index]]]:
        node = side.node
        for number, edge in enumerate(node.dependencies):
            backward = number < len(node.inputs)  # torch-pruning lists the edges to the inputs first
            if side.name == (OUT if backward else IN):
                continue
            moved = fresh
            try:
                for index_map in edge.index_mapping:
                    moved = moved if index_map is None else index_map(moved)
            except Exception:
                self.lost.append(node)
                continue
            if any(index.root_idx is None for index in moved):
                self.lost.append(node)
            elif moved:
                yield side_of(edge.target, OUT if backward else IN), moved

    def _across_blocks(self, side: Side, fresh: list[Index]) -> Iterator[tuple[Side, list[Index]]]:
        """Channels of one group of a grouped convolution or GroupNorm go together, inputs with outputs."""
        node, module = side.node, side.node.module
        if node.type in CONVOLUTIONS and module.groups > 1:
            across = Side(node, OUT if side.name == IN else IN)
            channels = {IN: module.in_channels, OUT: module.out_channels}
            block, across_block = channels[side.name] // module.groups, channels[across.name] // module.groups
        elif node.type == OPTYPE.GN:
            across = side
            block = across_block = module.num_channels // module.num_groups
        else:
            return
        roots: dict[int, int] = {}
        for index in fresh:
            self.join(roots.setdefault(index.idx // block, index.root_idx), index.root_idx)
        yield (
            across,
            [
                Index(position, root)
                for number, root in roots.items()
                for position in range(number * across_block, (number + 1) * across_block)
            ],
        )
