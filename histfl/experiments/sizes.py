"""How a run chooses its submodels' sizes, anew in every global round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from histfl.errors import UsageError
from histfl.experiments.config import MethodSettings
from histfl.network import Network
from histfl.partition import Plan, shared_units
from histfl.sizing import CutLayers, SizingProblem, policy_named
from histfl.sizing.uplinks import uplink_cost
from histfl.training import CellSchedule, Uplink
from histfl.training.hist import SizeChoice, SizePolicy
from histfl.training.jobs import CellLink
from histfl.training.methods import METHODS


def size_policy(
    settings: MethodSettings, plan: Plan, network: Network, uplink: Uplink, *, shared: float
) -> SizePolicy:
    """The policy that `method.sizes` names, over the units of `plan` that are not shared."""
    if not plan.groups:
        nothing = SizeChoice(np.zeros((network.num_cells, 0), dtype=np.int64))
        return lambda schedules, links: nothing
    measured = settings.sizes in ("optimised", "proportional")
    if measured and METHODS[settings.name].scheme == "every":
        raise UsageError(
            f"method.sizes = {settings.sizes!r} with method.name = {settings.name!r}: where every layer is cut, "
            "sizes do not add up; use uniform or a list of shares"
        )
    policy = policy_named(settings.sizes)
    layers, held = cut_layers(plan, shared), shared_units(plan, shared)

    def choose(schedules: Sequence[CellSchedule], links: Sequence[CellLink]) -> SizeChoice:
        cost = uplink_cost(uplink, network, schedules, links)
        counts = policy(SizingProblem(layers, cost, settings.cap))
        return SizeChoice(counts, float(cost.seconds(plan.sizes(counts + held)).max()))

    return choose


def cut_layers(plan: Plan, shared: float = 0.0) -> CutLayers:
    """What `plan` deals out, as the sizing algorithms see it; shared units count as replicated."""
    held = shared_units(plan, shared)
    return CutLayers(
        units=plan.units - held,
        parameters_per_unit=plan.unit_parameters,
        replicated=plan.replicated_parameters + int(held @ plan.unit_parameters),
        names=tuple(group.name for group in plan.groups),
    )
