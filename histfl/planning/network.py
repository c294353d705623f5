"""Submodel sizes of a model on a network and what a round takes, without training (HIST Sec. IV-B, V-E)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from histfl.arrays import Floats, Ints
from histfl.errors import PartitionError, UsageError
from histfl.limits import check_memory
from histfl.planning.cut import CutModel
from histfl.planning.draws import DrawnRound, drawn_rounds
from histfl.runs.computing import computing_json
from histfl.runs.config import Config
from histfl.runs.named import build_network
from histfl.runs.sizes import misgivings
from histfl.runs.work import check_network
from histfl.sizing import CutLayers, Policy, Sizes, SizingProblem, optimised, size, uniform
from histfl.training.methods import BASELINE
from histfl.wireless.costs import AffineCost, AnyCost, mean_cost
from histfl.wireless.uplinks import UPLINKS, kind_of, plan_key

DEFAULT_DRAWS = 200
CELLS_DRAWN = 40_000  # a second or two of drawing; with many cells, a few draws tell the mean as well
MIN_DRAWS = 4
BYTES_A_DRAW = 1500  # that are kept of it, besides a number a cell
ARMS = (BASELINE, "uniform", "optimised")
# The paper's; a run's own takes the place of the one of its kind, or comes beside them.
COMPARED = ("fdma", "aircomp")
SPENT = ("seconds_per_round", "megabytes_per_client", "edge_cloud_megabytes", "energy_joules")


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

    What a round takes, by uplink and choice of sizes, are means over `draws` rounds, in which `optimised`
    chooses its sizes anew from that round's channels: seconds; the megabytes (2^20 bytes) that a client sends
    its edge, the mean over all clients, and that all edges send the cloud; the joules of all clients. `cells`
    are one choice for all these rounds, from the cells' mean costs with `uplink`. Where sizes are impossible,
    they are left out and `obstacle` says why.
    """

    cut: CutModel
    clients_per_cell: Ints
    uplink: str
    links: Mapping[str, str]  # the uplinks that are compared, by the names of `seconds_per_round`
    draws: int
    cap: float
    cells: Mapping[str, CellSizes]
    seconds_per_round: Mapping[str, float | None]
    megabytes_per_client: Mapping[str, float | None]
    edge_cloud_megabytes: Mapping[str, float | None]
    energy_joules: Mapping[str, float | None]
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
            **{name: dict(getattr(self, name)) for name in SPENT},
            "cap": self.cap,
            "feasible": self.obstacle is None,
            "obstacle": self.obstacle,
            "warnings": self.misgivings,
            "certificate": best and {"lower_bound": best.sizes.bound, "gap": best.sizes.gap},
        }


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
    tally = _Tally(cut, policies, config.method.cap, links)
    for number, drawn in enumerate(drawn_rounds(config, network, cut, draws, links), start=1):
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
        **{name: tally.means(name) for name in SPENT},
        obstacle=obstacle,
        computing=computing_json(config, cut.step),
    )


class _Tally:
    """Adds up what the drawn rounds take."""

    def __init__(
        self,
        cut: CutModel,
        policies: Mapping[str, Policy],
        cap: float,
        links: Collection[str],
    ) -> None:
        self.cut, self.policies, self.cap, self.links = cut, policies, cap, links
        arms = [f"{link}.{name}" for link in links for name in ARMS]
        self.spent: dict[str, dict[str, list[float]]] = {what: {arm: [] for arm in arms} for what in SPENT}
        self.costs: dict[str, list[AnyCost]] = {}
        self.found: dict[str, dict[str, dict[str, float]]] = {}

    def add(self, drawn: Mapping[str, DrawnRound]) -> None:
        """One round: what it takes by uplink, and `compute` for no uplink at all."""
        before = {name: seen[-1] for name, seen in self.costs.items()}
        for name, found in drawn.items():
            self.costs.setdefault(name, []).append(found.cost)
        for uplink in [each for each in self.links if each in drawn]:
            if drawn[uplink].cost is not before.get(uplink):  # otherwise what was found for it holds again
                self.found[uplink] = self._spent(drawn[uplink])
            for arm, spent in self.found[uplink].items():
                for what, number in spent.items():
                    self.spent[what][f"{uplink}.{arm}"].append(number)

    def _spent(self, drawn: DrawnRound) -> dict[str, dict[str, float]]:
        """What a round takes by choice of sizes."""
        plan, cells = self.cut.plan, drawn.cost.num_cells
        problem = SizingProblem(self.cut.layers, drawn.cost, self.cap)
        units = {name: policy(problem) + self.cut.held for name, policy in self.policies.items()}
        units[BASELINE] = np.tile(plan.units, (cells, 1))
        return drawn.spent(plan, units)

    def means(self, what: str) -> dict[str, float | None]:
        """By uplink and choice of sizes."""
        return {arm: float(np.mean(each)) if each else None for arm, each in self.spent[what].items()}

    def cells(self, uplink: str) -> dict[str, CellSizes]:
        """One choice of sizes for all rounds, by the mean costs."""
        problem = SizingProblem(self.cut.layers, mean_cost(self.costs[uplink]), self.cap)
        compute = mean_cost(self.costs["compute"])
        found = {name: size(problem, policy) for name, policy in self.policies.items()}
        return {
            name: CellSizes(sizes.counts + self.cut.held, sizes, compute.seconds(sizes.parameters))
            for name, sizes in found.items()
        }


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
