"""The corollaries: the theorems at the step sizes that balance them, grouped by order.

A term's formula is its order; its value keeps the theorem's constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from histfl.theory.bounds import Constants, Schedule, Term, Terms, theorem_1, theorem_2, theorem_3

_LASTING = ("submodel sizes", "fixed submodels", "model outside the submodel")


def balanced_step(schedule: Schedule, *, clients_per_cell: Sequence[int] | None = None) -> float:
    """gamma = (TEH)^(-1/2), Corollary 1; with clients, gamma = (N~ TEH)^(-1/2), N~ = sum_j 1/n_j.

    Deviation: the paper's remark and Corollary 2 state the order N~^(1/2) (TEH)^(-1/2) for the first step
    size; it belongs to the second.
    """
    inverse = 1.0 if clients_per_cell is None else math.fsum(1 / count for count in clients_per_cell)
    return 1 / math.sqrt(inverse * schedule.steps)


def corollary_1(
    constants: Constants, schedule: Schedule, *, clients_per_cell: Sequence[int], scaled_step: bool = False
) -> Terms:
    """Theorem 1 with equal cells, HIST Eq. (15), at gamma = (TEH)^(-1/2).

    `scaled_step=True` takes gamma = (N~ TEH)^(-1/2) instead, which suits many small cells.
    """
    rate = balanced_step(schedule, clients_per_cell=clients_per_cell if scaled_step else None)
    terms = theorem_1(constants, schedule, rate, clients_per_cell=clients_per_cell)
    return _grouped(terms, scaled_step=scaled_step, symbol="N~")


def corollary_partial(
    constants: Constants, schedule: Schedule, *, participants_per_cell: Sequence[int], imbalance: float = 1.0
) -> Terms:
    """Theorem 2 as the paper states it, HIST Eq. (17), at gamma = (TEH)^(-1/2)."""
    terms = theorem_2(
        constants,
        schedule,
        balanced_step(schedule),
        participants_per_cell=participants_per_cell,
        imbalance=imbalance,
    )
    return _grouped(terms, scaled_step=False, symbol="N~'")


def corollary_2(
    constants: Constants,
    schedule: Schedule,
    *,
    clients_per_cell: Sequence[int],
    aggregation_error: float,
    imbalance: float = 1.0,
    scaled_step: bool = False,
) -> Terms:
    """Theorem 3 at gamma = (TEH)^(-1/2), or (N~ TEH)^(-1/2) with `scaled_step`."""
    rate = balanced_step(schedule, clients_per_cell=clients_per_cell if scaled_step else None)
    terms = theorem_3(
        constants,
        schedule,
        rate,
        clients_per_cell=clients_per_cell,
        aggregation_error=aggregation_error,
        imbalance=imbalance,
    )
    return _grouped(terms, scaled_step=scaled_step, symbol="N~")


def _grouped(terms: Terms, *, scaled_step: bool, symbol: str) -> Terms:
    value = {term.name: term.value for term in terms}
    start, noise = value["initial gap"], value["gradient noise"]
    drift = value["drift between cells"] + value["drift between clients"]
    if scaled_step:
        groups = [
            Term("start and gradient noise", f"O({symbol}^(1/2) (TEH)^(-1/2))", start + noise),
            Term("drift", f"O({symbol}^(-1/2) (TEH)^(-1/2))", drift),
        ]
    else:
        groups = [
            Term("gradient noise", f"O({symbol} (TEH)^(-1/2))", noise),
            Term("start and drift", "O((TEH)^(-1/2))", start + drift),
        ]
    if "sampling of clients" in value:
        order = f"O({symbol} H^(1/2) (TE)^(-1/2))"
        groups.append(Term("sampling of clients", order, value["sampling of clients"]))
    if "aggregation over the air" in value:
        step = f"({symbol} TEH)^(-1/2)" if scaled_step else "(TEH)^(-1/2)"
        order = f"O({step} H^(-1) MSE)"
        groups.append(Term("aggregation over the air", order, value["aggregation over the air"]))
    lasting = sum(value[name] for name in _LASTING if name in value)
    groups.append(Term("what remains", "O((N/d) d_max delta1^2 + (N-1) L^2 ||x||^2)", lasting))
    return tuple(groups)
