"""What HIST's convergence analysis says: bounds term by term and the learning rates they allow (Sec. III)."""

from histfl.theory.bounds import (
    Constants,
    Duration,
    Terms,
    balanced_step,
    corollary_1,
    corollary_2,
    corollary_partial,
    theorem_1,
    theorem_2,
    theorem_3,
)
from histfl.theory.estimators import Estimates, Sampling, estimate
from histfl.theory.steps import Condition, Largest, StepSizes

__all__ = [
    "Condition",
    "Constants",
    "Duration",
    "Estimates",
    "Largest",
    "Sampling",
    "StepSizes",
    "Terms",
    "balanced_step",
    "corollary_1",
    "corollary_2",
    "corollary_partial",
    "estimate",
    "theorem_1",
    "theorem_2",
    "theorem_3",
]
