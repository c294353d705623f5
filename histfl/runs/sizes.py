"""How a run chooses its submodels' sizes, anew in every global round, and what its cells then hold of the model, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from histfl.arrays import Floats, Ints
from histfl.errors import UsageError
from histfl.factories import call_factory
from histfl.network import Network
from histfl.partition import Plan, even_counts, share_counts, shared_units, width_counts
from histfl.runs.config import Config
from histfl.runs.plain_sections import MethodSettings
from histfl.sizing import UNIFORM, CutLayers, Policy, SizingProblem, counted, policy_named
from histfl.training import CellSchedule
from histfl.training.codecs import Encoding
from histfl.training.dealers import Dealer, Method, check_dealer
from histfl.training.hist import Hist, SizeChoice, SizePolicy
from histfl.training.jobs import CellLink
from histfl.training.methods import method_named
from histfl.wireless.clock import Clock
from histfl.wireless.costs import Cost

_Counts = Callable[[Sequence[CellSchedule], Cost], Ints]  # units [cell, group] of a round's cells


def size_policy(
    settings: MethodSettings,
    plan: Plan,
    network: Network,
    clock: Clock,
    *,
    method: Method,
    dealer: Dealer,
    num_active: int,
    encoding: Encoding,
    policy: Policy | None = None,
) -> SizePolicy:
    """The `policy` that is given, or the one that `method.sizes` names, over the units of `plan` that the method's
    `dealer` deals to the `num_active` cells of a round; `encoding` says what the updates of their submodels take."""
    if plan.groups and isinstance(settings.sizes, tuple):
        check_shares(settings, network.num_cells, dealer)
    elif plan.groups and settings.sizes != UNIFORM and method.scheme == "every":
        raise UsageError(
            f"method.sizes = {settings.sizes!r} with method.name = {settings.name!r}: where every layer is cut, "
            "sizes do not add up; use uniform or a list of shares"
        )
    counts_for = _counts(settings, plan, num_active, dealer, policy)
    held = shared_units(plan, dealer.shared)
    capped = isinstance(settings.sizes, str) and settings.sizes != UNIFORM and plan.groups
    cap = settings.cap if capped else None

    def choose(schedules: Sequence[CellSchedule], links: Sequence[CellLink]) -> SizeChoice:
        cost = clock.cost_by_size(network, schedules, links)
        counts = counts_for(schedules, cost)
        whole = counts + held
        bits = coded(encoding, plan, whole)
        seconds = clock.foretold(cost, network, schedules, links, plan.sizes(whole), bits)
        return SizeChoice(counts, seconds, cap)

    return choose


def coded(encoding: Encoding, plan: Plan, counts: Ints) -> Floats:
    """What the updates of cells with counts[cell, group] units take, in bits of as many average numbers, [cell]."""
    if not plan.groups:
        return np.ones(len(counts))
    return encoding.coded(plan.sizes(counts), update_bits(encoding, plan, counts))


def update_bits(encoding: Encoding, plan: Plan, counts: Ints) -> Floats:
    """What one update of a client takes in cells with counts[cell, group] units of one group at least, [cell]."""
    unlike, place = np.unique(counts, axis=0, return_inverse=True)
    bits = np.array([encoding.bits(sizes) for sizes in plan.tensor_sizes_at(unlike).tolist()])
    return np.asarray(bits[place.reshape(-1)])


def _counts(
    settings: MethodSettings, plan: Plan, num_active: int, dealer: Dealer, own: Policy | None
) -> _Counts:
    """Sizes by name or by the shares [cell of the network]; the uniform ones are the same in every round."""
    if settings.sizes == UNIFORM or not plan.groups:
        even = uniform_counts(plan, num_active, dealer)
        return lambda schedules, cost: even
    if isinstance(settings.sizes, tuple):
        shares = np.array(settings.sizes)
        return lambda schedules, cost: _listed(
            plan, shares[[schedule.cell for schedule in schedules]], dealer
        )
    policy = policy_named(settings.sizes) if own is None else own
    layers = cut_layers(plan, dealer.shared)
    return lambda schedules, cost: counted(policy, SizingProblem(layers, cost, settings.cap))


def uniform_counts(plan: Plan, num_cells: int, dealer: Dealer) -> Ints:
    """The units [cell, group] of cells of equal size, besides shared ones."""
    if dealer.covers:
        return even_counts(plan, num_cells, shared=dealer.shared)
    return width_counts(plan, np.full(num_cells, 1 / num_cells))


def _listed(plan: Plan, shares: Floats, dealer: Dealer) -> Ints:
    """The units [cell, group] of cells with those shares, [cell]."""
    if dealer.covers:
        return share_counts(plan, shares, shared=dealer.shared)
    return width_counts(plan, shares)


def holding(config: Config, run: Hist) -> tuple[str, list[str]]:
    """What a run says at its start: the share of the model that its cells train, and why these may serve badly."""
    settings, rounds = config.method, config.training.rounds
    plan, cells, dealer = run.plan, run.network.num_cells, run.dealer
    active = run.participation.num_cells(run.network)
    listed = isinstance(settings.sizes, tuple) and (active == cells or not dealer.covers)
    if listed and plan.groups:
        counts = _listed(plan, np.array(settings.sizes), dealer)
    else:  # what the sizes of a round, chosen then, are on average
        counts = uniform_counts(plan, active, dealer)
    units = counts + shared_units(plan, dealer.shared)
    varying = bool(plan.groups) and settings.sizes != "uniform" and not listed
    names = [group.name for group in plan.groups]
    doubts = misgivings(
        units, plan.units, names, replicated=plan.replicated_parameters, whole=plan.num_parameters
    )
    return share_sentence(plan.sizes(units), plan.num_parameters, varying=varying), [
        *doubts,
        *_left_out(dealer.reached(units, rounds), plan.units, names, rounds),
    ]


def dealer_of(settings: MethodSettings, method: Method | None = None) -> Dealer:
    """Who deals the units to the cells: the dealer of `method`, or of the one that is named."""
    method = method or method_named(settings.name)
    return check_dealer(call_factory(method.dealer, {}, settings.values(), place=f"method {settings.name!r}"))


def check_shares(settings: MethodSettings, num_cells: int, dealer: Dealer) -> None:
    """A UsageError where `method.sizes` is a list, and not one of a share a cell that the method can give it."""
    if not isinstance(settings.sizes, tuple):
        return
    if len(settings.sizes) != num_cells:
        raise UsageError(
            f"method.sizes has {len(settings.sizes)} shares for {num_cells} cells; give one share a cell"
        )
    if max(settings.sizes) > 1 and not dealer.covers:
        raise UsageError(
            f"method.sizes = {list(settings.sizes)} with method.name = {settings.name!r}: there a share is the part of "
            "every cut layer that the cell holds; give shares of at most 1"
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


def _left_out(reached: Ints | None, layer_units: Ints, names: Sequence[str], rounds: int) -> list[str]:
    """What to say of units [layer] that no cell ever holds, where these reach over the first of them alone."""
    if reached is None or not (left := np.maximum(layer_units - reached, 0)).size or not left.any():
        return []
    layer = int((left / layer_units).argmax())
    return [
        f"in {rounds:,} rounds no cell holds {left[layer]:,} of the {layer_units[layer]:,} units of layer "
        f"{names[layer]!r}: they stay as they started, and the whole model, which is tested, has them; give a cell a "
        "larger share (method.sizes), or let windows move faster (method.roll of rolling)"
    ]


FEW_UNITS = 8
"""Fewer units of a layer than this in a cell are told: a plan that left 1 to 7 hidden neurons to a cell promised
rounds 244 times as fast and trained to half of hierarchical FedAvg's accuracy. The presets leave 16 and more."""

HARDLY_CUT = 0.25  # of the parameters; below it even very many cells leave each more than 3/4 of the model


def share_sentence(parameters: Ints, whole: int, *, varying: bool = False) -> str:
    """The share of the model's `whole` parameters that cells with `parameters` [cell] train; with `varying` sizes,
    which every round chooses anew, their mean."""
    shares = [f"{float(value) / whole:.1%}" for value in (parameters.min(), parameters.max())]
    of = f"of the model's {whole:,} parameters"
    if varying:
        return f"the cells train {float(parameters.mean()) / whole:.1%} {of} on average"
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
