"""Verdicts come from the numbers alone."""

import math
import operator

import numpy as np
import pytest

from histfl.reproduce.claims import judged, told, trend, versus
from histfl.reproduce.results import COLUMNS, Repeats, Result, Spread, seed_by_seed


def spread(*values: float | None, seeds: int | None = None) -> Spread:
    return Spread(dict(enumerate(values, 1)), seeds or len(values))


def test_a_claim_is_judged_of_the_means_and_of_every_seed() -> None:
    ours = spread(3.0, 5.0, 4.0)
    for theirs, verdict, agree in (
        (spread(4.0, 6.0, 5.0), "yes", 3),
        (spread(9.0, 4.0, 5.0), "of the means alone", 2),
        (spread(1.0, 4.5, 4.5), "no, but seeds differ", 1),
        (spread(3.0, 5.0, 4.0), "no", 0),
    ):
        found = judged(operator.lt, ours, theirs)
        assert (found.verdict, found.agree, found.seeds, found.note) == (verdict, agree, 3, "")


def test_seeds_are_compared_with_themselves() -> None:
    early, late = Spread({1: 1.0, 2: 9.0}, 3), Spread({2: 10.0, 3: 3.0}, 3)
    found = judged(operator.lt, early, late)
    assert (found.verdict, found.seeds, found.note) == ("yes", 1, "one seed")
    ratio = seed_by_seed(operator.truediv, late, early)
    assert (ratio.by_seed, ratio.asked) == ({2: 10 / 9}, 3)
    assert seed_by_seed(operator.sub, spread(2.0, None), spread(1.0, 1.0)).values == (1.0, None)


def test_what_one_seed_says_says_so() -> None:
    row = trend("x", {"a": spread(2.0, seeds=3), "b": spread(1.0, seeds=3)}, "falls")
    assert (row.verdict, row.note, row.holds) == ("yes", "one seed", "yes, one seed")


def test_a_trend_holds_when_every_step_goes_its_way() -> None:
    points = {"a": spread(3.0, 5.0), "b": spread(2.8, 3.2), "c": spread(2.0, 2.5)}
    assert trend("x", points, "falls", why="reason").verdict == "yes"
    assert trend("x", points, "falls", why="reason").why == ""
    close = {"a": spread(3.0, 5.0), "b": spread(2.0, 4.0), "c": spread(2.5, 1.0)}
    assert trend("x", close, "falls").holds == "of the means alone"
    assert trend("x", close, "falls").why == "True in 1 of 2 seeds (from b to c)."
    rising = trend("x", points, "rises", why="reason")
    assert (rising.holds, rising.why) == ("no", "Not from a to b, nor from b to c. reason")
    mixed = {"a": spread(3.0, 4.0), "b": spread(5.0, 3.5), "c": spread(4.8, 3.4)}
    assert trend("x", mixed, "falls").holds == "no, but seeds differ"
    assert trend("x", mixed, "falls").why == "Not from a to b, but in 1 of 2 seeds."
    level = {"a": spread(3.0), "b": spread(3.0)}
    assert trend("x", level, "rises").verdict == trend("x", level, "falls").verdict == "no"


def test_what_has_not_run_is_neither_yes_nor_no() -> None:
    points = {"a": spread(1.0), "b": spread(seeds=3)}
    for direction in ("rises", "falls"):
        row = trend("x", points, direction, why="reason")
        assert (row.verdict, row.why) == ("not yet run", "")
        assert row.ours == "a: 1; b: not yet run"
    assert versus("x", "lower", points, points).verdict == "not yet run"


def test_while_a_run_goes_on_the_fast_ones_are_not_judged() -> None:
    points = {"a": Spread({1: 1.0, 2: 2.0}, 3, waiting=1), "b": spread(3.0, 4.0, 5.0)}
    row = trend("x", points, "rises")
    assert (row.verdict, row.ours) == ("not yet run", "a: 1.5 (1 to 2), 2 of 3 seeds; b: 4 (3 to 5)")
    assert versus("x", "lower", points, points).verdict == "not yet run"


def test_a_target_never_reached_costs_more_than_any_other() -> None:
    ours, never = {"N=2": spread(10.0, 12.0)}, {"N=2": spread(11.0, None)}
    assert math.isinf(never["N=2"].mean)
    assert versus("cost", "lower", {"N=2": spread(8.0, 12.0)}, never).verdict == "yes"
    lost = versus("cost", "lower", never, ours, why="Because.")
    assert lost.verdict == "no"
    assert lost.why == "Not lower: N=2 (not reached by all seeds). Because."
    assert lost.values == {"HIST, N=2": None, "HFedAvg, N=2": 11.0}
    assert versus("cost", "lower", never, never).verdict == "no"


@pytest.mark.parametrize(
    ("lost", "ordered", "where"),
    [
        ("a", True, "from b on"),
        ("cd", True, "up to b"),
        ("b", True, "not for b"),
        ("ac", True, "not for a, c"),
        ("a", False, "not for a"),
    ],
)
def test_a_claim_that_is_lost_at_some_points_says_where_it_holds(
    lost: str, ordered: bool, where: str
) -> None:
    ours = {point: spread(2.0, 2.5) for point in "abcd"}
    theirs = {point: spread(1.0, 1.5) if point in lost else spread(3.0, 3.5) for point in "abcd"}
    row = versus("cost", "lower", ours, theirs, ordered=ordered)
    assert (row.verdict, row.holds) == ("in part", where)
    assert row.why == f"Not lower: {', '.join(lost)}."


def test_versus_needs_a_point_and_a_seed_at_each() -> None:
    ours = {"a": spread(0.8, 0.9), "b": spread(0.5, 0.5)}
    theirs = {"a": spread(0.7, 0.95), "b": spread(0.6, 0.6)}
    assert versus("accuracy", "higher", ours, theirs).holds == "up to a, of the means alone"
    assert versus("accuracy", "higher", {"b": ours["b"]}, theirs).holds == "no"
    assert versus("accuracy", "higher", {"a": ours["a"]}, theirs).why == "True in 1 of 2 seeds (a)."
    unsure = {"a": spread(0.6, 0.96), "b": spread(0.7, 0.7)}
    assert versus("accuracy", "higher", unsure, theirs).holds == "no, but seeds differ"


def test_a_run_that_broke_down_is_of_no_accuracy_and_takes_for_ever() -> None:
    about = {"diverged": "the loss is not finite"}
    columns = {key: np.array([]) for key in COLUMNS}
    broken = Repeats((Result("x", {"seed": 1}, columns, {}, True, about),), 1)
    assert broken.last_accuracies(3).mean == broken.mean_accuracy(3).mean == -math.inf
    assert broken.to_target(0.8).mean == broken.seconds_a_round().mean == math.inf
    assert versus("accuracy", "higher", {"a": broken.last_accuracies(3)}, {"a": spread(0.1)}).holds == (
        "no, one seed"
    )


@pytest.mark.parametrize(
    ("values", "seeds", "text"),
    [
        ((2.0, 4.0), 2, "3 (2 to 4)"),
        ((2.0, 2.0), 2, "2"),
        ((2.0,), 3, "2, 1 of 3 seeds"),
        ((None, None), 2, "not reached"),
        ((2.0, None), 2, "2, not reached by 1"),
        ((), 3, "not yet run"),
    ],
)
def test_a_spread_in_words(values: tuple[float | None, ...], seeds: int, text: str) -> None:
    assert spread(*values, seeds=seeds or len(values)).text() == text


def test_what_the_paper_does_not_claim_has_no_verdict() -> None:
    assert told("x", {"a": spread(1.0)}).verdict == ""
