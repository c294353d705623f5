"""Files that may come from elsewhere: what is no file of its own (a pipe, a device, a socket) is never waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from histfl.limits import in_gigabytes, machine_memory

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_SMALL = 10**8  # bytes that any machine holds
_SHARE = 4  # of the memory that one file's bytes may take: what is made of them takes more


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


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """All of a regular file as text, any end of line as a newline."""
    return read_bytes(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def check_regular(path: Path | str) -> None:
    """An OSError where `path` is not there or no regular file; for those that others open."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file")


def _open_regular(path: str, flags: int) -> int:
    check_regular(path)  # before it is opened, which means something to a device
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # what takes its place meanwhile ends at once
