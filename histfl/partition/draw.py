"""Dealing out the units of a plan at random, anew in every global round (HIST Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from histfl.devices import moved
from histfl.errors import PartitionError
from histfl.network.network import Ints
from histfl.partition.counts import shared_units
from histfl.partition.plan import Plan

Positions = dict[str, dict[int, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class Submodel:
    """What one cell holds: `kept` has a sorted int64 tensor of units for each group of the plan."""

    plan: Plan
    kept: tuple[torch.Tensor, ...]

    @cached_property
    def positions(self) -> Positions:
        """The kept positions, sorted int64, of every cut parameter and cut axis of it."""
        found: Positions = {}
        for (parameter, axis), cuts in self.plan.cuts.items():
            group, cut = cuts[0]
            if len(cuts) == 1 and cut.one_to_one:
                found.setdefault(parameter, {})[axis] = self.kept[group]
                continue
            mask = torch.ones(len(cut.unit), dtype=torch.bool)
            for group, cut in cuts:
                # One entry more than units, always kept: index -1 (no unit of this group) finds it.
                keep = torch.zeros(self.plan.groups[group].num_units + 1, dtype=torch.bool)
                keep[self.kept[group]] = True
                keep[-1] = True
                mask &= keep[cut.unit]
            found.setdefault(parameter, {})[axis] = mask.nonzero().squeeze(1)
        return found

    def positions_on(self, device: torch.device) -> Positions:
        """The same on a device, to which all of them go in one copy, once."""
        if device.type == "cpu" or not self.positions:
            return self.positions
        if device not in self._moved:
            different = {id(kept): kept for axes in self.positions.values() for kept in axes.values()}
            together = moved(torch.cat(list(different.values())), device)
            there = dict(
                zip(different, together.split([len(kept) for kept in different.values()]), strict=True)
            )
            self._moved[device] = {
                name: {axis: there[id(kept)] for axis, kept in axes.items()}
                for name, axes in self.positions.items()
            }
        return self._moved[device]

    @cached_property
    def _moved(self) -> dict[torch.device, Positions]:
        return {}


def draw(
    plan: Plan, counts: Ints, generator: np.random.Generator, *, shared: float = 0.0
) -> tuple[Submodel, ...]:
    """A random submodel for each cell: counts[cell, group] units of its own, and the shared ones.

    The units of each group are put in random order and cut into consecutive runs, so that every unit
    belongs to exactly one cell. `shared` is the fraction of units that every cell holds besides (the
    partial overlap of a footnote in HIST Sec. VI-B); only the rest is dealt out.
    """
    common = shared_units(plan, shared)
    _check(plan, counts, common)
    hands = [
        _deal(int(plan.units[group]), counts[:, group], int(common[group]), generator)
        for group in range(len(plan.groups))
    ]
    return tuple(Submodel(plan, tuple(hand[cell] for hand in hands)) for cell in range(len(counts)))


def _deal(
    num_units: int, counts: Ints, num_shared: int, generator: np.random.Generator
) -> tuple[torch.Tensor, ...]:
    """Sorted units for each cell; owner 0 stands for everybody."""
    owner = np.empty(num_units, dtype=np.int64)
    owner[generator.permutation(num_units)] = np.repeat(
        np.arange(len(counts) + 1), np.concatenate(([num_shared], counts))
    )
    # A stable sort by owner leaves the units of one owner in ascending order.
    by_owner = torch.from_numpy(np.argsort(owner, kind="stable"))
    common, *own = torch.split(by_owner, [num_shared, *counts.tolist()])
    if num_shared == 0:
        return tuple(own)
    return tuple(torch.cat((common, units)).sort().values for units in own)


def _check(plan: Plan, counts: Ints, common: Ints) -> None:
    if counts.ndim != 2 or counts.shape[1] != len(plan.groups) or len(counts) == 0:
        raise PartitionError(
            f"counts has shape {counts.shape}; it needs one row a cell and one column for each of the "
            f"{len(plan.groups)} cut layers"
        )
    for group, own, num_shared in zip(plan.groups, counts.T, common, strict=True):
        if own.min() < 0 or own.min() + num_shared < 1:
            raise PartitionError(
                f"cell {own.argmin()} gets {own.min()} units of layer {group.name!r}; every cell needs at "
                f"least one"
            )
        if own.sum() + num_shared != group.num_units:
            raise PartitionError(
                f"layer {group.name!r} has {group.num_units} units, of which {num_shared} are shared, but "
                f"the counts deal out {own.sum()}; they must add up to {group.num_units - num_shared}"
            )
