"""Cutting any model into disjoint compact submodels (HIST Sec. II-B)."""

from histfl.partition.batchnorm import has_batch_statistics, recompute_statistics, training_copy
from histfl.partition.choose import Scheme, choose, conflict
from histfl.partition.counts import (
    check_enough_units,
    deal_by_shares,
    deal_evenly,
    even_counts,
    share_counts,
    shared_units,
)
from histfl.partition.discover import discover
from histfl.partition.draw import Submodel, draw
from histfl.partition.extract import extract, num_parameters
from histfl.partition.forward import Inputs, copy_of, with_tensors
from histfl.partition.layers import is_group_norm
from histfl.partition.masks import masks
from histfl.partition.merge import merge
from histfl.partition.plan import Plan
from histfl.partition.planner import plan
from histfl.partition.units import CutAxis, State, UnitGroup

__all__ = [
    "CutAxis",
    "Inputs",
    "Plan",
    "Scheme",
    "State",
    "Submodel",
    "UnitGroup",
    "check_enough_units",
    "choose",
    "conflict",
    "copy_of",
    "deal_by_shares",
    "deal_evenly",
    "discover",
    "draw",
    "even_counts",
    "extract",
    "has_batch_statistics",
    "is_group_norm",
    "masks",
    "merge",
    "num_parameters",
    "plan",
    "recompute_statistics",
    "share_counts",
    "shared_units",
    "training_copy",
    "with_tensors",
]
