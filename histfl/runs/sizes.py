"""How a run chooses its submodels' sizes, anew in every global round, and what its cells then hold of the model, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from histfl.arrays import Ints
from histfl.errors import UsageError
from histfl.network import Network
from histfl.partition import Plan, even_counts, share_counts, shared_units
from histfl.runs.config import MethodSettings
from histfl.sizing import (
    UNIFORM,
    Cost,
    CutLayers,
    SizingProblem,
    policy_named,
)
from histfl.training import CellSchedule
from histfl.training.hist import Hist, SizeChoice, SizePolicy
from histfl.training.jobs import CellLink
from histfl.training.methods import METHODS, Dealer
from histfl.wireless.clock import Clock

_Counts = Callable[[Sequence[CellSchedule], Cost], Ints]  # units [cell, group] of a round's cells


def size_policy(
    settings: MethodSettings, plan: Plan, network: Network, clock: Clock, *, shared: float, num_active: int
) -> SizePolicy:
    """The policy that `method.sizes` names, over the units of `plan` that are not shared, for the
    `num_active` cells of a round."""
    counts_for = _counts(settings, plan, network.num_cells, num_active, shared)
    held = shared_units(plan, shared)
    capped = isinstance(settings.sizes, str) and settings.sizes != UNIFORM and plan.groups
    cap = settings.cap if capped else None

    def choose(schedules: Sequence[CellSchedule], links: Sequence[CellLink]) -> SizeChoice:
        cost = clock.cost_by_size(network, schedules, links)
        counts = counts_for(schedules, cost)
        sizes = plan.sizes(counts + held)
        if not cost.exact:
            return SizeChoice(counts, clock.cost(network, schedules, links, sizes).seconds, cap)
        return SizeChoice(counts, float(cost.seconds(sizes).max()), cap)

    return choose


def _counts(settings: MethodSettings, plan: Plan, num_cells: int, num_active: int, shared: float) -> _Counts:
    """Sizes by name or by the shares [cell of the network]; the uniform ones are the same in every round."""
    even = even_counts(plan, num_active, shared=shared)
    if settings.sizes == UNIFORM or not plan.groups:
        return lambda schedules, cost: even
    if isinstance(settings.sizes, tuple):
        check_shares(settings, num_cells)
        shares = np.array(settings.sizes)
        return lambda schedules, cost: share_counts(
            plan, shares[[schedule.cell for schedule in schedules]], shared=shared
        )
    if METHODS[settings.name].scheme == "every":
        raise UsageError(
            f"method.sizes = {settings.sizes!r} with method.name = {settings.name!r}: where every layer is cut, "
            "sizes do not add up; use uniform or a list of shares"
        )
    policy, layers = policy_named(settings.sizes), cut_layers(plan, shared)
    return lambda schedules, cost: policy(SizingProblem(layers, cost, settings.cap))


def holding(settings: MethodSettings, run: Hist) -> tuple[str, list[str]]:
    """What a run says at its start: the share of the model that its cells train, and why these may serve badly."""
    plan, cells, shared = run.plan, run.network.num_cells, run.dealer.shared
    active = run.participation.num_cells(run.network)
    listed = isinstance(settings.sizes, tuple) and active == cells
    if listed and plan.groups:
        counts = share_counts(plan, np.array(settings.sizes), shared=shared)
    else:  # what the sizes of a round, chosen then, are on average
        counts = even_counts(plan, active, shared=shared)
    units = counts + shared_units(plan, shared)
    varying = bool(plan.groups) and settings.sizes != "uniform" and not listed
    return share_sentence(plan.sizes(units), plan.num_parameters, varying=varying), misgivings(
        units,
        plan.units,
        [group.name for group in plan.groups],
        replicated=plan.replicated_parameters,
        whole=plan.num_parameters,
    )


def dealer_of(settings: MethodSettings) -> Dealer:
    """Who deals the units to the cells."""
    return METHODS[settings.name].dealer(settings.shared)


def check_shares(settings: MethodSettings, num_cells: int) -> None:
    """A UsageError where `method.sizes` is a list, and not one of a share a cell."""
    if isinstance(settings.sizes, tuple) and len(settings.sizes) != num_cells:
        raise UsageError(
            f"method.sizes has {len(settings.sizes)} shares for {num_cells} cells; give one share a cell"
        )


def cut_layers(plan: Plan, shared: float = 0.0) -> CutLayers:
    """What `plan` deals out, as the sizing algorithms see it; shared units count as replicated."""
    held = shared_units(plan, shared)
    return CutLayers(
        units=plan.units - held,
        parameters_per_unit=plan.unit_parameters,
        replicated=plan.replicated_parameters + int(held @ plan.unit_parameters),
        names=tuple(group.name for group in plan.groups),
    )


FEW_UNITS = 8
"""Fewer units of a layer than this in a cell are told: a plan that left 1 to 7 hidden neurons to a cell promised
rounds 244 times as fast and trained to half of hierarchical FedAvg's accuracy. The presets leave 16 and more."""

HARDLY_CUT = (
    0.25  # of the parameters; below it even very many cells leave each more than three quarters of the model
)


def share_sentence(parameters: Ints, whole: int, *, varying: bool = False) -> str:
    """The share of the model's `whole` parameters that cells with `parameters` [cell] train; with `varying` sizes,
    which every round chooses anew, their mean."""
    shares = [f"{100 * float(value) / whole:.1f} %" for value in (parameters.min(), parameters.max())]
    of = f"of the model's {whole:,} parameters"
    if varying:
        return f"the cells train {100 * float(parameters.mean()) / whole:.1f} % {of} on average"
    if parameters.min() == whole:
        return f"each cell trains all {of}"
    if shares[0] == shares[1]:
        return f"each cell trains {shares[0]} {of}"
    return f"the cells train {shares[0]} to {shares[1]} {of}"


def misgivings(
    units: Ints, layer_units: Ints, names: Sequence[str], *, replicated: int, whole: int
) -> list[str]:
    """Why submodels may serve badly: cells hold few of the `layer_units` [layer] of layers `names`, `units`
    [cell, layer] with those that all hold, or nearly all parameters are among the `replicated` ones that none cuts."""
    found = []
    if units.size and (fewest := units.min(axis=0)).min() < FEW_UNITS:
        layer = int(fewest.argmin())
        most = int(units[:, layer].max())
        each = f"{fewest[layer]}" if most == fewest[layer] else f"{fewest[layer]} to {most}"
        found.append(
            f"a cell holds {each} of the {layer_units[layer]} units of layer {names[layer]!r}: submodels of fewer than "
            f"{FEW_UNITS} units of a layer may end far below the accuracy of hierarchical FedAvg, however fast their "
            "rounds are; use fewer cells a round or a wider layer, and compare with method.name = 'hfedavg'"
        )
    if names and whole - replicated < HARDLY_CUT * whole:
        found.append(
            f"hardly anything of the model can be cut: {replicated:,} of its {whole:,} parameters are in every cell, so "
            "that a round saves little over hierarchical FedAvg"
        )
    return found
