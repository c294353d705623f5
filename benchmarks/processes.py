"""Contenders as processes: start them, ask them for turns, and see what their process trees use.

Between its turns a contender is stopped with all its processes, so that whoever has the turn has the machine:
Flower's processes, for one, take a twentieth of a core while they wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_LIMIT_S, TURN_LIMIT_S = 300.0, 1800.0
WAKING_S = 1.0  # before a turn, for what a contender does on its own account after a pause
SAMPLES_A_SECOND = 20
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class ContenderError(RuntimeError):
    """A contender that did not start or did not finish its turn."""


class Contender:
    """A contender's process, in a session of its own so that all it starts ends with it."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, variables: dict[str, str], *, log: Path
    ) -> None:
        self.name = name
        self._log = log
        path = folder / f"{name}.socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(0.5)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--socket", str(path), "--name", name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                start_new_session=True,
            )
        with listener:
            connection = self._accepted(listener)
        connection.settimeout(TURN_LIMIT_S)
        self._channel = connection.makefile("rw", encoding="utf-8")
        connection.close()  # the channel keeps it open
        self._answer()
        self._send(signal.SIGSTOP)

    def turn(self, **request: object) -> dict[str, Any]:
        """Ask for a turn; the answer, with the processor seconds of the whole tree."""
        self._send(signal.SIGCONT)
        time.sleep(WAKING_S)
        before = cpu_seconds(self._process.pid)
        with contextlib.suppress(BrokenPipeError):  # it has ended, as the missing answer will tell
            self._channel.write(json.dumps(request) + "\n")
            self._channel.flush()
        answer = self._answer()
        answer["cpu_seconds"] = cpu_seconds(self._process.pid) - before
        self._send(signal.SIGSTOP)
        return answer

    def _send(self, number: signal.Signals) -> None:
        for process in tree(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def peak_memory(self, **request: object) -> int | None:
        """The most memory of the tree during a turn, in bytes; pages that processes share count once."""
        sizes: list[int] = []
        done = threading.Event()

        def watch() -> None:
            while not done.wait(1 / SAMPLES_A_SECOND):
                sizes.append(tree_memory(self._process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self.turn(**request)
        finally:
            done.set()
            watcher.join()
        return max(sizes, default=0) or None

    def _accepted(self, listener: socket.socket) -> socket.socket:
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self._process.poll() is None:
            with contextlib.suppress(TimeoutError):
                return listener.accept()[0]
        self.close()
        raise ContenderError(f"{self.name} did not start: {self._last_words()}")

    def _answer(self) -> dict[str, Any]:
        line, what = "", "ended early"
        try:
            line = self._channel.readline()
        except TimeoutError:
            what = f"took more than {TURN_LIMIT_S:.0f} s"
        except ConnectionError:
            pass
        if not line:
            self.close()
            raise ContenderError(f"{self.name} {what}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
        return (
            f"{lines[-1].strip() if lines else 'it said nothing'} (all of it in {os.path.relpath(self._log)})"
        )

    def close(self) -> None:
        """Let it end by itself, and end what is left of its session."""
        self._send(signal.SIGCONT)
        with contextlib.suppress(AttributeError, OSError):
            self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20 if hasattr(self, "_channel") else 0)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
                time.sleep(0.5)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def tree(root: int) -> Iterator[int]:
    """A process and all its descendants; none where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    waiting = [root]
    while waiting:
        process = waiting.pop()
        yield process
        waiting += children.get(process, [])


def cpu_seconds(root: int) -> float:
    """Processor seconds of the tree's living processes, and of their ended children."""
    ticks = 0
    for process in tree(root):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{process}/stat").read_text("utf-8", errors="replace")
            ticks += sum(map(int, text.rpartition(")")[2].split()[11:15]))
    return ticks / TICKS_A_SECOND


def tree_memory(root: int) -> int:
    """Bytes of the tree (proportional set sizes)."""
    kilobytes = 0
    for process in tree(root):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text("utf-8").splitlines():
                if line.startswith("Pss:"):
                    kilobytes += int(line.split()[1])
    return kilobytes * 1024
