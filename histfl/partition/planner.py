"""`plan`: from a model to the way it is cut, checked."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from histfl.errors import PartitionError
from histfl.partition.check import Bench
from histfl.partition.choose import Scheme, choose, conflict, matching
from histfl.partition.discover import discover
from histfl.partition.forward import Inputs
from histfl.partition.offered import offered
from histfl.partition.plan import Plan
from histfl.partition.units import UnitGroup


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
