"""Submodel sizes and seconds a round of a model on a network, without training (HIST Sec. IV-B, V-E)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from histfl.arrays import Floats, Ints
from histfl.data import cifar10, fashion_mnist
from histfl.errors import PartitionError, UsageError
from histfl.limits import check_memory
from histfl.models import build_model, check_model_size
from histfl.network import Network
from histfl.partition import Plan, plan, shared_units, training_copy
from histfl.runs.build import build_encoding, build_participation, build_uplink
from histfl.runs.computing import CountedStep, build_computing, computing_json
from histfl.runs.config import Config
from histfl.runs.fit import check_parameters
from histfl.runs.named import build_network
from histfl.runs.sizes import coded, cut_layers, dealer_of, misgivings
from histfl.runs.work import check_network
from histfl.seeds import Seeds
from histfl.sizing import CutLayers, Policy, Sizes, SizingProblem, optimised, size, uniform
from histfl.training import CellSchedule
from histfl.training.codecs import Encoding
from histfl.training.jobs import CellLink
from histfl.training.methods import BASELINE, method_named
from histfl.wireless.clock import Clock
from histfl.wireless.costs import AffineCost, AnyCost, mean_cost
from histfl.wireless.uplinks import UPLINKS, Ideal, kind_of, plan_key

DEFAULT_DRAWS = 200
CELLS_DRAWN = 40_000  # a second or two of drawing; with many cells, a few draws tell the mean as well
MIN_DRAWS = 4
BYTES_A_DRAW = 500  # that are kept of it, besides a number a cell
ARMS = (BASELINE, "uniform", "optimised")
# The paper's; a run's own takes the place of the one of its kind, or comes beside them.
COMPARED = ("fdma", "aircomp")

_FASHION = ((1, fashion_mnist.SIDE, fashion_mnist.SIDE), len(fashion_mnist.CLASS_NAMES))
INPUTS: dict[str, tuple[tuple[int, ...], int]] = {  # data set: a sample's shape, the number of classes
    "fashion-mnist-mini": _FASHION,
    "fashion-mnist": _FASHION,
    "cifar10": ((cifar10.CHANNELS, cifar10.SIDE, cifar10.SIDE), len(cifar10.CLASS_NAMES)),
}


@dataclass(frozen=True)
class CutModel:
    """A model as planning sees it: the layers dealt out, the units [layer] that every cell holds besides,
    the number format of its parameters, and what torch counts in a local step."""

    name: str
    layers: CutLayers
    held: Ints
    plan: Plan
    dtype: torch.dtype
    step: CountedStep

    @property
    def parameters(self) -> int:
        """Of the full model."""
        return self.plan.num_parameters


@dataclass(frozen=True)
class CellSizes:
    """One choice of sizes: the units [cell, layer] a cell holds, and how its seconds [cell] come about.

    `compute` is what a cell would take if sending were free; sending adds the rest.
    """

    units: Ints
    sizes: Sizes
    compute: Floats

    @property
    def uplink(self) -> Floats:
        return self.sizes.seconds - self.compute

    def as_json(self) -> list[dict[str, Any]]:
        rows = zip(self.units, self.sizes.parameters, self.sizes.seconds, strict=True)
        return [{"units": u.tolist(), "parameters": int(p), "seconds": float(s)} for u, p, s in rows]


@dataclass(frozen=True)
class NetworkPlan:
    """What a network can do with a model.

    `seconds_per_round` are means over `draws` rounds, in which `optimised` chooses its sizes anew from
    that round's channels. `cells` are one choice for all these rounds, from the cells' mean costs with
    `uplink`. Where sizes are impossible, they are left out and `obstacle` says why.
    """

    cut: CutModel
    clients_per_cell: Ints
    uplink: str
    links: Mapping[str, str]  # the uplinks that are compared, by the names of `seconds_per_round`
    draws: int
    cap: float
    cells: Mapping[str, CellSizes]
    seconds_per_round: Mapping[str, float | None]
    obstacle: str | None
    computing: Mapping[str, Any]

    @property
    def num_cells(self) -> int:
        return len(self.clients_per_cell)

    @property
    def shares(self) -> dict[str, Floats]:
        """By choice of sizes, the share of the model's parameters that a cell trains, [cell]."""
        return {name: chosen.sizes.parameters / self.cut.parameters for name, chosen in self.cells.items()}

    @property
    def misgivings(self) -> list[str]:
        """Why the planned submodels may serve badly, whatever their seconds."""
        layers, held = self.cut.layers, self.cut.held
        return misgivings(
            np.concatenate([each.units for each in self.cells.values()]) if self.cells else np.array([]),
            layers.units + held,
            layers.names,
            replicated=int(layers.replicated - held @ layers.parameters_per_unit),
            whole=self.cut.parameters,
        )

    def as_json(self) -> dict[str, Any]:
        cells = {name: self.cells[name].as_json() if name in self.cells else None for name in ARMS[1:]}
        return {
            "model": self.cut.name,
            "parameters": self.cut.parameters,
            "cut": list(self.cut.layers.names),
            "uplink": self.uplink,
            "draws": self.draws,
            **self.computing,
            "clients_per_cell": self.clients_per_cell.tolist(),
            "cells": cells,
            "shares": {
                name: [float(share) for share in (held.min(), held.max())]
                for name, held in self.shares.items()
            },
            "seconds_by_part": {
                name: {"compute": chosen.compute.tolist(), "uplink": chosen.uplink.tolist()}
                for name, chosen in self.cells.items()
            },
            **self.answer_json(),
        }

    def answer_json(self) -> dict[str, Any]:
        """The plan without its cells."""
        best = self.cells.get("optimised")
        return {
            "seconds_per_round": dict(self.seconds_per_round),
            "cap": self.cap,
            "feasible": self.obstacle is None,
            "obstacle": self.obstacle,
            "warnings": self.misgivings,
            "certificate": best and {"lower_bound": best.sizes.bound, "gap": best.sizes.gap},
        }


