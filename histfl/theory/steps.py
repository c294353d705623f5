"""The learning rates for which the theorems hold, and what a learning rate leaves for H and E."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from histfl.errors import UsageError


@dataclass(frozen=True)
class Condition:
    """learning rate <= limit."""

    formula: str
    limit: float


@dataclass(frozen=True)
class Largest:
    """The largest whole value allowed, and the condition that allows no more."""

    value: int
    binding: str


@dataclass(frozen=True)
class StepSizes:
    """The conditions of HIST Eq. (12), or of Eq. (16) for `partial` participation.

    `clients_per_cell` is n_j, or n'_j with partial participation. The conditions of Lemmas 1-4
    (1/(2HL), 1/(EHL sqrt(54(N+1))), 1/(sqrt(15) HL)) follow from the first one. Deviation: Lemma 3's
    condition needs EHL where the paper writes EL.
    """

    smoothness: float
    clients_per_cell: Sequence[int]
    partial: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.smoothness) and self.smoothness > 0):
            raise UsageError(f"smoothness = {self.smoothness:g}; it must be positive and finite")
        if len(self.clients_per_cell) == 0 or min(self.clients_per_cell) < 1:
            raise UsageError(f"clients_per_cell = {list(self.clients_per_cell)}; every cell needs a client")

    def conditions(self, *, edge_rounds: int, local_steps: int) -> tuple[Condition, ...]:
        """The four upper limits of the learning rate, in the paper's order."""
        E, H, L, N = edge_rounds, local_steps, self.smoothness, len(self.clients_per_cell)
        inverse = math.fsum(1 / count for count in self.clients_per_cell)
        first, half, two, prime = (64, 2, "2 ", "'") if self.partial else (45, 1, "", "")
        return (
            Condition(f"1 / ({first} sqrt(N) E H L)", 1 / (first * math.sqrt(N) * E * H * L)),
            Condition(f"N~{prime} / ({two}N H L)", inverse / (half * N * H * L)),
            Condition(f"1 / ({two}N H^2 L)", 1 / (half * N * H**2 * L)),
            Condition(f"1 / ({two}N (N+1) E^2 H^2 L)", 1 / (half * N * (N + 1) * E**2 * H**2 * L)),
        )

    def binding(self, *, edge_rounds: int, local_steps: int) -> Condition:
        """The tightest condition: its limit is the largest learning rate for which the theorem holds."""
        return min(
            self.conditions(edge_rounds=edge_rounds, local_steps=local_steps), key=lambda each: each.limit
        )

    def largest_local_steps(self, learning_rate: float, *, edge_rounds: int) -> Largest:
        """The largest H that the learning rate allows at E edge rounds; 0 where not even one step is."""
        return _largest(learning_rate, lambda steps: self.binding(edge_rounds=edge_rounds, local_steps=steps))

    def largest_edge_rounds(self, learning_rate: float, *, local_steps: int) -> Largest:
        """The largest E that the learning rate allows at H local steps; 0 where not even one round is."""
        return _largest(
            learning_rate, lambda rounds: self.binding(edge_rounds=rounds, local_steps=local_steps)
        )

    def rounds_needed(self, *, edge_rounds: int, local_steps: int) -> int:
        """The fewest global rounds T for which gamma = (TEH)^(-1/2) meets the conditions (Corollary 1).

        Turned round, the fourth condition allows EH <= T^(1/3) (N (N+1) L)^(-2/3).
        Deviation: so EH = O(T^(1/3) N^(-4/3)); the paper divides by the other's power 1/3 in place of 1.
        """
        limit = self.binding(edge_rounds=edge_rounds, local_steps=local_steps).limit
        return max(1, math.ceil(1 / (limit**2 * edge_rounds * local_steps) * (1 - 1e-12)))


def _largest(learning_rate: float, binding: Callable[[int], Condition]) -> Largest:
    """The last value whose tightest limit is not below the learning rate; limits fall as values grow."""
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise UsageError(f"learning_rate = {learning_rate:g}; it must be positive and finite")

    def allowed(value: int) -> bool:
        # The nudge lets a learning rate computed from a limit through another formula still meet it.
        return learning_rate <= binding(value).limit * (1 + 1e-12)

    low, high = 0, 1
    while allowed(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return Largest(low, binding(low + 1).formula)
