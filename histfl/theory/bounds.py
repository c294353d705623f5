"""HIST's convergence bounds term by term: Theorems 1-3 and their corollaries (Sec. III and V-C).

Every function bounds (1/TE) sum_{t<T} sum_{e<E} E||grad f(x^{t,e})||^2, x^{t,e} the sum of the cells'
models, and returns the bound's terms, never their sum alone: on real networks the last term alone is
larger than any gradient by orders of magnitude, so the table serves to compare terms and to set the
sizing cap, not to predict training or to tune it.

The corollaries are the theorems at the step sizes that balance them, grouped by order: a term's formula is its
order, its value keeps the theorem's constants.

Deviation: sums over rounds run to T - 1, and Assumption 2 is read as
||grad F(x) - grad F(y)|| <= L ||x - y||; the paper's text has slips in both places.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from histfl.errors import UsageError


@dataclass(frozen=True)
class Constants:
    """What the theorems assume known about losses and data (Assumptions 1-6)."""

    smoothness: float  # L of every client's loss
    gradient_variance: float  # sigma^2 of a stochastic gradient
    cell_divergence: float  # delta1^2, of cells' gradients from the global one
    client_divergence: float  # delta2^2, of clients' gradients from their cell's
    model_norm: float  # (1/T) sum_t E||x^t||^2
    initial_gap: float  # f(x^0) - f_*

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} = {value:g}; it must be zero or more and finite")
        if self.smoothness == 0:
            raise UsageError("smoothness = 0; it must be positive")


@dataclass(frozen=True)
class Duration:
    """How long training runs: T global rounds of E edge rounds of H local steps."""

    rounds: int
    edge_rounds: int
    local_steps: int

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise UsageError(f"{name} = {value}; it must be at least 1")

    @property
    def steps(self) -> int:
        """TEH."""
        return self.rounds * self.edge_rounds * self.local_steps


@dataclass(frozen=True)
class Term:
    """One line of a bound; its value is in units of ||grad f||^2."""

    name: str
    formula: str
    value: float


Terms = tuple[Term, ...]


def theorem_1(
    constants: Constants,
    duration: Duration,
    learning_rate: float,
    *,
    clients_per_cell: Sequence[int],
    imbalance: float = 1.0,
    fixed_masks: bool = False,
) -> Terms:
    """Full participation, HIST Eq. (13). Holds under the conditions of `steps.conditions`.

    `imbalance` is (N/d) times the mean over rounds of d_max: 1 for equal cells; where layers are cut
    differently, N max_{j,l} k_jl / K_l.

    Deviation: the fifth term needs masks drawn anew with P(parameter k in cell j) = d_j / d, which
    Proposition 1 uses and the theorem's "arbitrary mask partitioning" leaves out. `fixed_masks=True` gives
    what holds for any masks: sum_j ||p_j (grad f - grad f_j)||^2 <= N delta1^2, so 6 N delta1^2.
    """
    inverse = _inverse_sum(clients_per_cell, "clients_per_cell")
    cells = len(clients_per_cell)
    return (
        _initial(constants, duration, learning_rate),
        *_drifts(constants, learning_rate, inverse, "N~"),
        _masks(constants, cells, imbalance, fixed_masks),
        _model(constants, cells, 48),
    )


def theorem_2(
    constants: Constants,
    duration: Duration,
    learning_rate: float,
    *,
    participants_per_cell: Sequence[int],
    imbalance: float = 1.0,
    fixed_masks: bool = False,
) -> Terms:
    """Partial participation, HIST Eq. (17) with the constants of its proof.

    `participants_per_cell` is n'_j, the clients sampled in cell j each edge round. Next to Theorem 1 the
    sampling adds 12 gamma H N~' L delta2^2 and doubles the last term.
    """
    inverse = _inverse_sum(participants_per_cell, "participants_per_cell")
    cells = len(participants_per_cell)
    rate, c = learning_rate, constants
    sampling = 12 * rate * duration.local_steps * inverse * c.smoothness * c.client_divergence
    return (
        _initial(constants, duration, learning_rate),
        *_drifts(constants, learning_rate, inverse, "N~'"),
        Term("sampling of clients", "12 gamma H N~' L delta2^2", sampling),
        _masks(constants, cells, imbalance, fixed_masks),
        _model(constants, cells, 96),
    )


def theorem_3(
    constants: Constants,
    duration: Duration,
    learning_rate: float,
    *,
    clients_per_cell: Sequence[int],
    aggregation_error: float,
    imbalance: float = 1.0,
    fixed_masks: bool = False,
    literal: bool = False,
) -> Terms:
    """AirComp with full participation, HIST Theorem 3: Theorem 1 and the error of aggregation.

    `aggregation_error` is the mean over edge rounds of sum_j MSE_j, MSE_j the squared error of cell j's
    averaged accumulated gradient, summed over its parameters.

    Deviation: the step x <- x - gamma delta_hat puts gamma^2 (L/2) MSE into f, and the proof of Lemma 2
    loses gamma^2 L; carried through, the term is (2 gamma L / H) MSE. `literal=True` gives the paper's
    gamma MSE, which is too small where 2 L > H.
    """
    rate, c = learning_rate, constants
    if literal:
        error = Term("aggregation over the air", "gamma MSE", rate * aggregation_error)
    else:
        value = 2 * rate * c.smoothness / duration.local_steps * aggregation_error
        error = Term("aggregation over the air", "(2 gamma L / H) MSE", value)
    terms = theorem_1(
        constants,
        duration,
        learning_rate,
        clients_per_cell=clients_per_cell,
        imbalance=imbalance,
        fixed_masks=fixed_masks,
    )
    return (*terms[:-2], error, *terms[-2:])


def _initial(c: Constants, duration: Duration, rate: float) -> Term:
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"learning_rate = {rate:g}; it must be positive and finite")
    return Term("initial gap", "4 (f(x0) - f*) / (gamma T E H)", 4 * c.initial_gap / (rate * duration.steps))


def _drifts(c: Constants, rate: float, inverse: float, symbol: str) -> Terms:
    """100 = 4 + 72 + 24, 1356 = 1296 + 60 and 60, once the step-size conditions absorb N, E and H."""
    scale = rate * c.smoothness
    return (
        Term("gradient noise", f"100 gamma {symbol} L sigma^2", 100 * scale * inverse * c.gradient_variance),
        Term("drift between cells", "1356 gamma L delta1^2", 1356 * scale * c.cell_divergence),
        Term("drift between clients", "60 gamma L delta2^2", 60 * scale * c.client_divergence),
    )


def _masks(c: Constants, cells: int, imbalance: float, fixed: bool) -> Term:
    if fixed:
        return Term("fixed submodels", "6 N delta1^2", 6 * cells * c.cell_divergence)
    if not 1 - 1e-9 <= imbalance <= cells * (1 + 1e-9):
        raise UsageError(f"imbalance = {imbalance:g}; N d_max / d lies between 1 and {cells}, the cells")
    return Term("submodel sizes", "6 (N/d) mean d_max delta1^2", 6 * imbalance * c.cell_divergence)


def _model(c: Constants, cells: int, factor: int) -> Term:
    value = factor * (cells - 1) * c.smoothness**2 * c.model_norm
    return Term("model outside the submodel", f"{factor} (N-1) L^2 mean ||x||^2", value)


def _inverse_sum(clients: Sequence[int], name: str) -> float:
    """N~ = sum_j 1/n_j."""
    if len(clients) == 0 or min(clients) < 1:
        raise UsageError(f"{name} = {list(clients)}; every cell needs at least one client")
    return math.fsum(1 / count for count in clients)


_LASTING = ("submodel sizes", "fixed submodels", "model outside the submodel")


def balanced_step(duration: Duration, *, clients_per_cell: Sequence[int] | None = None) -> float:
    """gamma = (TEH)^(-1/2), Corollary 1; with clients, gamma = (N~ TEH)^(-1/2), N~ = sum_j 1/n_j.

    Deviation: the paper's remark and Corollary 2 state the order N~^(1/2) (TEH)^(-1/2) for the first step
    size; it belongs to the second.
    """
    inverse = 1.0 if clients_per_cell is None else math.fsum(1 / count for count in clients_per_cell)
    return 1 / math.sqrt(inverse * duration.steps)


def corollary_1(
    constants: Constants, duration: Duration, *, clients_per_cell: Sequence[int], scaled_step: bool = False
) -> Terms:
    """Theorem 1 with equal cells, HIST Eq. (15), at gamma = (TEH)^(-1/2).

    `scaled_step=True` takes gamma = (N~ TEH)^(-1/2) instead, which suits many small cells.
    """
    rate = balanced_step(duration, clients_per_cell=clients_per_cell if scaled_step else None)
    terms = theorem_1(constants, duration, rate, clients_per_cell=clients_per_cell)
    return _grouped(terms, scaled_step=scaled_step, symbol="N~")


def corollary_partial(
    constants: Constants, duration: Duration, *, participants_per_cell: Sequence[int], imbalance: float = 1.0
) -> Terms:
    """Theorem 2 as the paper states it, HIST Eq. (17), at gamma = (TEH)^(-1/2)."""
    terms = theorem_2(
        constants,
        duration,
        balanced_step(duration),
        participants_per_cell=participants_per_cell,
        imbalance=imbalance,
    )
    return _grouped(terms, scaled_step=False, symbol="N~'")


def corollary_2(
    constants: Constants,
    duration: Duration,
    *,
    clients_per_cell: Sequence[int],
    aggregation_error: float,
    imbalance: float = 1.0,
    scaled_step: bool = False,
) -> Terms:
    """Theorem 3 at gamma = (TEH)^(-1/2), or (N~ TEH)^(-1/2) with `scaled_step`."""
    rate = balanced_step(duration, clients_per_cell=clients_per_cell if scaled_step else None)
    terms = theorem_3(
        constants,
        duration,
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