def cut_model(
    config: Config, *, input_shape: Sequence[int] | None = None, classes: int | None = None
) -> CutModel:
    """The model that `config` names, cut as HIST would; no data are loaded.

    Its inputs are those of a known data set, or of `input_shape` (a sample's) and `classes`.
    """
    method = method_named(config.method.name)
    if method.scheme == "every":
        raise UsageError(
            f"method.name = {config.method.name!r}: where every layer is cut, sizes do not add up; plan hist or overlap"
        )
    known_shape, known_classes = INPUTS.get(config.data.name, (None, None))
    shape, num_classes = input_shape or known_shape, classes or known_classes
    if shape is None or num_classes is None:
        raise UsageError(
            f"the inputs of data set {config.data.name!r} are not known without loading it; "
            "give --input-shape and --classes, for example --input-shape 1,28,28 --classes 10"
        )
    seeds = Seeds(config.training.seed)
    name = config.to_call("model.name")
    check_model_size(name, config.model.options, shape, num_classes)
    model = build_model(name, config.model.options, shape, num_classes, seed=seeds.key("model"))
    dtype = check_parameters(model)
    inputs = torch.randn(2, *shape, generator=seeds.torch("example"), dtype=dtype)
    try:
        cut = plan(model, inputs, include=config.method.include, exclude=config.method.exclude)
    except PartitionError as error:
        planned = "x".join(map(str, shape))
        raise PartitionError(f"{error} (inputs here: {planned}; --input-shape gives others)") from None
    shared = dealer_of(config.method).shared
    if (shared_units(cut, shared) == cut.units).any():
        raise UsageError(f"method.shared = {shared:g}: a layer is shared whole and nothing is left to size")
    units = shared_units(cut, shared)
    step = CountedStep.of(training_copy(model), cut, inputs, config.training.batch_size)
    return CutModel(name, cut_layers(cut, shared), units, cut, dtype, step)


