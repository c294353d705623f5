"""Finding the unit groups of any `nn.Module`, from the dependency graph that torch-pruning traces.

The graph says which layer feeds which, and how positions move through flattening, splitting and
concatenation. A walk starts at the outputs of one layer (the root), goes along every edge in both
directions, and labels each position it reaches with the root output it came from. Root outputs that
meet at one position are one unit. Each position of a layer is passed on once, so a walk is linear in
the positions it reaches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
import torch_pruning
from torch import nn
from torch.utils import _pytree as pytree
from torch_pruning.ops import OPTYPE, CustomizedPruner

from histfl.errors import PartitionError, in_one_line
from histfl.partition.module import Inputs, copy_of, few_examples, outputs_of, quietly
from histfl.partition.plan import CutAxis, UnitGroup

IN, OUT, BOTH = "in", "out", "both"

CONVOLUTIONS = (OPTYPE.CONV, OPTYPE.DEPTHWISE_CONV)
MOST_VISITS = 500  # of a side; a layer whose outputs are split in many parts is reached once for each
# Of a side without parameters, such as a flattening's, and no more than all layers have.
MOST_POSITIONS = 2**21


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
    those beyond a layer's parameters are not passed on, and a side that is reached with new ones too often, or with
    too many (`most`), is lost.
    """

    most: int = MOST_POSITIONS
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
            length = _length(side)
            fresh = [index for index in fresh if length is None or 0 <= index.idx < length]
            if not fresh:
                continue
            self._visits[side] += 1
            if self._visits[side] > MOST_VISITS or len(label) > self.most:
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


_PRODUCERS = (OPTYPE.LINEAR, *CONVOLUTIONS, OPTYPE.EMBED, OPTYPE.PARAMETER)
_CHANNEL_WISE = (OPTYPE.BN, OPTYPE.IN, OPTYPE.GN, OPTYPE.PRELU)
_NEEDS_ALL = {
    OPTYPE.LN: "{} normalises over these units",
    OPTYPE.MHA: "the attention {} needs all of these units",
    OPTYPE.CUSTOMIZED: "the recurrent layer {} needs all of these units",
}
_RECURRENT = (nn.RNNBase, nn.modules.rnn.RNNCellBase)


def discover(model: nn.Module, example_inputs: Inputs) -> tuple[UnitGroup, ...]:
    """All unit groups of `model`, in the order of its parameters.

    The model is traced on a copy, in eval mode, with frozen parameters taking part. Each group's
    `obstacle` names what already rules out a cut.
    """
    copy = _traceable(model)
    graph = _trace(copy, few_examples(example_inputs))
    # Tied parameters have one name, the first, as in `named_parameters` and `functional_call`.
    names = {id(parameter): name for name, parameter in copy.named_parameters()}
    names |= {id(module): name or type(copy).__name__ for name, module in copy.named_modules()}
    producers = [node for node in graph.module2node.values() if node.type in _PRODUCERS]
    place = {key: number for number, key in enumerate(names)}
    producers.sort(key=lambda node: place.get(id(node.module), 0))
    covered: dict[Side, set[int]] = {}
    walks: list[Walk] = []
    most = min(MOST_POSITIONS, sum(max(parameter.shape, default=1) for parameter in copy.parameters()))
    for node in producers:
        side = side_of(node, OUT)
        start = [k for k in range(_num_outputs(node)) if k not in covered.get(side, ())]
        if not start:
            continue
        walk = Walk(most)
        walk.follow(side, [Index(k, k) for k in start])
        for reached, label in walk.labels.items():
            covered.setdefault(reached, set()).update(label)
        walks.append(walk)
    groups = [_group(walk, names, place) for walk in walks]
    order = {name: number for number, (name, _) in enumerate(copy.named_parameters())}
    groups.sort(key=lambda group: min((order[cut.parameter] for cut in group.axes), default=len(order)))
    return _named_apart(groups)


