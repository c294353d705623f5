"""How large each cell's submodel should be: HIST Sec. IV-B and V-E."""

from histfl.sizing.policies import POLICIES, UNIFORM, Policy, counted, optimised, policy_named, size, uniform
from histfl.sizing.problem import CutLayers, Sizes, SizingProblem

__all__ = [
    "POLICIES",
    "UNIFORM",
    "CutLayers",
    "Policy",
    "Sizes",
    "SizingProblem",
    "counted",
    "optimised",
    "policy_named",
    "size",
    "uniform",
]