def check_size(config: Config, draws: int | None) -> int:
    """How many rounds to draw; a UsageError where the network, a round of it or the draws are more than this machine
    can hold."""
    num_cells = check_network(config, data=False)
    if draws is None:
        return max(MIN_DRAWS, min(DEFAULT_DRAWS, CELLS_DRAWN // num_cells))
    check_memory(
        f"--draws {draws:,} of {num_cells:,} cells",
        draws * (BYTES_A_DRAW + 8 * num_cells),
        f"take fewer: {DEFAULT_DRAWS} are the default",
    )
    return draws


def plan_network(
    config: Config, cut: CutModel, draws: int | None = None, at: Callable[[str], None] = lambda doing: None
) -> NetworkPlan:
    """Plan `cut` on the network of `config`, over `draws` rounds of participants and channels.

    They are the first rounds of a run with the same configuration, so that a plan foretells that run. `at` is told
    what is going on.
    """
    if config.network.active_cells != "all":
        raise UsageError(
            f"network.active_cells = {config.network.active_cells}: a plan sizes all cells of a network; "
            "leave the key out, or plan a network of as many cells"
        )
    if kind_of(config.uplink.name).instant:
        *first, last = (name for name, kind in UPLINKS.items() if not kind.instant)
        raise UsageError(
            f"uplink.name = {config.uplink.name!r} takes no time; a plan weighs computing against sending: use "
            f"{', '.join(first)} or {last}"
        )
    sizes = config.method.sizes
    if sizes not in ("uniform", "optimised"):
        raise UsageError(
            f"method.sizes = {sizes if isinstance(sizes, str) else list(sizes)}: a plan compares uniform with optimised sizes; leave the key out"
        )
    draws = check_size(config, draws)
    network = build_network(config)
    policies, obstacle = _policies(cut.layers, network.num_cells, config.method.cap)
    links = {plan_key(name): name for name in (*COMPARED, config.uplink.name)}
    encoding = build_encoding(config, cut.dtype, cut.plan.tensor_sizes)
    tally = _Tally(cut, encoding, policies, config.method.cap, links)
    for number, drawn in enumerate(_drawn(config, network, cut, encoding, draws, links), start=1):
        tally.add(drawn)
        at(f"{number:,} of {draws:,} draws")
    return NetworkPlan(
        cut=cut,
        clients_per_cell=network.clients_per_cell,
        uplink=config.uplink.name,
        links=links,
        draws=draws,
        cap=config.method.cap,
        cells=tally.cells(plan_key(config.uplink.name)),
        seconds_per_round=tally.seconds_per_round(),
        obstacle=obstacle,
        computing=computing_json(config, cut.step),
    )


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What a drawn round takes with an uplink: the `cost` by which its submodels are sized, and the `seconds` of
    submodels of so many parameters [cell] whose updates are coded [cell]."""

    cost: AnyCost
    seconds: Callable[[Ints, Floats], float]


class _Tally:
    """Adds up what the drawn rounds take."""

    def __init__(
        self,
        cut: CutModel,
        encoding: Encoding,
        policies: Mapping[str, Policy],
        cap: float,
        links: Collection[str],
    ) -> None:
        self.cut, self.encoding, self.policies, self.cap, self.links = cut, encoding, policies, cap, links
        self.seconds: dict[str, list[float]] = {f"{link}.{name}": [] for link in links for name in ARMS}
        self.costs: dict[str, list[AnyCost]] = {}
        self.found: dict[str, dict[str, float]] = {}

    def add(self, drawn: Mapping[str, _Drawn]) -> None:
        """One round: what it takes by uplink, and `compute` for no uplink at all."""
        before = {name: seen[-1] for name, seen in self.costs.items()}
        for name, found in drawn.items():
            self.costs.setdefault(name, []).append(found.cost)
        for uplink in [each for each in self.links if each in drawn]:
            if drawn[uplink].cost is not before.get(uplink):  # otherwise what was found for it holds again
                self.found[uplink] = self._slowest(drawn[uplink])
            for arm, seconds in self.found[uplink].items():
                self.seconds[f"{uplink}.{arm}"].append(seconds)

    def _slowest(self, drawn: _Drawn) -> dict[str, float]:
        """Seconds of a round by arm."""
        plan, cells = self.cut.plan, drawn.cost.num_cells
        problem = SizingProblem(self.cut.layers, drawn.cost, self.cap)
        units = {name: policy(problem) + self.cut.held for name, policy in self.policies.items()}
        units[BASELINE] = np.tile(plan.units, (cells, 1))
        return {
            name: drawn.seconds(plan.sizes(each), coded(self.encoding, plan, each))
            for name, each in units.items()
        }

    def seconds_per_round(self) -> dict[str, float | None]:
        return {name: float(np.mean(each)) if each else None for name, each in self.seconds.items()}

    def cells(self, uplink: str) -> dict[str, CellSizes]:
        """One choice of sizes for all rounds, by the mean costs."""
        problem = SizingProblem(self.cut.layers, mean_cost(self.costs[uplink]), self.cap)
        compute = mean_cost(self.costs["compute"])
        found = {name: size(problem, policy) for name, policy in self.policies.items()}
        return {
            name: CellSizes(sizes.counts + self.cut.held, sizes, compute.seconds(sizes.parameters))
            for name, sizes in found.items()
        }


def _drawn(
    config: Config,
    network: Network,
    cut: CutModel,
    encoding: Encoding,
    draws: int,
    links: Mapping[str, str],
) -> Iterator[dict[str, _Drawn]]:
    """What each drawn round takes, by uplink, and `compute` alone."""
    bits = encoding.bits_per_parameter
    computing = build_computing(config, cut.parameters, cut.step)
    clocks = {"compute": Clock(computing, Ideal())}
    for key, name in links.items():
        try:
            clocks[key] = Clock(computing, build_uplink(_with_uplink(config, name), bits))
        except UsageError:  # such as a band too narrow for the air, which is only compared
            if name == config.uplink.name:
                raise
    # Over the air the time depends on no channel, and a draw would optimise every beam in vain.
    drawn = [key for key, name in links.items() if key in clocks and not UPLINKS[name].undrawn_time]
    participation = build_participation(config)
    participation.check(network)
    seeds = Seeds(config.training.seed)
    nothing = [None] * network.num_cells
    for t in range(draws):
        if t == 0 or participation.per_cell is not None:  # otherwise the same clients send in every round
            schedules = participation.schedules(network, config.training.edge_rounds, t, seeds)
            undrawn = {
                key: _round(clock, network, schedules, nothing)
                for key, clock in clocks.items()
                if key not in drawn
            }
        found = dict(undrawn)
        for key in drawn:
            links_drawn = clocks[key].uplink.draw(network, schedules, t, seeds)
            found[key] = _round(clocks[key], network, schedules, links_drawn)
        yield found


def _round(
    clock: Clock, network: Network, schedules: Sequence[CellSchedule], links: Sequence[CellLink]
) -> _Drawn:
    cost = clock.cost_by_size(network, schedules, links)
    return _Drawn(cost, partial(clock.foretold, cost, network, schedules, links))


def _with_uplink(config: Config, name: str) -> Config:
    return config.model_copy(update={"uplink": config.uplink.model_copy(update={"name": name})})


def _policies(layers: CutLayers, num_cells: int, cap: float) -> tuple[dict[str, Policy], str | None]:
    """The policies that are possible, and why another is not."""
    anything = AffineCost(np.zeros(num_cells), np.ones(num_cells))
    try:
        SizingProblem(layers, anything, cap).caps()
    except PartitionError as error:  # fewer units than cells
        return {}, str(error)
    except UsageError as error:  # the cap leaves units over
        return {"uniform": uniform}, str(error)
    return {"uniform": uniform, "optimised": optimised}, None
