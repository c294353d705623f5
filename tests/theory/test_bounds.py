"""Every term by hand, from the paper's formulas."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.errors import UsageError
from histfl.theory import (
    Constants,
    Duration,
    StepSizes,
    Terms,
    balanced_step,
    corollary_1,
    corollary_2,
    corollary_partial,
    theorem_1,
    theorem_2,
    theorem_3,
)

CONSTANTS = Constants(
    smoothness=2.0,
    gradient_variance=3.0,
    cell_divergence=5.0,
    client_divergence=7.0,
    model_norm=11.0,
    initial_gap=13.0,
)
DURATION = Duration(rounds=10, edge_rounds=5, local_steps=4)  # TEH = 200
CLIENTS = (2, 4, 4)  # N = 3, N~ = 1
RATE = 0.01


def values(terms: Terms) -> dict[str, float]:
    return {term.name: term.value for term in terms}


def test_theorem_1_term_by_term() -> None:
    terms = values(theorem_1(CONSTANTS, DURATION, RATE, clients_per_cell=CLIENTS, imbalance=1.5))
    assert terms == pytest.approx(
        {
            "initial gap": 4 * 13 / (0.01 * 200),  # 26
            "gradient noise": 100 * 0.01 * 1 * 2 * 3,  # 6
            "drift between cells": 1356 * 0.01 * 2 * 5,  # 135.6
            "drift between clients": 60 * 0.01 * 2 * 7,  # 8.4
            "submodel sizes": 6 * 1.5 * 5,  # 45
            "model outside the submodel": 48 * 2 * 4 * 11,  # 4224
        }
    )


def test_fixed_masks_change_the_fifth_term_alone() -> None:
    drawn = values(theorem_1(CONSTANTS, DURATION, RATE, clients_per_cell=CLIENTS))
    fixed = values(theorem_1(CONSTANTS, DURATION, RATE, clients_per_cell=CLIENTS, fixed_masks=True))
    assert drawn.pop("submodel sizes") == 30
    assert fixed.pop("fixed submodels") == 6 * 3 * 5
    assert drawn == fixed


def test_theorem_2_term_by_term() -> None:
    terms = values(theorem_2(CONSTANTS, DURATION, RATE, participants_per_cell=(1, 2, 2)))
    assert terms == pytest.approx(
        {
            "initial gap": 26,
            "gradient noise": 12,  # N~' = 2
            "drift between cells": 135.6,
            "drift between clients": 8.4,
            "sampling of clients": 12 * 0.01 * 4 * 2 * 2 * 7,
            "submodel sizes": 30,
            "model outside the submodel": 96 * 2 * 4 * 11,
        }
    )


def test_theorem_3_adds_the_aggregation_error() -> None:
    arguments = {"clients_per_cell": CLIENTS, "aggregation_error": 17.0}
    terms = values(theorem_3(CONSTANTS, DURATION, RATE, **arguments))
    literal = values(theorem_3(CONSTANTS, DURATION, RATE, literal=True, **arguments))
    assert terms.pop("aggregation over the air") == pytest.approx(2 * 0.01 * 2 / 4 * 17)
    assert literal.pop("aggregation over the air") == pytest.approx(0.01 * 17)
    assert terms == literal == values(theorem_1(CONSTANTS, DURATION, RATE, clients_per_cell=CLIENTS))


def test_one_cell_is_fedavg() -> None:
    alone = Constants(2.0, 3.0, 0.0, 7.0, 11.0, 13.0)
    terms = values(theorem_1(alone, DURATION, RATE, clients_per_cell=[5]))
    assert {name for name, value in terms.items() if value == 0} == {
        "drift between cells",
        "submodel sizes",
        "model outside the submodel",
    }


def test_corollaries_are_the_theorems_at_the_balanced_step() -> None:
    assert balanced_step(DURATION) == pytest.approx(200**-0.5)
    assert balanced_step(DURATION, clients_per_cell=(1, 1)) == pytest.approx(400**-0.5)
    clients = (1, 1)
    for scaled in (False, True):
        rate = balanced_step(DURATION, clients_per_cell=clients if scaled else None)
        theorem = theorem_1(CONSTANTS, DURATION, rate, clients_per_cell=clients)
        groups = corollary_1(CONSTANTS, DURATION, clients_per_cell=clients, scaled_step=scaled)
        assert sum(values(groups).values()) == pytest.approx(sum(values(theorem).values()))
    partial = values(corollary_partial(CONSTANTS, DURATION, participants_per_cell=clients))
    assert partial["sampling of clients"] == pytest.approx(12 * 200**-0.5 * 4 * 2 * 2 * 7)
    air = values(corollary_2(CONSTANTS, DURATION, clients_per_cell=clients, aggregation_error=17.0))
    assert air["aggregation over the air"] == pytest.approx(2 * 200**-0.5 * 2 / 4 * 17)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 50), st.integers(1, 6), st.integers(2, 9))
def test_corollary_orders(rounds: int, edge_rounds: int, factor: int) -> None:
    """factor^2 times the rounds divides what diminishes by factor, and leaves the rest."""

    def at(scale: int) -> dict[str, float]:
        duration = Duration(rounds * scale, edge_rounds, 3)
        return values(corollary_1(CONSTANTS, duration, clients_per_cell=CLIENTS))

    before, after = at(1), at(factor**2)
    assert after.pop("what remains") == before.pop("what remains")
    for name, value in before.items():
        assert after[name] == pytest.approx(value / factor)


def test_scaled_step_grows_with_the_root_of_the_inverse_clients() -> None:
    few = values(corollary_1(CONSTANTS, DURATION, clients_per_cell=(1, 1, 1), scaled_step=True))
    many = values(corollary_1(CONSTANTS, DURATION, clients_per_cell=(4, 4, 4), scaled_step=True))
    assert few["start and gradient noise"] == pytest.approx(2 * many["start and gradient noise"])


def test_conditions_by_hand() -> None:
    steps = StepSizes(smoothness=2.0, clients_per_cell=(2, 4, 4, 4, 4))  # N = 5, N~ = 1.5
    limits = [each.limit for each in steps.conditions(edge_rounds=3, local_steps=4)]
    assert limits == pytest.approx(
        [1 / (45 * 5**0.5 * 24), 1.5 / (5 * 4 * 2), 1 / (5 * 16 * 2), 1 / (30 * 9 * 16 * 2)]
    )
    partial = StepSizes(2.0, (2, 4, 4, 4, 4), partial=True)
    assert [each.limit for each in partial.conditions(edge_rounds=3, local_steps=4)] == pytest.approx(
        [1 / (64 * 5**0.5 * 24), 1.5 / (2 * 5 * 4 * 2), 1 / (2 * 5 * 16 * 2), 1 / (2 * 30 * 9 * 16 * 2)]
    )
    assert steps.binding(edge_rounds=3, local_steps=4).formula == "1 / (N (N+1) E^2 H^2 L)"
    assert steps.binding(edge_rounds=1, local_steps=1).formula == "1 / (45 sqrt(N) E H L)"


@settings(deadline=None, max_examples=100)
@given(
    st.floats(0.01, 100),
    st.lists(st.integers(1, 30), min_size=2, max_size=12),
    st.floats(1e-9, 1.0),
    st.integers(1, 50),
    st.booleans(),
)
def test_largest_steps_are_the_last_allowed(
    smoothness: float, clients: list[int], rate: float, other: int, partial: bool
) -> None:
    steps = StepSizes(smoothness, clients, partial)
    most = steps.largest_local_steps(rate, edge_rounds=other)
    beyond = steps.binding(edge_rounds=other, local_steps=most.value + 1)
    assert rate > beyond.limit
    assert most.binding == beyond.formula
    if most.value:
        assert rate <= steps.binding(edge_rounds=other, local_steps=most.value).limit * (1 + 1e-9)
    most = steps.largest_edge_rounds(rate, local_steps=other)
    assert rate > steps.binding(edge_rounds=most.value + 1, local_steps=other).limit
    if most.value:
        assert rate <= steps.binding(edge_rounds=most.value, local_steps=other).limit * (1 + 1e-9)


def test_a_rate_at_the_limit_allows_just_those_steps() -> None:
    steps = StepSizes(3.0, (5, 5, 5))
    rate = steps.binding(edge_rounds=4, local_steps=7).limit
    assert steps.largest_local_steps(rate, edge_rounds=4).value == 7
    assert steps.largest_edge_rounds(rate, local_steps=7).value == 4


def test_rounds_needed_is_the_least() -> None:
    steps = StepSizes(3.0, (5, 5, 5))
    limit = steps.binding(edge_rounds=2, local_steps=3).limit
    rounds = steps.rounds_needed(edge_rounds=2, local_steps=3)
    assert balanced_step(Duration(rounds, 2, 3)) <= limit * (1 + 1e-9)
    assert balanced_step(Duration(rounds - 1, 2, 3)) > limit


def test_bad_values_are_named() -> None:
    with pytest.raises(UsageError, match="cell_divergence = -1"):
        Constants(1.0, 0.0, -1.0, 0.0, 0.0, 0.0)
    with pytest.raises(UsageError, match="smoothness = 0"):
        Constants(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    with pytest.raises(UsageError, match="edge_rounds = 0"):
        Duration(1, 0, 1)
    with pytest.raises(UsageError, match="learning_rate = 0"):
        theorem_1(CONSTANTS, DURATION, 0.0, clients_per_cell=CLIENTS)
    with pytest.raises(UsageError, match=r"imbalance = 0\.5"):
        theorem_1(CONSTANTS, DURATION, RATE, clients_per_cell=CLIENTS, imbalance=0.5)
    with pytest.raises(UsageError, match="every cell needs at least one client"):
        theorem_1(CONSTANTS, DURATION, RATE, clients_per_cell=[3, 0])
    with pytest.raises(UsageError, match="every cell needs a client"):
        StepSizes(1.0, [])
