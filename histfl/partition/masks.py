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
    plan = submodel.plan
    found: State = {}
    for name, shape in plan.shapes.items():
        mask = torch.ones(shape, dtype=plan.dtypes[name])
        for axis, positions in submodel.positions.get(name, {}).items():
            line = torch.zeros(shape[axis], dtype=mask.dtype)
            line[positions] = 1
            mask *= line.reshape([-1 if other == axis else 1 for other in range(len(shape))])
        found[name] = mask
    return found
