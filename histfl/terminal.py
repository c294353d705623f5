"""What reaches a terminal: text that cannot steer it, and a word where work takes long."""

from __future__ import annotations

import sys
import threading
import unicodedata
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

FIRST_WORD_S, NEXT_WORD_S = 3.0, 10.0


def printable(text: str) -> str:
    """`text` with a question mark for every character that would steer a terminal or cannot be written."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" or _is_space(c) else "?" for c in text)


def in_a_line(text: str) -> str:
    """`text` of somebody else as one line of a log: it begins no other, and steers no terminal."""
    return printable(" ".join(text.split()))


def _is_space(character: str) -> bool:
    return unicodedata.category(character) == "Zs"


class Terminal(Console):
    """A console for text from files and from the file system: it is shown as it is, without markup, and what would
    steer the terminal is shown as a question mark."""

    def __init__(self, *, stderr: bool = False) -> None:
        # A table piped to a file or a pager keeps its width instead of being cut at 80.
        wide = None if stderr or sys.stdout.isatty() else 200
        super().__init__(stderr=stderr, width=wide, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


class StillAt:
    """A thread that says what is going on where nothing else was said for a while."""

    def __init__(self, doing: str, console: Console) -> None:
        self._doing, self._console = doing, console
        # Not a Condition: Ctrl-C between its taking its lock and giving it back would leave `stop` waiting for ever.
        self._news: SimpleQueue[Literal["said", "ended"]] = SimpleQueue()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def at(self, doing: str) -> None:
        """What is going on from now on."""
        self._doing = doing

    def said(self) -> None:
        """Something was said: there is no need to speak for a while."""
        self._news.put("said")

    def _tell(self) -> None:
        wait = FIRST_WORD_S
        while True:
            try:
                if self._news.get(timeout=wait) == "ended":
                    return
            except Empty:
                self._console.print(f"{self._doing} ...", highlight=False, markup=False, soft_wrap=True)
            wait = NEXT_WORD_S

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._news.put("ended")
        self._thread.join()

    def __enter__(self) -> StillAt:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
