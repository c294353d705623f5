"""Cutting any model into disjoint compact submodels (HIST Sec. II-B)."""

from histfl.partition.deal import (
    check_enough_units,
    deal_evenly,
    draw,
    even_counts,
    share_counts,
    shared_units,
)
from histfl.partition.discover import discover
from histfl.partition.module import (
    copy_of,
    has_batch_statistics,
    is_group_norm,
    recompute_statistics,
    training_copy,
    with_tensors,
)
from histfl.partition.plan import CutAxis, Plan, State, UnitGroup
from histfl.partition.planner import Scheme, choose, conflict, plan
from histfl.partition.submodel import Submodel, extract, masks, merge, num_parameters

__all__ = [
    "CutAxis",
    "Plan",
    "Scheme",
    "State",
    "Submodel",
    "UnitGroup",
    "check_enough_units",
    "choose",
    "conflict",
    "copy_of",
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
