"""From a model to the way it is cut, checked: the unit groups, the choice among them, the plan (HIST Sec. II-B).

The paper cuts every other layer, so that no parameter is cut along two axes and none is lost. For any
model: of the groups that were found, take those that cover the most trainable parameters such that
no two of them meet in a parameter. This is a maximum-weight independent set, tiny, solved exactly.

Where tracing a model would be slow or impossible, it names its unit groups itself, with a method
`unit_axes()`: from a name (a layer's) to the (parameter, axis) pairs that are cut together, position k of
every one of them being unit k. They are checked as traced ones are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np
import torch
from torch import nn

from histfl.errors import PartitionError
from histfl.partition.check import Bench
from histfl.partition.discover import discover
from histfl.partition.module import Inputs
from histfl.partition.plan import CutAxis, Plan, UnitGroup

Scheme = Literal["alternating", "every", "none"]


def choose(
    groups: Sequence[UnitGroup], weights: Sequence[int], *, scheme: Scheme = "alternating"
) -> tuple[UnitGroup, ...]:
    """The groups to cut (HIST Sec. II-B), in the order given; `weights` are the parameters each of them covers.

    `alternating` cuts each parameter along one axis at most. `every` (IST) lets different groups cut
    a parameter along different axes; links between units of different cells are then held by nobody.
    """
    if not groups:
        return ()
    pairs = [(i, j) for i, j in _meeting(groups) if conflict(groups[i], groups[j], scheme)]
    if not pairs:
        return tuple(group for group, weight in zip(groups, weights, strict=True) if weight > 0)
    # Takes a while, and small models need none of it.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    rows = np.repeat(np.arange(len(pairs)), 2)
    columns = np.array(pairs, dtype=np.int64).reshape(-1)
    edges = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(pairs), len(groups)))
    solution = milp(
        -np.asarray(weights, dtype=np.float64),
        integrality=np.ones(len(groups)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(edges, ub=1.0),
        options={"mip_rel_gap": 0.0},
    )
    if solution.x is None:
        raise PartitionError(f"choosing among {len(groups)} layers to cut failed: {solution.message}")
    return tuple(group for group, taken in zip(groups, solution.x, strict=True) if taken > 0.5)


def conflict(first: UnitGroup, second: UnitGroup, scheme: Scheme = "alternating") -> str | None:
    """A parameter in which the two groups cannot both be cut, if there is one.

    They may share an axis when they own different positions of it, as the branches of a concatenation do.
    """
    by_parameter: dict[str, list[CutAxis]] = {}
    for cut in first.axes:
        by_parameter.setdefault(cut.parameter, []).append(cut)
    for cut in second.axes:
        for other in by_parameter.get(cut.parameter, ()):
            if other.axis != cut.axis:
                if scheme == "alternating":
                    return cut.parameter
            elif bool(((cut.unit >= 0) & (other.unit >= 0)).any()):
                return cut.parameter
    return None


def matching(groups: Sequence[UnitGroup], patterns: Iterable[str]) -> set[str]:
    """The names of the groups of which the name or a layer matches one of the glob patterns."""
    found: set[str] = set()
    for pattern in patterns:
        names = {
            group.name
            for group in groups
            if any(fnmatchcase(name, pattern) for name in (group.name, *group.layers))
        }
        if not names:
            known = ", ".join(repr(group.name) for group in groups)
            raise PartitionError(f"the pattern {pattern!r} matches no layer; the layers found are {known}")
        found |= names
    return found


def _meeting(groups: Sequence[UnitGroup]) -> list[tuple[int, int]]:
    """Pairs of groups that have a parameter in common."""
    holders: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for cut in group.axes:
            holders.setdefault(cut.parameter, set()).add(number)
    return sorted({(i, j) for numbers in holders.values() for i in numbers for j in numbers if i < j})


def offered(model: nn.Module) -> tuple[UnitGroup, ...] | None:
    """The groups that `model` names, or None where it names none and has to be traced."""
    unit_axes = getattr(model, "unit_axes", None)
    if not callable(unit_axes):
        return None
    named: Mapping[str, Sequence[tuple[str, int]]] = unit_axes()
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    return tuple(_group(name, axes, shapes) for name, axes in named.items())


def _group(name: str, axes: Sequence[tuple[str, int]], shapes: Mapping[str, tuple[int, ...]]) -> UnitGroup:
    lengths: set[int] = set()
    for parameter, axis in axes:
        shape = shapes.get(parameter)
        if shape is None or not 0 <= axis < len(shape):
            raise PartitionError(
                f"unit_axes()[{name!r}] names axis {axis} of {parameter!r}, which the model does not have"
            )
        lengths.add(shape[axis])
    if len(lengths) != 1:
        raise PartitionError(
            f"unit_axes()[{name!r}] names axes of {sorted(lengths) or 'no'} entries; all must have as many "
            "as there are units"
        )
    units = torch.arange(lengths.pop())
    return UnitGroup(name, len(units), tuple(CutAxis(p, axis, units) for p, axis in axes), (name,))


def plan(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    scheme: Scheme = "alternating",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Plan:
    """How to cut `model`, which itself does not change.

    `alternating` is HIST's: each parameter is cut along one axis at most, and as many as can be.
    `every` cuts every hidden layer (IST). `none` gives every cell the full model and traces nothing.
    `include` and `exclude` are glob patterns of layer names: only these, and not those, may be cut.
    A model that names its unit groups itself, with a method `unit_axes`, is not traced but checked alike.
    """
    whole = Plan.of(model)
    if not whole.trainable:
        raise PartitionError(f"{type(model).__name__} has no trainable parameter; set requires_grad on some")
    if scheme == "none":
        return whole
    if scheme not in ("alternating", "every"):
        raise PartitionError(f"scheme = {scheme!r}; the schemes are 'alternating', 'every' and 'none'")
    groups = offered(model)
    if groups is None:
        groups = discover(model, example_inputs)
    uncut = _ruled_out(groups, whole, include, exclude)
    bench = Bench.of(model, example_inputs)
    while True:
        candidates = [group for group in groups if group.name not in uncut]
        weights = [_weight(group, whole) for group in candidates]
        chosen = choose(candidates, weights, scheme=scheme)
        if not chosen:
            tried = "; ".join(f"{name}: {reason}" for name, reason in uncut.items())
            raise PartitionError(
                f"no layer of {type(model).__name__} can be cut ({tried or 'it has no hidden layer'}); train "
                f"it whole with method 'hfedavg'"
            )
        failed = bench.failures(chosen)
        if not failed:
            break
        uncut |= failed
    for group in candidates:
        rival = next((other for other in chosen if conflict(group, other, scheme)), None)
        if group not in chosen and rival is not None:
            uncut[group.name] = f"it shares {conflict(group, rival, scheme)} with {rival.name}, which is cut"
    return Plan.of(model, chosen, uncut)


def _ruled_out(
    groups: Sequence[UnitGroup], whole: Plan, include: Sequence[str], exclude: Sequence[str]
) -> dict[str, str]:
    """The groups that need not be tried, with the reason."""
    included = matching(groups, include) if include else {group.name for group in groups}
    excluded = matching(groups, exclude)
    reasons: dict[str, str] = {}
    for group in groups:
        if group.name not in included:
            reasons[group.name] = "it is not among the included layers"
        elif group.name in excluded:
            reasons[group.name] = "it is excluded"
        elif group.obstacle:
            reasons[group.name] = group.obstacle
        elif group.num_units < 2:
            reasons[group.name] = "it has one unit"
        elif group.cut_twice:
            reasons[group.name] = f"it would cut {group.cut_twice} along two axes"
        elif _weight(group, whole) == 0:
            reasons[group.name] = "it holds no trainable parameter"
    return reasons


def _weight(group: UnitGroup, whole: Plan) -> int:
    return int(group.unit_parameters(whole.shapes, whole.trainable).sum())
