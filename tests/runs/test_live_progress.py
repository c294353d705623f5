"""Progress on standard error: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from runs_for_tests import made_up_rounds

from histfl.runs import progress as module
from histfl.runs.loading import load_config
from histfl.runs.progress import progress
from histfl.training.objectives import classification

RECORDS: list[dict[str, Any]] = made_up_rounds(load_config("quickstart"), rounds=4)


OBJECTIVE = classification()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_the_first_and_the_last_word_are_plain_lines(clock: list[float]) -> None:
    out = io.StringIO()
    with progress({"[odd] name": 4}, Console(file=out, width=40)) as view:
        view.begin("[odd] name", OBJECTIVE)
        for record in RECORDS:
            clock[0] += 6.0  # a line every ten seconds, and the last round's in any case
            view.on_round("[odd] name", record)
        view.end("[odd] name", "done")
    assert out.getvalue().splitlines() == [
        "[odd] name: round 2/4, accuracy 36.0%, 1.4 MB a client, 0.220 simulated s",
        "[odd] name: round 4/4, accuracy 51.4%, 2.8 MB a client, 0.440 simulated s",
    ]


def test_of_several_the_lines_say_how_far_all_are(clock: list[float]) -> None:
    out = io.StringIO()
    with progress({"a": 4, "b": 4, "c": 4}, Console(file=out), done_before=2) as view:
        for name in ("a", "b"):
            view.begin(name, OBJECTIVE)
            view.at_work(name, "2 client steps")
        for record in RECORDS:
            clock[0] += 6.0
            view.on_round("a", record)
        view.end("a", "done")
        clock[0] = 96.0
        view.on_round("b", RECORDS[2])  # its first one here: two were done before
        view.end("b", "left")
        view.begin("c", OBJECTIVE)
        view.end("c", "diverged")
    assert out.getvalue().splitlines() == [
        "a: round 2/4, accuracy 36.0%, 1.4 MB a client, 0.220 simulated s (2 of 5, 2 running, 1 min left)",
        "a: round 4/4, accuracy 51.4%, 2.8 MB a client, 0.440 simulated s (2 of 5, 2 running, 48 s left)",
        "a: done after round 4/4, accuracy 51.4%, 2.8 MB a client, 0.440 simulated s (3 of 5, 1 running, 48 s left)",
        "b: round 3/4, accuracy 45.0%, 2.1 MB a client, 0.330 simulated s (3 of 5, 1 running, 2 min left)",
        "b: left after round 3/4, accuracy 45.0%, 2.1 MB a client, 0.330 simulated s (3 of 5, 0 running, 2 min left)",
        "c: diverged (4 of 5, 0 running, 19 s left)",
    ]


def test_in_a_terminal_a_bar_moves_and_leaves_nothing_behind() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    with progress({"[odd] name": 4}, console) as view:
        view.begin("[odd] name", OBJECTIVE)
        for record in RECORDS:
            view.on_round("[odd] name", record)
        view.end("[odd] name", "done")
    shown = out.getvalue()
    assert "[odd] name" in shown
    assert "4/4" in shown
    assert "accuracy 51.4%" in shown
    assert shown.rstrip("\n").endswith("\x1b[2K")  # the bar's line is erased at the end


def test_in_a_narrow_terminal_arms_are_named_in_words_beside_whole_numbers() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=90, color_system=None)
    name = "method.name=hist+network.cells=2+training.learning_rate=0.02+training.seed=1"
    with progress({name: 4, "b": 4}, console) as view:
        view.begin(name, OBJECTIVE)
        view.at_work(name, "1,200 client steps")
        for record in RECORDS:
            view.on_round(name, record)
    shown = out.getvalue()
    assert "hist, cells=2," in shown
    assert "method.name" not in shown
    assert "4/4" in shown
    assert "…" not in shown


def test_in_a_terminal_one_bar_of_several_is_of_all() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160, color_system=None)
    with progress({"a": 4, "b": 4}, console) as view:
        for name in ("a", "b"):
            view.begin(name, OBJECTIVE)
            view.at_work(name, "2 client steps")
        for record in RECORDS:
            view.on_round("a", record)
        view.end("a", "done")
    shown = out.getvalue()
    assert "1 of 2, 1 running, " in shown
    assert "4/8" in shown
