"""Where data sets lie on this machine, and whether they are what was published."""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from histfl.data.dataset import TensorData, TextData
from histfl.errors import DISK_FAILURES, DataError, StorageError
from histfl.files import open_file, read_text

ENVIRONMENT_VARIABLE = "HISTFL_DATA"
DEBIAN_DATASETS = Path("/usr/share/datasets")
_CHUNK_BYTES = 1 << 20
LARGEST_FILE = 1 << 27  # bytes, unpacked; no file of a published data set has half of it

TensorPair: TypeAlias = tuple[TensorData, TensorData]
TextPair: TypeAlias = tuple[TextData, TextData]


@dataclass(frozen=True)
class Source:
    """A data set: what it is, where it is published, and how its folder is read.

    `contents` pairs each file or subfolder with a SHA-256: of a file's content after decompression
    (distributions repack the .gz files), of a subfolder's listing of such checksums. `downloads`
    pairs each published file with its checksum as published ("md5:..." or "sha256:..."). `train_samples`, where it is known,
    lets a network with more clients be refused before anything is read.
    """

    name: str
    description: str
    licence: str
    download_megabytes: float
    folder: str
    contents: tuple[tuple[str, str], ...] = ()
    base_url: str = ""
    downloads: tuple[tuple[str, str], ...] = ()
    other_folders: tuple[str, ...] = ()
    packaged_in: Path | None = None
    train_samples: int | None = None
    load: Callable[[Path], TensorPair] | None = None
    load_text: Callable[[Path, frozenset[str]], TextPair] | None = None
    normalisation: dict[str, list[float]] | None = None  # of bytes / 255, "mean" and "std" by channel


def places(data_dir: Path | str | None = None) -> list[Path]:
    """The folders that may hold data sets, in the order in which they are searched."""
    named = [data_dir, os.environ.get(ENVIRONMENT_VARIABLE)]
    found = [Path(place).expanduser() for place in named if place]
    return list(dict.fromkeys([*found, user_cache(), DEBIAN_DATASETS]))


def user_cache() -> Path:
    """The user's cache folder of this package; of a user without a home, one below the system's own."""
    import pooch  # takes a while, and most runs need none of it

    place = Path(pooch.os_cache("histfl"))
    return place if place.is_absolute() else Path(tempfile.gettempdir()) / f"histfl-{_user()}"


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "cache"


def locate(source: Source, data_dir: Path | str | None = None) -> Path:
    """The folder that holds all files of `source`; a DataError says where it looked and what to type."""
    if source.packaged_in is not None:
        return source.packaged_in
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise DataError(
            f"there is no folder {data_dir}; name one that has {source.name}, or type: "
            f"{fetch_command(source.name, data_dir)}"
        )
    searched = places(data_dir)
    for place in searched:
        for folder in (source.folder, *source.other_folders):
            if all(_member(place / folder, name) for name, _ in source.contents):
                return place / folder
    raise DataError(
        f"{source.name} is not in {', '.join(map(str, searched))}; "
        f"type: {fetch_command(source.name, data_dir or 'DIR')}"
    )


def fetch_command(name: str, data_dir: Path | str) -> str:
    """What to type to download a data set."""
    return f"histfl data fetch {name} --data-dir {data_dir}"


def verify(source: Source, folder: Path) -> None:
    """Checks every file's content, once: a stamp in the user's cache remembers sizes and times."""
    stamp = _stamp_path(source, folder)
    seen = _fingerprint(source, folder)
    if _read_stamp(stamp) == seen:
        return
    check_contents(source, folder)
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)  # whatever lies there
        stamp.write_text(seen, encoding="ascii")
    except OSError:
        pass  # a cache that cannot be written only means checking again next time


def check_contents(source: Source, folder: Path) -> None:
    """A DataError that names the first file or subfolder whose content is not as published."""
    for name, expected in source.contents:
        path = _member(folder, name)
        if path is None:
            raise DataError(f"{folder} has no {name}; type: {fetch_command(source.name, 'DIR')}")
        if content_digest(path) != expected:
            raise DataError(
                f"{path} is not the published {source.name} (its checksum differs); "
                f"remove it and type: {fetch_command(source.name, 'DIR')}"
            )


def content_digest(path: Path) -> str:
    """SHA-256 in hex of a file's content after decompression, or of a folder's sorted listing."""
    digest = hashlib.sha256()
    if path.is_dir():
        for file in _files_under(path):
            digest.update(
                f"{file.relative_to(path).as_posix()}\0{content_digest(file)}\n".encode(
                    errors="surrogateescape"
                )
            )
        return digest.hexdigest()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def read_content(path: Path, most: int = LARGEST_FILE) -> bytes:
    """A file's first `most` bytes, decompressed where the name ends in .gz; a DataError if that fails."""
    return b"".join(_chunks(path, most))[:most]


def member(folder: Path, name: str) -> Path:
    """The file `name` in `folder`, or the same without .gz; a DataError if neither is there."""
    path = _member(folder, name)
    if path is None:
        raise DataError(f"{folder} has no {name}; fetch the data set again")
    return path


def disk_error(error: OSError, path: Path) -> StorageError | None:
    """The StorageError for a disk that failed, or None where the failure is something else."""
    if error.errno not in DISK_FAILURES:
        return None
    return StorageError(
        f"cannot write {path}: {error.strerror}; free some space or choose another --data-dir"
    )


def _member(folder: Path, name: str) -> Path | None:
    candidates = [folder / name]
    if name.endswith(".gz"):
        candidates.append(folder / name.removesuffix(".gz"))  # unpacked, as torchvision leaves them
    return next((path for path in candidates if path.exists()), None)


def _chunks(path: Path, most: int | None = None) -> Iterator[bytes]:
    """All of a file, or its chunks until there are `most` bytes. A small file may unpack to any number of them."""
    done = 0
    try:
        with open_file(path) as packed, _unpacked(path, packed) as file:
            while (most is None or done < most) and (chunk := file.read(_CHUNK_BYTES)):
                yield chunk
                done += len(chunk)
                if done > LARGEST_FILE:
                    raise DataError(
                        f"{path} has more than {LARGEST_FILE >> 20} MB when unpacked, more than any file of a data set; "
                        "remove it and fetch the data set again"
                    )
    except (OSError, EOFError, zlib.error) as error:  # BadGzipFile is an OSError
        raise DataError(f"cannot read {path}: {error}; fetch the data set again") from None


def _unpacked(path: Path, file: BinaryIO) -> BinaryIO | gzip.GzipFile:
    return gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file


def _files_under(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.rglob("*") if path.is_file()]
    except RecursionError:
        raise DataError(
            f"{folder} has folders nested too deeply; remove it and fetch the data set again"
        ) from None
    return sorted(found, key=lambda path: path.as_posix())


def _fingerprint(source: Source, folder: Path) -> str:
    """Changes whenever a file of the data set, or what is expected of it, does."""
    digest = hashlib.sha256()
    for name, expected in source.contents:
        digest.update(f"{name}\0{expected}\n".encode())
        path = _member(folder, name)
        files = [] if path is None else _files_under(path) if path.is_dir() else [path]
        for file in files:
            status = file.stat()
            digest.update(
                f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape")
            )
    return digest.hexdigest()


def _stamp_path(source: Source, folder: Path) -> Path:
    place = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return user_cache() / "verified" / f"{source.name}-{place}"


def _read_stamp(path: Path) -> str:
    try:
        return read_text(path, "ascii")
    except (OSError, UnicodeDecodeError):
        return ""
