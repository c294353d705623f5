"""Verdicts come from the numbers alone."""

import math

import pytest

from histfl.reproduce.claims import told, trend, versus
from histfl.reproduce.results import Spread


def spread(*values: float | None, seeds: int | None = None) -> Spread:
    return Spread(values, seeds or len(values))


def test_a_trend_holds_when_every_step_goes_its_way() -> None:
    points = {"a": spread(3.0, 5.0), "b": spread(3.0), "c": spread(2.0, 2.5)}
    assert trend("x", points, "falls", why="reason").verdict == "yes"
    assert trend("x", points, "falls", why="reason").why == ""
    close = {"a": spread(3.0, 5.0), "b": spread(2.0, 4.0), "c": spread(0.5, 1.0)}
    assert trend("x", close, "falls").verdict == "yes"
    assert trend("x", close, "falls").why == "The seeds' ranges overlap from a to b."
    rising = trend("x", points, "rises", why="reason")
    assert (rising.verdict, rising.why) == ("no", "Not from a to b, nor from b to c. reason")
    apart = {"a": spread(3.0, 4.0), "b": spread(5.0, 6.0), "c": spread(5.5, 5.9)}
    assert trend("x", apart, "falls").why == "Not from a to b, nor from b to c (the seeds' ranges overlap)."
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
    points = {"a": Spread((1.0, 2.0), 3, waiting=1), "b": spread(3.0, 4.0, 5.0)}
    row = trend("x", points, "rises")
    assert (row.verdict, row.ours) == ("not yet run", "a: 1.5 (1 to 2), 2 of 3 seeds; b: 4 (3 to 5)")
    assert versus("x", "lower", points, points).verdict == "not yet run"


def test_a_target_never_reached_costs_more_than_any_other() -> None:
    ours, never = {"N=2": spread(10.0, 12.0)}, {"N=2": spread(9.0, None)}
    assert math.isinf(never["N=2"].mean)
    assert versus("cost", "lower", ours, never).verdict == "yes"
    lost = versus("cost", "lower", never, ours, why="Because.")
    assert lost.verdict == "no"
    assert lost.why == "Not lower: N=2 (not reached by all seeds). Because."
    assert lost.values == {"HIST, N=2": None, "HFedAvg, N=2": 11.0}
    assert versus("cost", "lower", never, never).verdict == "no"


def test_versus_needs_every_point() -> None:
    ours = {"a": spread(0.8), "b": spread(0.5)}
    theirs = {"a": spread(0.7), "b": spread(0.6)}
    row = versus("accuracy", "higher", ours, theirs)
    assert (row.verdict, row.why) == ("no", "Not higher: b.")
    assert versus("accuracy", "higher", {"a": ours["a"]}, theirs).verdict == "yes"


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
    assert Spread(values, seeds).text() == text


def test_what_the_paper_does_not_claim_has_no_verdict() -> None:
    assert told("x", {"a": spread(1.0)}).verdict == ""
