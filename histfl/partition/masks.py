"""Masks of the full model's shape: the oracle that compact submodels are compared with.

Nothing trains with masks. They are the p_j of HIST Eqs. (2) and (3), and serve tests and the check
that a layer may be cut.
"""

from __future__ import annotations

import torch

from histfl.partition.draw import Submodel
from histfl.partition.units import State


def masks(submodel: Submodel) -> State:
    """For every parameter of the model a 0/1 tensor of its shape and dtype: 1 where the cell holds it."""
    return {name: mask(submodel, name) for name in submodel.plan.shapes}


def mask(submodel: Submodel, name: str) -> torch.Tensor:
    """The mask of one parameter."""
    shape = submodel.plan.shapes[name]
    ones = torch.ones(shape, dtype=submodel.plan.dtypes[name])
    for axis, positions in submodel.positions.get(name, {}).items():
        line = torch.zeros(shape[axis], dtype=ones.dtype)
        line[positions] = 1
        ones *= line.reshape([-1 if other == axis else 1 for other in range(len(shape))])
    return ones
