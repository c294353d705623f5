"""How large each cell's submodel should be: HIST Sec. IV-B and V-E."""

from histfl.sizing.milp import solve_milp
from histfl.sizing.policies import (
    POLICIES,
    UNIFORM,
    Policy,
    optimised,
    policy_named,
    proportional,
    size,
    uniform,
)
from histfl.sizing.problem import CutLayers, Sizes, SizingProblem, cap_ratio, imbalance
from histfl.sizing.solve import optimal_counts, optimal_sizes
from histfl.wireless.costs import AffineCost, AirCompCost, AnyCost, Cost, TabulatedCost, mean_cost

__all__ = [
    "POLICIES",
    "UNIFORM",
    "AffineCost",
    "AirCompCost",
    "AnyCost",
    "Cost",
    "CutLayers",
    "Policy",
    "Sizes",
    "SizingProblem",
    "TabulatedCost",
    "cap_ratio",
    "imbalance",
    "mean_cost",
    "optimal_counts",
    "optimal_sizes",
    "optimised",
    "policy_named",
    "proportional",
    "size",
    "solve_milp",
    "uniform",
]
