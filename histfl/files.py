"""Reading and writing files, safely.

What is read may come from elsewhere: what is no file of its own (a pipe, a device, a socket) is never waited for.
What is written is there whole or not at all.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from histfl.errors import DISK_FAILURES, StorageError, UsageError
from histfl.limits import in_gigabytes, machine_memory

if sys.platform != "win32":
    import fcntl

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_SMALL = 10**8  # bytes that any machine holds
_SHARE = 4  # of the memory that one file's bytes may take: what is made of them takes more
LONGEST_LINE = 5 * 10**7  # bytes, of a line of its own; a record of half a million cells has as many


def open_file(path: Path) -> BinaryIO:
    """`path` to be read; an OSError where it is no regular file, or a link to none."""
    return open(path, "rb", opener=_open_regular)


def read_bytes(path: Path) -> bytes:
    """All of a regular file, where that is not more than the machine can hold."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _SMALL and size > (machine_memory() or size) / _SHARE:
            raise OSError(f"it has {in_gigabytes(size)}, too much to be read at once")
        return file.read()


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a regular file, one after another; what follows the last newline is none."""
    with open_file(path) as file:
        while line := file.readline(LONGEST_LINE):
            if not line.endswith(b"\n"):
                if len(line) == LONGEST_LINE:
                    raise OSError(f"it has a line of more than {in_gigabytes(LONGEST_LINE)}")
                return
            yield line[:-1]


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """All of a regular file as text, any end of line as a newline."""
    if (size := path.stat().st_size) > _SMALL:
        raise OSError(f"it has {in_gigabytes(size)}, more than any text of this kind")
    return read_bytes(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def check_regular(path: Path | str) -> None:
    """An OSError where `path` is not there or no regular file; for those that others open."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file")


def _open_regular(path: str, flags: int) -> int:
    check_regular(path)  # before it is opened, which means something to a device
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # what takes its place meanwhile ends at once


def write_whole(path: Path, data: bytes) -> None:
    """Whole or not at all: a new file takes the old one's name once it is safely on the disk.

    Any number of processes may write one path at a time: each has an unfinished file of its own, which it holds
    locked, and the last to end stays. What killed processes left is taken away.
    """
    with storage_errors(path):
        _remove_unfinished(path)
        unfinished, file = _unfinished(path)
        try:
            with file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                if sys.platform == "win32":
                    file.close()  # there an open file keeps its name
                unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _unfinished(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside `path`, never one that a link leads to, locked as long as it is open."""
    while True:
        unfinished = path.with_name(f"{_short(path.name)}.{secrets.token_hex(4)}.unfinished")
        file = unfinished.open("xb")
        if _lock(file.fileno()) is not False and unfinished.exists():
            return unfinished, file
        file.close()  # another process took it for a leftover before it was locked


def _remove_unfinished(path: Path) -> None:
    """Take away the unfinished files of `path` that no process holds; of a link, not what it leads to."""
    pattern = re.compile(re.escape(_short(path.name)) + r"(\.[0-9a-f]{8})?\.unfinished")
    with suppress(OSError):  # they are in nobody's way
        for left in [entry for entry in path.parent.iterdir() if pattern.fullmatch(entry.name)]:
            if left.is_symlink():
                left.unlink(missing_ok=True)
            elif left.is_file():
                with left.open("rb") as file:
                    if _lock(file.fileno()):
                        left.unlink(missing_ok=True)


def _short(name: str) -> str:
    """What leaves room for an ending where a name is as long as names may be."""
    return os.fsdecode(os.fsencode(name)[:200])


def _lock(descriptor: int) -> bool | None:
    """Lock an open file: False where another process holds it, None where the disk has no such locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in DISK_FAILURES:
            raise StorageError(f"cannot write {path}: {reason}; free space or write elsewhere") from error
        raise UsageError(f"cannot write {path}: {reason}; write elsewhere") from error
