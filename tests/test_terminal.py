"""Text from elsewhere cannot steer a terminal, and long work says what it does."""

from __future__ import annotations

import io
import itertools
import sys
import threading
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from histfl import terminal
from histfl.terminal import StillAt, Terminal, printable

STEERING = "\x1b[31m\x1b]0;title\x07\x9b2J\x00\r\x08\u202e\u200b\udc80"


@given(st.text(st.characters(codec=None)))
def test_printable_text_has_no_character_that_steers(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert printable(shown) == shown
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
    assert not any(127 <= ord(c) < 160 for c in shown)
    shown.encode()  # no lone surrogate


def test_ordinary_text_stays() -> None:
    text = "runs/größe 東京 é\u00a0ü [odd]\tx\n"
    assert printable(text) == text
    assert printable(STEERING) == "?[31m?]0;title??2J??????"


def test_tables_texts_and_progress_show_it_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Terminal()
    table = Table(f"head{STEERING}", title=STEERING)
    table.add_row(Text(STEERING), f"[bold]{STEERING}[/bold]")
    table.add_row("[/]", ":car:")
    screen.print(table)
    screen.print(STEERING)
    with Progress(TextColumn("{task.description}", markup=False), console=Terminal(stderr=True)) as bar:
        bar.add_task(STEERING)
    captured = capsys.readouterr()
    for said in (captured.out, captured.err):
        assert "[31m" in said  # as text
        assert printable(said) == said
    assert "[bold]" in captured.out
    assert "[/]" in captured.out
    assert ":car:" in captured.out


class Lines(io.StringIO):
    """Tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if "\n" in text:
            self.written.set()
        return count


def test_long_work_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "FIRST_WORD_S", 0.01)
    monkeypatch.setattr(terminal, "NEXT_WORD_S", 0.01)
    out = Lines()
    with StillAt("at first", Console(file=out)) as still:
        assert out.written.wait(60)
        still.at("[then]")
        while "[then]" not in out.getvalue():
            assert out.written.wait(60)
    assert out.getvalue().startswith("at first ...\n")
    assert "[then] ...\n" in out.getvalue()


def test_short_work_says_nothing() -> None:
    out = Lines()
    with StillAt("at first", Console(file=out)) as still:
        still.said()
    assert out.getvalue() == ""


class Interrupt(BaseException):
    """As Ctrl-C, at a moment of the test's choice."""


def test_an_interrupt_at_any_point_leaves_nobody_waiting() -> None:
    """Also where it comes between taking a lock and giving it back."""
    for moment in itertools.count(1):
        still, left = StillAt("training", Terminal(stderr=True)), moment

        def interrupt(frame: FrameType, event: str, value: object) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Interrupt
            return interrupt

        still.start()
        before = sys.gettrace()
        try:
            sys.settrace(interrupt)
            still.said()
        except Interrupt:
            pass
        finally:
            sys.settrace(before)
        end = threading.Thread(target=still.stop, daemon=True)
        end.start()
        end.join(10)
        assert not end.is_alive(), moment
        if left > 0:
            break  # nothing was left to interrupt
    assert moment > 2
