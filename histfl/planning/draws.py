"""The rounds of participants and channels that a plan draws, and what each of them takes on the uplinks it compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from histfl.arrays import Ints
from histfl.errors import UsageError
from histfl.network import Network
from histfl.partition import Plan
from histfl.planning.cut import CutModel
from histfl.runs.build import build_encoding, build_participation, build_uplink
from histfl.runs.computing import build_computing
from histfl.runs.config import Config
from histfl.runs.records import megabytes_sent
from histfl.runs.sections import CodecSettings
from histfl.runs.sizes import update_bits
from histfl.seeds import Seeds
from histfl.training import CellSchedule
from histfl.training.codecs import Encoding
from histfl.training.jobs import CellLink
from histfl.wireless.clock import Clock
from histfl.wireless.costs import AnyCost
from histfl.wireless.uplinks import UPLINKS, Ideal


@dataclass(frozen=True)
class Arm:
    """What the rounds of a run are counted with: its clock, and what its clients' updates take."""

    clock: Clock
    encoding: Encoding

    def drawn(
        self, network: Network, schedules: Sequence[CellSchedule], links: Sequence[CellLink]
    ) -> DrawnRound:
        """A round with these participants and channels."""
        return DrawnRound(self, network, schedules, links, self.clock.cost_by_size(network, schedules, links))


@dataclass(frozen=True, eq=False)
class DrawnRound:
    """A round whose participants and channels are drawn; `cost` is that by which its submodels are sized."""

    arm: Arm
    network: Network
    schedules: Sequence[CellSchedule]
    links: Sequence[CellLink]
    cost: AnyCost

    def spent(self, plan: Plan, choices: Mapping[str, Ints]) -> dict[str, dict[str, float]]:
        """By the name of a choice of units [cell, layer]: what a run would record of such a round, by the names of a
        plan's means."""
        clock, encoding = self.arm.clock, self.arm.encoding
        drawn = self.network, self.schedules, self.links
        transmissions = [schedule.transmissions for schedule in self.schedules]
        parameters = np.array([plan.sizes(units) for units in choices.values()])
        bits = np.array([update_bits(encoding, plan, units) for units in choices.values()])
        coded = encoding.coded(parameters, bits)
        joules = clock.joules(*drawn, parameters, coded)
        each = zip(choices, parameters, bits, coded, joules, strict=True)
        return {
            name: {
                "seconds_per_round": clock.foretold(self.cost, *drawn, sizes, own_coded),
                **megabytes_sent(encoding, self.network.num_clients, transmissions, sizes, own_bits),
                "energy_joules": float(energy),
            }
            for name, sizes, own_bits, own_coded, energy in each
        }


def drawn_rounds(
    config: Config, network: Network, cut: CutModel, draws: int, links: Mapping[str, str]
) -> Iterator[dict[str, DrawnRound]]:
    """The first `draws` rounds of a run with `config` by the `links` over which there can be one, and `compute` with
    no uplink at all."""
    arms = _arms(config, cut, links)
    # Over the air the time depends on no channel, and a draw would optimise every beam in vain.
    drawn = [key for key, name in links.items() if key in arms and not UPLINKS[name].undrawn_time]
    participation = build_participation(config)
    participation.check(network)
    seeds = Seeds(config.training.seed)
    nothing = [None] * network.num_cells
    for t in range(draws):
        if t == 0 or participation.per_cell is not None:  # otherwise the same clients send in every round
            schedules = participation.schedules(network, config.training.edge_rounds, t, seeds)
            undrawn = {
                key: arm.drawn(network, schedules, nothing) for key, arm in arms.items() if key not in drawn
            }
        found = dict(undrawn)
        for key in drawn:
            links_drawn = arms[key].clock.uplink.draw(network, schedules, t, seeds)
            found[key] = arms[key].drawn(network, schedules, links_drawn)
        yield found


def _arms(config: Config, cut: CutModel, links: Mapping[str, str]) -> dict[str, Arm]:
    """Those of runs over the `links`, by their names there, and `compute` with no uplink at all."""

    def encoding(of: Config) -> Encoding:
        return build_encoding(of, cut.dtype, cut.plan.tensor_sizes)

    computing = build_computing(config, cut.parameters, cut.step)
    arms = {"compute": Arm(Clock(computing, Ideal()), encoding(config))}
    for key, name in links.items():
        own = _with_uplink(config, name)
        try:
            uplink = build_uplink(own, encoding(own).bits_per_parameter)
        except UsageError:  # such as a band too narrow for the air, which is only compared
            if name == config.uplink.name:
                raise
        else:
            arms[key] = Arm(Clock(computing, uplink), encoding(own))
    return arms


def _with_uplink(config: Config, name: str) -> Config:
    """The configuration of a run over that uplink, which has no codec where no bits are sent."""
    changed: dict[str, object] = {"uplink": config.uplink.model_copy(update={"name": name})}
    if UPLINKS[name].analog:
        changed["codec"] = CodecSettings()
    return config.model_copy(update=changed)
