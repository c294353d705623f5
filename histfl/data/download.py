"""Downloads: checked against published checksums, and placed whole or not at all."""

from __future__ import annotations

import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from histfl.data.store import Source, check_contents, disk_error, locate, places
from histfl.errors import DataError, in_one_line
from histfl.terminal import StillAt, Terminal

_STAGING_PREFIX = ".histfl-fetch-"
_WAIT_S = (5.0, 10.0)  # for a connection, and for the next bytes
_MOST_PARTS, _MOST_MEMBERS, _MOST_BYTES = 16, 100_000, 1 << 30  # of an archive: published ones have a tenth
_AS_STORED = {"Accept-Encoding": "identity"}  # or a server may unpack a .gz, whose checksum then differs


def download(source: Source, data_dir: Path | str | None = None, *, base_url: str | None = None) -> Path:
    """Downloads `source` into `data_dir` (by default $HISTFL_DATA, else the user's cache).

    Returns its folder. Files gather in a hidden folder beside the final one, which is put in place by
    one rename after every checksum has matched, so an interruption leaves nothing that looks whole.
    A whole copy already there (without `data_dir`: in any place that is searched) is left alone; a
    damaged one is replaced.
    """
    if source.packaged_in is not None:
        return source.packaged_in
    directory = places(data_dir)[0]
    target = directory / source.folder
    try:
        if whole := _already_there(source, data_dir):
            return whole
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=_STAGING_PREFIX) as staging:
            folder = _gather(source, Path(staging), base_url or source.base_url)
            check_contents(source, folder)
            _put_in_place(folder, target, Path(staging))
    except OSError as error:
        raise disk_error(error, target) or DataError(
            f"cannot place {source.name} in {directory}: {error.strerror or error}; choose another --data-dir"
        ) from None
    return target


def _gather(source: Source, staging: Path, base_url: str) -> Path:
    """Downloads and unpacks everything under `staging`; returns the data set's folder there."""
    folder = staging / source.folder
    folder.mkdir()
    for name, checksum in source.downloads:
        url = f"{base_url.rstrip('/')}/{name}"
        _download_file(url, folder / name, checksum)
        if name.endswith((".tar.gz", ".tgz")):
            _unpack(folder / name, folder)
            (folder / name).unlink()
    inner = folder / source.folder  # an archive may or may not hold the folder itself
    return inner if inner.is_dir() else folder


def _download_file(url: str, path: Path, checksum: str) -> None:
    import pooch  # takes a while, and most runs need none of it

    bar: _ProgressBar | _ProgressLines = (
        _ProgressBar(path.name) if sys.stderr.isatty() else _ProgressLines(url)
    )
    try:
        pooch.HTTPDownloader(progressbar=bar, headers=_AS_STORED, timeout=_WAIT_S)(url, str(path), None)
    except (OSError, ValueError) as error:  # the errors of requests are OSErrors, some also ValueErrors
        if (response := getattr(error, "response", None)) is not None:
            response.close()  # an answer such as 404 keeps its connection, and pooch leaves it open
        storage = disk_error(error, path) if isinstance(error, OSError) else None
        raise storage or DataError(
            f"cannot download {url}: {in_one_line(error)}; check the network, "
            "or copy the files there yourself and name their folder with --data-dir"
        ) from None
    finally:
        bar.close()
    if not pooch.hashes.hash_matches(str(path), checksum):
        raise DataError(
            f"{url} is not the published file (its checksum is not {checksum}); "
            "try again later or from another mirror"
        )


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter=_bounded(archive.name))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"cannot unpack {archive.name}: {in_one_line(error)}; download it again") from None


def _bounded(archive: str) -> Callable[[tarfile.TarInfo, str], tarfile.TarInfo | None]:
    """tarfile's filter for data (no path outside the folder, no device, no link out), for an archive that is not
    deeper, and has not more in it, than a data set could have."""
    members = size = 0

    def check(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
        nonlocal members, size
        members, size = members + 1, size + member.size
        if member.name.count("/") >= _MOST_PARTS:
            raise DataError(f"cannot unpack {archive}: it has folders nested too deeply; download it again")
        if members > _MOST_MEMBERS or size > _MOST_BYTES:
            raise DataError(
                f"cannot unpack {archive}: it has more than {_MOST_MEMBERS} files or {_MOST_BYTES >> 20} MB; "
                "download it again"
            )
        return tarfile.data_filter(member, place)

    return check


def _put_in_place(folder: Path, target: Path, staging: Path) -> None:
    if target.exists():
        target.rename(staging / "replaced")  # goes away with the staging folder
    folder.rename(target)


def _already_there(source: Source, data_dir: Path | str | None) -> Path | None:
    try:
        folder = locate(source, data_dir)
        if data_dir is not None and not folder.is_relative_to(places(data_dir)[0]):
            return None  # the user wants it in that folder
        check_contents(source, folder)
    except DataError:
        return None
    return folder


class _ProgressLines:
    """Lines on standard error with what pooch calls: what is downloaded at once, and how far it is now and then."""

    total: int = 0  # set by pooch where the sender says it

    def __init__(self, url: str) -> None:
        self._doing = f"downloading {url}"
        self._bytes = 0
        screen = Terminal(stderr=True)
        screen.print(self._doing, highlight=False, soft_wrap=True)
        self._still = StillAt(f"{self._doing}: no answer yet", screen)
        self._still.start()

    def update(self, advance_bytes: int) -> None:
        self._bytes += advance_bytes
        of = f" of {self.total / 1e6:.1f}" if self.total else ""
        self._still.at(f"{self._doing}: {self._bytes / 1e6:.1f}{of} MB")

    def reset(self) -> None:
        self._bytes = 0

    def close(self) -> None:
        self._still.stop()


class _ProgressBar:
    """A Rich bar on standard error with the four names that pooch calls."""

    def __init__(self, name: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=Terminal(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, total_bytes: int) -> None:
        self._progress.update(self._task, total=total_bytes or None)

    @property
    def completed(self) -> float:
        return self._progress.tasks[self._task].completed

    def update(self, advance_bytes: int) -> None:
        self._progress.update(self._task, advance=advance_bytes)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()
