"""What a command says: tables and JSON on standard output, failures as one line."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from histfl.errors import HistflError
from histfl.terminal import Terminal, printable


def console() -> Terminal:
    """Standard output."""
    return Terminal()


def say(text: object, *, err: bool = False) -> None:
    """A line without what would steer a terminal."""
    typer.echo(printable(str(text)), err=err)


def say_path(path: Path) -> None:
    """A path by itself; a program that reads it gets it as it is."""
    say(path) if sys.stdout.isatty() else typer.echo(path)


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def warn(message: str) -> None:
    """One line on standard error, without what would steer a terminal."""
    say(f"histfl: {' '.join(message.split())}", err=True)


def fail(message: str, code: int) -> NoReturn:
    with suppress(OSError):  # nobody may be there to read it
        warn(message)
    try:
        sys.stdout.flush()
    except OSError:
        # What cannot be printed is dropped, or the interpreter tries again at its end, and complains.
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    sys.exit(code)


def open_streams() -> None:
    """A stream that was closed before the program began leads nowhere, and not to the next file that is opened."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (for the program's life)


class Interrupted(HistflError):
    """The user or the system asked the process to stop."""

    exit_code = 130


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """What Ctrl-C does: end. A module that is half imported may swallow that and be left in pieces, of which the rest
    then complains, so that there the process ends at once."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"histfl: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def to_go_on(folder: Path, resume_flag: str | None) -> str:
    """What to type to go on with this command, whose results lie in `folder`."""
    arguments = sys.argv[1:]
    names = {argument.partition("=")[0] for argument in arguments}  # --out DIR or --out=DIR
    missing = [] if "--out" in names else ["--out", str(folder)]
    missing += [] if resume_flag is None or resume_flag in names else [resume_flag]
    return f"histfl {shlex.join([*arguments, *missing])}"


@contextmanager
def interruptible(folder: Path, resume_flag: str | None = "--resume") -> Iterator[None]:
    """Ctrl-C and SIGTERM end in one line that says how to go on; without a flag the command resumes by itself."""

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; go on with: {to_go_on(folder, resume_flag)}") from None
    finally:
        signal.signal(signal.SIGTERM, before)
