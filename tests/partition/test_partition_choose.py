"""The choice of groups: exact, and as the user asks."""

from __future__ import annotations

from itertools import combinations

import models_for_tests as models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.errors import PartitionError
from histfl.partition import plan
from histfl.partition.plan import CutAxis, UnitGroup
from histfl.partition.planner import choose, conflict


@st.composite
def group_sets(draw: st.DrawFn) -> tuple[list[UnitGroup], list[int]]:
    """Up to eight groups over a few parameters, each owning a random part of some axes."""
    groups = []
    for number in range(draw(st.integers(1, 8))):
        places = draw(st.sets(st.tuples(st.sampled_from("pqrs"), st.integers(0, 1)), min_size=1, max_size=3))
        axes = []
        for parameter, axis in sorted(places):
            half = draw(st.sampled_from([(0, 1, 2, 3), (0, 1, -1, -1), (-1, -1, 0, 1)]))
            axes.append(CutAxis(parameter, axis, torch.tensor(half)))
        groups.append(UnitGroup(f"g{number}", 4, tuple(axes)))
    return groups, draw(st.lists(st.integers(1, 50), min_size=len(groups), max_size=len(groups)))


@given(group_sets(), st.sampled_from(["alternating", "every"]))
@settings(deadline=None, max_examples=60)
def test_the_choice_covers_as_much_as_any_set_without_conflicts(found, scheme) -> None:
    groups, weights = found
    weight_of = {group.name: weight for group, weight in zip(groups, weights, strict=True)}
    best = max(
        sum(weight_of[group.name] for group in some)
        for size in range(len(groups) + 1)
        for some in combinations(groups, size)
        if not any(conflict(a, b, scheme) for a, b in combinations(some, 2))
    )
    chosen = choose(groups, weights, scheme=scheme)
    assert not any(conflict(a, b, scheme) for a, b in combinations(chosen, 2))
    assert sum(weight_of[group.name] for group in chosen) == best
    assert chosen == choose(groups, weights, scheme=scheme)


def test_groups_conflict_across_axes_and_in_common_positions_only() -> None:
    def group(axis: int, units: list[int]) -> UnitGroup:
        return UnitGroup("g", 2, (CutAxis("w", axis, torch.tensor(units)),))

    assert conflict(group(0, [0, 1]), group(1, [0, 1])) == "w"
    assert conflict(group(0, [0, 1]), group(1, [0, 1]), "every") is None
    assert conflict(group(0, [0, 1, -1]), group(0, [-1, 0, 1])) == "w"
    assert conflict(group(0, [0, 1, -1, -1]), group(0, [-1, -1, 0, 1])) is None


def test_only_included_layers_are_cut() -> None:
    cut = plan(models.LeNet5(), models.images(1, 28), include=["fc*"])
    assert [group.name for group in cut.groups] == ["fc1"]
    assert cut.uncut["conv2"] == "it is not among the included layers"


def test_excluded_layers_stay_whole() -> None:
    cut = plan(models.LeNet5(), models.images(1, 28), exclude=["conv2"])
    assert "conv2" not in [group.name for group in cut.groups]
    assert cut.uncut["conv2"] == "it is excluded"


def test_a_pattern_may_name_any_layer_that_computes_the_units() -> None:
    cut = plan(models.MobileNet(), models.images(3, 16), include=["blocks.1.body.3"])
    assert [group.name for group in cut.groups] == ["blocks.1.body.0"]


def test_a_pattern_without_match_names_the_layers_there_are() -> None:
    with pytest.raises(PartitionError, match=r"'dense\*' matches no layer; .*'conv1', 'conv2', 'fc1'"):
        plan(models.LeNet5(), models.images(1, 28), include=["dense*"])
