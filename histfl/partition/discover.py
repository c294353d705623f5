"""Finding the unit groups of any `nn.Module`, from the dependency graph that torch-pruning traces."""

from __future__ import annotations

from typing import Any

import torch
import torch_pruning
from torch import nn
from torch_pruning.ops import OPTYPE

from histfl.errors import PartitionError, in_one_line
from histfl.partition.forward import Inputs, copy_of, few_examples, outputs_of, quietly
from histfl.partition.units import CutAxis, UnitGroup
from histfl.partition.walk import CONVOLUTIONS, IN, OUT, Index, Side, Walk, side_of

_PRODUCERS = (OPTYPE.LINEAR, *CONVOLUTIONS, OPTYPE.EMBED, OPTYPE.PARAMETER)
_CHANNEL_WISE = (OPTYPE.BN, OPTYPE.IN, OPTYPE.GN, OPTYPE.PRELU)
_NEEDS_ALL = {
    OPTYPE.LN: "{} normalises over these units",
    OPTYPE.MHA: "the attention {} needs all of these units",
    OPTYPE.LSTM: "the recurrent layer {} needs all of these units",
}


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
    for node in producers:
        side = side_of(node, OUT)
        start = [k for k in range(_num_outputs(node)) if k not in covered.get(side, ())]
        if not start:
            continue
        walk = Walk()
        walk.follow(side, [Index(k, k) for k in start])
        for reached, label in walk.labels.items():
            covered.setdefault(reached, set()).update(label)
        walks.append(walk)
    groups = [_group(walk, names, place) for walk in walks]
    order = {name: number for number, (name, _) in enumerate(copy.named_parameters())}
    groups.sort(key=lambda group: min((order[cut.parameter] for cut in group.axes), default=len(order)))
    return _named_apart(groups)


def _traceable(model: nn.Module) -> nn.Module:
    """A copy in which every parameter takes part in the graph, frozen ones too."""
    copy = copy_of(model).eval()
    for parameter in copy.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
        parameter.grad = None
    return copy


def _trace(copy: nn.Module, inputs: Inputs) -> Any:
    name = type(copy).__name__
    with quietly():
        try:
            outputs = outputs_of(copy, inputs)
        except Exception as error:
            raise PartitionError(
                f"{name} does not run on the example inputs ({in_one_line(error)}); give inputs that it takes"
            ) from error
        if not outputs:
            raise PartitionError(
                f"{name} returns no tensor that depends on its parameters; nothing can be cut"
            )
        try:
            return torch_pruning.DependencyGraph().build_dependency(
                copy, inputs, forward_fn=lambda module, given: outputs_of(module, given), verbose=False
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
    parameter, axis = _axes(side_of(node, OUT))[0]
    return int(parameter.shape[axis])


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
