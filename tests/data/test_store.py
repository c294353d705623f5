"""Finding, checking and downloading data sets, against a real HTTP server on this machine."""

from __future__ import annotations

import contextlib
import errno
import gc
import gzip
import hashlib
import http.server
import io
import shutil
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pooch
import pytest

from histfl.data import DATASETS, download, fetch, load, load_text, locate, store
from histfl.data.store import Source
from histfl.errors import DataError, StorageError, UsageError

CONTENT = bytes(range(256)) * 400
PACKED = gzip.compress(CONTENT, mtime=0)


class Server:
    """Serves `files`; of those in `cut`, only half before the connection closes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.requested: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/")
                outer.requested.append(name)
                if name not in outer.files:
                    self.send_error(404)
                    return
                body = outer.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if name in outer.cut else body)

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    serving = Server()
    thread = threading.Thread(target=serving.http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield serving
    serving.http.shutdown()
    thread.join()
    serving.http.server_close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def files_source(server: Server) -> Source:
    server.files = {"one.gz": PACKED, "two": b"two"}
    return Source(
        name="small",
        description="",
        licence="",
        download_megabytes=0,
        folder="small-set",
        contents=(("one.gz", sha256(CONTENT)), ("two", sha256(b"two"))),
        base_url=server.url,
        downloads=(("one.gz", f"md5:{hashlib.md5(PACKED).hexdigest()}"), ("two", f"sha256:{sha256(b'two')}")),
    )


def tar_bytes(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def archive_source(server: Server, members: dict[str, bytes]) -> Source:
    packed = tar_bytes(members)
    server.files = {"set.tar.gz": packed}
    return Source(
        name="archived",
        description="",
        licence="",
        download_megabytes=0,
        folder="inside",
        contents=(("a.bin", sha256(b"a")), ("b", sha256(f"c\0{sha256(b'c')}\n".encode()))),
        base_url=server.url,
        downloads=(("set.tar.gz", f"sha256:{sha256(packed)}"),),
    )


def left_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def open_connections(server: Server) -> list[socket.socket]:
    """The sockets of this process that are connected to the server."""
    found = []
    for thing in gc.get_objects():
        if type(thing) is socket.socket and thing.fileno() >= 0:
            with contextlib.suppress(OSError):  # not connected
                if thing.getpeername() == server.http.server_address:
                    found.append(thing)
    return found


def test_a_good_download_is_placed_found_and_not_repeated(server, private_cache, tmp_path):
    source = files_source(server)
    folder = download.download(source, tmp_path / "data")
    assert folder == tmp_path / "data" / "small-set"
    assert left_in(tmp_path / "data") == ["small-set", "small-set/one.gz", "small-set/two"]
    assert store.locate(source, tmp_path / "data") == folder
    store.verify(source, folder)
    assert download.download(source, tmp_path / "data") == folder
    assert server.requested == ["one.gz", "two"]


def test_without_a_folder_the_user_cache_is_used(server, private_cache):
    source = files_source(server)
    assert download.download(source) == private_cache / "small-set"
    assert store.locate(source) == private_cache / "small-set"


def test_the_environment_names_the_folder(server, private_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HISTFL_DATA", str(tmp_path / "mine"))
    source = files_source(server)
    assert download.download(source) == tmp_path / "mine" / "small-set"
    assert store.locate(source) == tmp_path / "mine" / "small-set"


@pytest.mark.parametrize("trouble", ["corrupted", "missing", "interrupted", "unreachable"])
def test_a_failed_download_leaves_nothing_and_a_later_one_works(server, private_cache, tmp_path, trouble):
    source = files_source(server)
    good = dict(server.files)
    base_url = None
    says = "cannot download"
    if trouble == "corrupted":
        server.files["two"] = b"twO"
        says = "is not the published file"
    elif trouble == "missing":
        del server.files["two"]
        says = "404"
    elif trouble == "interrupted":
        server.cut.add("one.gz")
    else:
        base_url = "http://127.0.0.1:1"
    with pytest.raises(DataError, match=says) as failure:
        download.download(source, tmp_path / "data", base_url=base_url)
    assert "\n" not in str(failure.value)
    assert open_connections(server) == []
    assert left_in(tmp_path / "data") == []
    with pytest.raises(DataError, match="small is not in"):
        store.locate(source, tmp_path / "data")
    server.files = good
    server.cut.clear()
    folder = download.download(source, tmp_path / "data")
    assert gzip.decompress((folder / "one.gz").read_bytes()) == CONTENT


def test_a_damaged_copy_is_reported_and_a_fetch_replaces_it(server, private_cache, tmp_path):
    source = files_source(server)
    folder = download.download(source, tmp_path)
    (folder / "two").write_bytes(b"2")
    with pytest.raises(
        DataError, match=r"two is not the published small .* remove it and type: histfl data fetch"
    ):
        store.verify(source, folder)
    assert download.download(source, tmp_path) == folder
    store.verify(source, folder)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".histfl")]


def test_another_gzip_header_or_no_gzip_is_the_same_content(server, private_cache, tmp_path):
    source = files_source(server)
    for name, content in (("one.gz", gzip.compress(CONTENT, 1, mtime=12345)), ("one", CONTENT)):
        folder = tmp_path / name / "small-set"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
        (folder / "two").write_bytes(b"two")
        store.verify(source, store.locate(source, tmp_path / name))


def test_verification_is_remembered_until_a_file_changes(server, private_cache, tmp_path, monkeypatch):
    source = files_source(server)
    folder = download.download(source, tmp_path)
    hashed: list[Path] = []
    digest = store.content_digest
    monkeypatch.setattr(store, "content_digest", lambda path: hashed.append(path) or digest(path))
    store.verify(source, folder)
    assert len(hashed) == 2
    store.verify(source, folder)
    assert len(hashed) == 2
    (folder / "two").write_bytes(b"two ")
    with pytest.raises(DataError):
        store.verify(source, folder)


def test_a_cache_that_cannot_be_written_only_forgets(server, private_cache, tmp_path):
    source = files_source(server)
    folder = download.download(source, tmp_path / "data")
    private_cache.parent.mkdir(exist_ok=True)
    private_cache.write_text("a file where the cache folder should be")
    store.verify(source, folder)
    store.verify(source, folder)


@pytest.mark.parametrize("prefix", ["inside/", ""])
def test_an_archive_is_unpacked(server, private_cache, tmp_path, prefix):
    source = archive_source(server, {f"{prefix}a.bin": b"a", f"{prefix}b/c": b"c"})
    folder = download.download(source, tmp_path / "data")
    assert left_in(tmp_path / "data") == ["inside", "inside/a.bin", "inside/b", "inside/b/c"]
    store.verify(source, folder)


def test_an_archive_that_writes_elsewhere_or_is_damaged_is_refused(server, private_cache, tmp_path):
    source = archive_source(server, {"../outside": b"x", "inside/a.bin": b"a", "inside/b/c": b"c"})
    with pytest.raises(DataError, match=r"cannot unpack set\.tar\.gz"):
        download.download(source, tmp_path / "data")
    assert left_in(tmp_path / "data") == []
    broken = server.files["set.tar.gz"][:-30]
    server.files["set.tar.gz"] = broken
    damaged = Source(**{**vars(source), "downloads": (("set.tar.gz", f"sha256:{sha256(broken)}"),)})
    with pytest.raises(DataError):
        download.download(damaged, tmp_path / "data")
    assert left_in(tmp_path / "data") == []


def test_an_archive_with_other_content_is_refused(server, private_cache, tmp_path):
    source = archive_source(server, {"inside/a.bin": b"a", "inside/b/c": b"c", "inside/b/d": b"d"})
    with pytest.raises(DataError, match="not the published archived"):
        download.download(source, tmp_path / "data")
    assert left_in(tmp_path / "data") == []


def test_a_place_that_is_no_folder_is_reported(server, private_cache, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="choose another --data-dir"):
        download.download(files_source(server), tmp_path / "file")


def test_disk_failures_are_storage_errors():
    full = store.disk_error(OSError(errno.ENOSPC, "No space left on device"), Path("x"))
    assert isinstance(full, StorageError)
    assert "No space left" in str(full)
    assert store.disk_error(OSError("no number"), Path("x")) is None


def test_a_missing_data_set_says_where_it_looked_and_what_to_type(private_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HISTFL_DATA", str(tmp_path / "env"))
    with pytest.raises(
        DataError, match=r"there is no folder .*given; .*type: histfl data fetch fashion-mnist --data-dir"
    ):
        load("fashion-mnist", tmp_path / "given")
    (tmp_path / "given").mkdir()
    with pytest.raises(DataError) as failure:
        load("fashion-mnist", tmp_path / "given")
    message = str(failure.value)
    for place in (tmp_path / "given", tmp_path / "env", private_cache, tmp_path / "system"):
        assert str(place) in message
    assert message.endswith(f"type: histfl data fetch fashion-mnist --data-dir {tmp_path / 'given'}")
    with pytest.raises(DataError, match=r"--data-dir DIR$"):
        locate("cifar10")


@pytest.mark.parametrize("layout", ["fashion-mnist", "FashionMNIST/raw", "."])
def test_fashion_mnist_is_found_in_each_layout(private_cache, tmp_path, layout):
    folder = tmp_path / "data" / layout
    folder.mkdir(parents=True)
    for name, _ in DATASETS["fashion-mnist"].contents:
        (folder / name).write_bytes(b"")
    assert locate("fashion-mnist", tmp_path / "data").resolve() == folder.resolve()
    with pytest.raises(DataError, match="not the published fashion-mnist"):
        load("fashion-mnist", tmp_path / "data")


@pytest.mark.parametrize("function", [load, load_text, locate, fetch])
def test_an_unknown_name_is_answered_with_the_nearest(function):
    with pytest.raises(UsageError, match="did you mean 'fashion-mnist'"):
        function("fashion_mnist")
    with pytest.raises(UsageError, match="known data sets: fashion-mnist-mini, fashion-mnist, cifar10"):
        function("zzzzzz")


def test_text_and_tensor_sets_point_to_each_other():
    with pytest.raises(UsageError, match="load_text"):
        load("20newsgroups")
    with pytest.raises(UsageError, match=r"histfl\.data\.load\("):
        load_text("cifar10")


def test_the_embedded_set_needs_no_download(private_cache):
    assert fetch("fashion-mnist-mini") == locate("fashion-mnist-mini")
    assert load("fashion-mnist-mini")[0].num_classes == 10


def test_the_full_fashion_mnist_is_fetched_from_a_mirror(server, full_data, private_cache, tmp_path):
    published = store.locate(DATASETS["fashion-mnist"], full_data)
    for name, _ in DATASETS["fashion-mnist"].downloads:
        server.files[name] = (published / name).read_bytes()
    folder = fetch("fashion-mnist", tmp_path / "data", base_url=server.url)
    assert len(load("fashion-mnist", tmp_path / "data")[0]) == 60_000
    shutil.rmtree(folder)


def test_the_progress_bar_counts_the_bytes_and_keeps_standard_output_clean(server, tmp_path, capsys):
    server.files = {"one.gz": PACKED}
    bar = download._ProgressBar("one.gz")
    pooch.HTTPDownloader(progressbar=bar)(f"{server.url}/one.gz", str(tmp_path / "one.gz"), None)
    assert bar.total == len(PACKED)
    assert bar.completed == len(PACKED)
    assert capsys.readouterr().out == ""
