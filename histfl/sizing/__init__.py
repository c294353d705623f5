"""How large each cell's submodel should be: HIST Sec. IV-B and V-E."""

from histfl.sizing.costs import AffineCost, AirCompCost, AnyCost, Cost, TabulatedCost, mean_cost
from histfl.sizing.holding import misgivings, share_sentence
from histfl.sizing.layers import optimal_counts
from histfl.sizing.milp import MilpResult, solve_milp
from histfl.sizing.policies import (
    POLICIES,
    Policy,
    optimised,
    policy_named,
    proportional,
    size,
    uniform,
)
from histfl.sizing.problem import CutLayers, Sizes, SizingProblem, cap_ratio, imbalance
from histfl.sizing.thresholds import optimal_sizes

__all__ = [
    "POLICIES",
    "AffineCost",
    "AirCompCost",
    "AnyCost",
    "Cost",
    "CutLayers",
    "MilpResult",
    "Policy",
    "Sizes",
    "SizingProblem",
    "TabulatedCost",
    "cap_ratio",
    "imbalance",
    "mean_cost",
    "misgivings",
    "optimal_counts",
    "optimal_sizes",
    "optimised",
    "policy_named",
    "proportional",
    "share_sentence",
    "size",
    "solve_milp",
    "uniform",
]
