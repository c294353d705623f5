"""From the full model to a cell's compact submodel (HIST Eq. (4))."""

from __future__ import annotations

from math import prod

from histfl.partition.draw import Submodel
from histfl.partition.units import State


def extract(state: State, submodel: Submodel) -> State:
    """The kept entries of every tensor in `state`, as new compact tensors.

    `state` may hold any of the model's parameters: the trainable ones, the frozen ones or all.
    """
    compact: State = {}
    for name, value in state.items():
        axes = submodel.positions_on(value.device).get(name)
        if axes is None:
            compact[name] = value.clone()
            continue
        for axis, positions in axes.items():
            value = value.index_select(axis, positions)
        compact[name] = value
    return compact


def num_parameters(submodel: Submodel) -> int:
    """Trainable parameters of the submodel: what a client trains and sends."""
    return sum(_numel(submodel, name) for name in submodel.plan.trainable)


def _numel(submodel: Submodel, name: str) -> int:
    lengths = list(submodel.plan.shapes[name])
    for axis, positions in submodel.positions.get(name, {}).items():
        lengths[axis] = len(positions)
    return prod(lengths)
