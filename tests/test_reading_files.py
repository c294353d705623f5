"""Only files are read: nothing waits for a pipe, a device or a socket, and nothing is larger than the machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from histfl.files import check_regular, open_file, read_bytes, read_text


def pipe(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


NO_FILES: dict[str, Callable[[Path], None]] = {
    "a pipe": pipe,
    "a socket": bound_socket,
    "a device": endless,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("read", [read_bytes, read_text, open_file, check_regular])
def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, read: Callable[[Path], object]
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    NO_FILES[kind](Path("odd"))
    with pytest.raises(OSError, match=f"it is {kind}, not a file"):
        read(Path("odd"))


def test_files_and_links_to_files_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes("\ufeffa\r\nb\rc\n".encode())
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert read_bytes(tmp_path / "two") == (tmp_path / "one").read_bytes()
    assert read_text(tmp_path / "two", "utf-8-sig") == "a\nb\nc\n"
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "three")


def test_a_file_that_is_larger_than_the_machine_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        try:
            file.truncate(10**13)  # without a block on the disk
        except OSError:
            pytest.skip("this file system has no files of that size")
    with pytest.raises(OSError, match="it has 10,000 GB, too much"):
        read_bytes(tmp_path / "huge")