class _AsOne(torch.autograd.Function):
    """The first `count` tensors, as one operation on the others."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.clone() for tensor in tensors[:count])


def _as_one(layer: nn.Module, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """What a layer's `forward` returns, as one operation on its inputs: in place of all those of its steps in time, round
    which a walk goes for long."""
    with torch.no_grad():
        returned = forward(*inputs, **named)
    leaves, spec = pytree.tree_flatten(returned)
    places = [
        k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    read = [leaf for leaf in pytree.tree_leaves((inputs, named)) if isinstance(leaf, torch.Tensor)]
    found = _AsOne.apply(len(places), *(leaves[k] for k in places), *read, *layer.parameters())  # type: ignore[no-untyped-call]
    for place, tensor in zip(places, found, strict=True):
        leaves[place] = tensor
    return pytree.tree_unflatten(leaves, spec)


def _gated(axis: int, inputs: torch.Tensor) -> torch.Tensor:
    value, gate = inputs.chunk(2, axis)
    return value * gate.sigmoid()


def _traceable(model: nn.Module) -> nn.Module:
    """A copy in which every parameter takes part in the graph, frozen ones too, a recurrent layer is one operation and a
    gated unit those that a trace knows."""
    copy = copy_of(model)
    copy.eval()
    for module in copy.modules():
        if isinstance(module, _RECURRENT):
            module.forward = partial(_as_one, module, module.forward)
        elif type(module) is nn.GLU:
            module.forward = partial(_gated, module.dim)  # type: ignore[method-assign]
    for parameter in copy.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
        parameter.grad = None
    return copy


def _trace(copy: nn.Module, inputs: Inputs) -> Any:
    name = type(copy).__name__
    recurrent = {type(module) for module in copy.modules() if isinstance(module, _RECURRENT)}
    with quietly():
        try:
            outputs = outputs_of(copy, inputs)
        except Exception as error:
            raise PartitionError(
                f"{name} does not run on the example inputs ({in_one_line(error)}); give inputs that it takes"
            ) from error
        if not outputs:
            raise PartitionError(
                f"{name} returns no tensor that depends on its parameters, be it in a tuple, dictionary or dataclass, so "
                f"that nothing can be cut; return one, or train the model whole with method 'hfedavg'"
            )
        try:
            return torch_pruning.DependencyGraph().build_dependency(
                copy,
                inputs,
                forward_fn=lambda module, given: outputs_of(module, given),
                customized_pruners={kind: CustomizedPruner() for kind in recurrent},
                verbose=False,
            )
        except Exception as error:
            raise PartitionError(
                f"cannot trace {name} ({in_one_line(error)}); write the part that cannot be traced with torch.nn "
                f"layers, or train the model whole with method 'hfedavg'"
            ) from error


def _group(walk: Walk, names: dict[int, str], place: dict[int, int]) -> UnitGroup:
    """What one walk reached, as a unit group."""
    obstacle = ""
    labels: dict[tuple[int, int], dict[int, int]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for side, label in walk.labels.items():
        obstacle = obstacle or _obstacle(side, names)
        for parameter, axis in _axes(side):
            if id(parameter) not in names:
                obstacle = obstacle or f"the weight of {_name(side.node, names)} is not a plain parameter"
                continue
            if min(label) < 0 or max(label) >= parameter.shape[axis]:
                obstacle = obstacle or f"its units could not be followed into {_name(side.node, names)}"
                continue
            parameters[id(parameter)] = parameter
            merged = labels.setdefault((id(parameter), axis), {})
            for position, root in label.items():
                walk.join(merged.setdefault(position, root), root)  # tied parameters meet here
    if walk.lost:
        obstacle = obstacle or f"its units could not be followed past {_name(walk.lost[0], names)}"
    roots = sorted({walk.unit(root) for label in labels.values() for root in label.values()})
    number = {root: unit for unit, root in enumerate(roots)}
    axes = []
    for (key, axis), label in sorted(labels.items(), key=lambda item: (place[item[0][0]], item[0][1])):
        unit = torch.full((parameters[key].shape[axis],), -1, dtype=torch.int64)
        unit[list(label)] = torch.tensor([number[walk.unit(root)] for root in label.values()])
        axes.append(CutAxis(names[key], axis, unit))
    sources = {id(s.node.module) for s in walk.labels if s.node.type in _PRODUCERS and s.name != IN}
    layers = tuple(names[key] for key in sorted(sources, key=lambda key: place.get(key, 0)) if key in names)
    return UnitGroup(layers[0] if layers else "?", len(roots), tuple(axes), layers, obstacle)


def _axes(side: Side) -> list[tuple[nn.Parameter, int]]:
    """The parameters of a node with the axis that lies along `side`."""
    node, module = side.node, side.node.module
    if node.type == OPTYPE.PARAMETER:
        return [(module, node.pruning_dim % module.dim())]
    if node.type == OPTYPE.EMBED:
        return [(module.weight, 1)]
    if node.type in _CHANNEL_WISE:
        found = [(module.weight, 0), (getattr(module, "bias", None), 0)]
        return [(p, axis) for p, axis in found if p is not None and p.numel() > 1]
    if node.type not in (OPTYPE.LINEAR, *CONVOLUTIONS):
        return []
    out_axis = 1 if getattr(module, "transposed", False) else 0
    if side.name == IN:
        # The input axis of a grouped convolution's weight runs within one group: a unit does not cut it.
        return [] if getattr(module, "groups", 1) > 1 else [(module.weight, 1 - out_axis)]
    return [(module.weight, out_axis)] + ([] if module.bias is None else [(module.bias, 0)])


def _obstacle(side: Side, names: dict[int, str]) -> str:
    node = side.node
    if node.type in _NEEDS_ALL:
        return _NEEDS_ALL[node.type].format(_name(node, names))
    if not node.outputs and side.name != IN:
        return "these units are the model's output"
    if node.type in CONVOLUTIONS and node.module.transposed and node.module.groups > 1:
        return f"{_name(node, names)} is a grouped transposed convolution"
    return ""


def _num_outputs(node: Any) -> int:
    length = _length(side_of(node, OUT))
    assert length is not None
    return length


def _length(side: Side) -> int | None:
    """How many positions a side has, where parameters lie along it."""
    for parameter, axis in _axes(side):
        return int(parameter.shape[axis])
    return None


def _name(node: Any, names: dict[int, str]) -> str:
    return names.get(id(node.module), "an operation of the model")


def _named_apart(groups: list[UnitGroup]) -> tuple[UnitGroup, ...]:
    """Two groups of one layer (its outputs are split) get different names."""
    seen: dict[str, int] = {}
    apart = []
    for group in groups:
        seen[group.name] = seen.get(group.name, 0) + 1
        name = group.name if seen[group.name] == 1 else f"{group.name}#{seen[group.name]}"
        apart.append(UnitGroup(name, group.num_units, group.axes, group.layers, group.obstacle))
    return tuple(apart)
