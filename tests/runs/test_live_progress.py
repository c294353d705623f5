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

RECORDS: list[dict[str, Any]] = made_up_rounds(load_config("quickstart"), rounds=4)


def test_elsewhere_the_first_and_the_last_word_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    with progress("[odd] name", 4, Console(file=out, width=40)) as on_round:
        for record in RECORDS:
            clock[0] += 6.0  # a line every ten seconds, and the last round's in any case
            on_round(record)
    assert out.getvalue().splitlines() == [
        "[odd] name: round 2/4, accuracy 0.360, 1.4 MB a client, 0.22 simulated s",
        "[odd] name: round 4/4, accuracy 0.514, 2.8 MB a client, 0.44 simulated s",
    ]


def test_in_a_terminal_a_bar_moves_and_leaves_nothing_behind() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    with progress("[odd] name", 4, console) as on_round:
        for record in RECORDS:
            on_round(record)
            console.file.flush()
    shown = out.getvalue()
    assert "[odd] name" in shown
    assert "4/4" in shown
    assert "accuracy 0.514" in shown
    assert shown.rstrip("\n").endswith("\x1b[2K")  # the bar's line is erased at the end
