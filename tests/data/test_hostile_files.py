"""Data files and archives that were made to harm: refused in one line, without memory or time of their choosing."""

from __future__ import annotations

import gzip
import io
import os
import socket
import sys
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from histfl.data import cifar10, download, newsgroups, store
from histfl.data.fashion_mnist import read_idx
from histfl.data.store import Source
from histfl.data.text import load_tokenizer
from histfl.errors import DataError, UsageError

MEGABYTE = 1 << 20


def write_bomb(path: Path, start: bytes, megabytes: int) -> None:
    """A small .gz of `start` and so many megabytes of zeros."""
    path.write_bytes(gzip.compress(start) + megabytes * gzip.compress(bytes(MEGABYTE)))


def peak_bytes(function: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def idx_header(*shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(length.to_bytes(4, "big") for length in shape)


def refused(function: Callable[[], object], said: str) -> Callable[[], None]:
    def check() -> None:
        with pytest.raises(DataError, match=said) as failure:
            function()
        assert "\n" not in str(failure.value)

    return check


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2, 28, 28), "has more than 1584 bytes; its header promises 1584"),
        ((2**32 - 1, 2**32 - 1, 2**32 - 1), r"promises \d+ bytes in its header, more than any file"),
        ((300 * MEGABYTE,), r"promises \d+ bytes in its header, more than any file"),
    ],
)
def test_of_an_idx_file_no_more_is_read_than_its_header_promises(
    tmp_path: Path, shape: tuple[int, ...], said: str
) -> None:
    path = tmp_path / "images.gz"
    write_bomb(path, idx_header(*shape), 400)
    assert path.stat().st_size < MEGABYTE
    assert peak_bytes(refused(lambda: read_idx(path), said)) < 5 * MEGABYTE


def test_a_checksum_of_a_bomb_ends(tmp_path: Path) -> None:
    write_bomb(tmp_path / "one.gz", b"", 150)
    source = Source("small", "", "", 0, "small", contents=(("one.gz", "0" * 64),))
    check = refused(lambda: store.check_contents(source, tmp_path), "has more than 128 MB when unpacked")
    assert peak_bytes(check) < 10 * MEGABYTE


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"])
def test_a_pipe_in_place_of_a_data_file_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    refused(lambda: read_idx(tmp_path / name), "it is a pipe, not a file")()
    refused(lambda: cifar10.read_batches([tmp_path / name]), "it is a pipe, not a file")()
    refused(lambda: store.content_digest(tmp_path / name), "it is a pipe, not a file")()


def test_a_pipe_among_posts_is_no_post(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "1").write_text("text")
    os.mkfifo(tmp_path / "group" / "2")
    assert newsgroups.read_folder(tmp_path).texts == ("text",)


def test_a_pipe_in_a_pretrained_models_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UsageError, match="neither a file nor a folder; remove it"):
        load_tokenizer(str(tmp_path))


def test_a_pipe_where_the_cache_remembers_is_replaced(
    private_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").write_bytes(b"1")
    digest = store.content_digest(tmp_path / "one")
    source = Source("small", "", "", 0, "small", contents=(("one", digest),))
    stamp = store._stamp_path(source, tmp_path)
    stamp.parent.mkdir(parents=True)
    os.mkfifo(stamp)
    store.verify(source, tmp_path)
    assert stamp.is_file()


def deep_archive(parts: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo("d/" * parts + "file")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"1"))
    return buffer.getvalue()


def large_archive() -> bytes:
    """A header that promises 2 GB, and nothing after it."""
    entry = tarfile.TarInfo("file")
    entry.size = 1 << 31
    return gzip.compress(entry.tobuf() + bytes(1024))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (deep_archive(20), "nested too deeply"),
        (deep_archive(sys.getrecursionlimit() + 100), "nested too deeply"),
        (large_archive(), "more than 100000 files or 1024 MB"),
    ],
    ids=["deep", "very deep", "large"],
)
def test_an_archive_of_no_data_set_is_refused_before_it_is_unpacked(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "set.tar.gz").write_bytes(content)
    folder = tmp_path / "unpacked"
    folder.mkdir()
    refused(lambda: download._unpack(tmp_path / "set.tar.gz", folder), said)()
    assert list(folder.iterdir()) == []


def test_folders_nested_deeper_than_python_goes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = 0
    try:
        for _ in range(sys.getrecursionlimit() + 50):
            os.mkdir("d")
            os.chdir("d")
            made += 1
        with suppress(DataError):  # where Python walks without recursion it is none
            assert store._files_under(tmp_path) == []
    finally:
        for _ in range(made):  # pytest's own cleaning is recursive
            os.chdir("..")
            os.rmdir("d")


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers: its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken: list[socket.socket] = []

        def take() -> None:
            try:
                while True:
                    taken.append(listening.accept()[0])
            except OSError:  # closed
                pass

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in taken:
            each.close()


def test_a_server_that_hangs_is_told_at_once_and_left_soon(
    silent: str,
    private_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert max(download._WAIT_S) <= 10
    monkeypatch.setattr(download, "_WAIT_S", (0.5, 0.5))
    source = Source("s", "", "", 0, "s", (("a", "0"),), silent, (("a", "sha256:0"),))
    with pytest.raises(DataError, match=r"cannot download .*timed out.*check the network"):
        download.download(source, tmp_path / "data")
    assert capsys.readouterr().err.startswith(f"downloading {silent}/a\n")
    assert list((tmp_path / "data").iterdir()) == []
