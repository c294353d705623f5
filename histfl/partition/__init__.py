"""Cutting any model into disjoint compact submodels (HIST Sec. II-B)."""

from histfl.partition.deal import (
    check_enough_units,
    deal_evenly,
    draw,
    even_counts,
    share_counts,
    shared_units,
    width_counts,
    windows,
)
from histfl.partition.module import (
    copy_of,
    has_batch_statistics,
    is_group_norm,
    recompute_statistics,
    training_copy,
    with_tensors,
)
from histfl.partition.plan import Plan, State
from histfl.partition.planner import Scheme, plan
from histfl.partition.submodel import Submodel, extract, merge, num_parameters, put_back, tensor_sizes

__all__ = [
    "Plan",
    "Scheme",
    "State",
    "Submodel",
    "check_enough_units",
    "copy_of",
    "deal_evenly",
    "draw",
    "even_counts",
    "extract",
    "has_batch_statistics",
    "is_group_norm",
    "merge",
    "num_parameters",
    "plan",
    "put_back",
    "recompute_statistics",
    "share_counts",
    "shared_units",
    "tensor_sizes",
    "training_copy",
    "width_counts",
    "windows",
    "with_tensors",
]
