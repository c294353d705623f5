"""The Ray cluster that workers live in: one of this machine's own by default, closed to all others, or one that is
there already. Ray schedules, moves objects and notices failures; nothing of that is done here.

What is sent to a worker is code as well as data, so whoever reaches a cluster's ports and knows its token runs code on
it. A cluster of our own listens on 127.0.0.1 alone and has a token that this process alone knows.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from histfl.arguments import between, whole
from histfl.errors import HistflError, UsageError, in_one_line, missing_extra, shown

_log = logging.getLogger(__name__)
# "0" binds every port to 127.0.0.1; read when Ray is imported.
_ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
ANSWERS_WITHIN_S = 30  # a head that is there takes two
MOST = 1_000_000  # workers, or threads of each
LONGEST = 27  # bytes of a temporary folder's path: sockets below it have at most 107
OFTEN = 4  # cells or a run with which so many workers were lost are what ends them
CROWDED = 16  # threads a core of this machine, at which a slip is likelier than a wish: all start at once


@dataclass(frozen=True)
class Cluster:
    """Workers of `threads` threads and `gpus` GPUs each (a fraction shares one; None: one each on a GPU, none
    elsewhere), as many as there is room for where their number is None.

    `address` is HOST:PORT of a cluster to which this machine belongs, or auto; None makes one of this machine, for as
    long as it is used. Where no worker is left that works, `patience_s` seconds are waited for one.
    """

    workers: int | None = None
    threads: int = 1
    gpus: float | None = None
    address: str | None = None
    patience_s: float = 600.0

    def __post_init__(self) -> None:
        if self.workers is not None:
            object.__setattr__(self, "workers", whole("a Ray cluster's workers", self.workers, MOST))
        object.__setattr__(self, "threads", whole("a Ray worker's threads", self.threads, MOST))
        if self.gpus is not None:
            object.__setattr__(self, "gpus", between("gpus of a Ray worker", self.gpus, 0, 1024))
            if self.gpus > 1 and self.gpus != int(self.gpus):
                raise UsageError(
                    f"{self.gpus:g} GPUs a Ray worker: give a fraction of one, or a whole number"
                )
        between("patience_s of a Ray cluster", self.patience_s, 1e-3, 1e9)
        if self.address is not None and self.address != "auto" and not _names_a_port(self.address):
            raise UsageError(
                f"Ray address {shown(self.address)}: write it as HOST:PORT of a cluster to which this machine "
                "belongs, or auto"
            )

    def gpus_on(self, device: str) -> float:
        """The GPUs of each worker of a run on `device`."""
        if device != "cuda" and self.gpus:
            raise UsageError(f"{self.gpus:g} GPUs a Ray worker: the run is on device {device}; use cuda")
        return float(device == "cuda") if self.gpus is None else self.gpus

    @contextmanager
    def connected(self, device: str) -> Iterator[int]:
        """In touch with the cluster, inside; how many workers it has room for."""
        gpus = self.gpus_on(device)
        ray = import_ray(own=self.address is None)
        with _RAY.used(lambda ends: self._begin(ray, gpus, ends)):
            yield self._room(ray, gpus)

    def _begin(self, ray: Any, gpus: float, ends: ExitStack) -> None:
        """Join the cluster or make it, where the process has none; it is left as `ends` ends."""
        if ray.is_initialized():
            return
        inside = ray._private
        # What Ray tells of a lost worker goes to the log: it would write it to standard output, amid an answer.
        # Until Ray has ended: of workers that are asked to end, it tells while it does.
        ends.enter_context(_replaced(inside.worker, "print_to_stdstream", _to_our_log))
        folder = ends.enter_context(_folder()) if self.address is None else None
        ends.callback(ray.shutdown)
        # SIGTERM ends the process as without Ray, and Ray's own with it: Ray would answer with an end in good
        # order, or leave what has just been started.
        with _replaced(inside.utils, "set_sigterm_handler", lambda _: None):
            self._join(ray) if self.address is not None else self._make(ray, gpus, folder)
        _sigterm_is_python_s()

    def _make(self, ray: Any, gpus: float, folder: str | None) -> None:
        cores, there = os.cpu_count() or 1, torch.cuda.device_count()
        by_gpus = int(there / gpus) if gpus else None
        workers = self.workers or max(1, by_gpus if by_gpus is not None else cores // self.threads)
        if by_gpus is not None and workers > by_gpus:
            raise UsageError(
                f"{workers} Ray workers of {gpus:g} GPUs: there are {there} GPUs here, room for {by_gpus}; ask for fewer "
                "workers, or for less of a GPU each"
            )
        if workers * self.threads > (most := CROWDED * cores):
            raise UsageError(
                f"{workers} Ray workers of {self.threads} threads: this machine has {cores} cores, room "
                f"for {most} threads at the very most; ask for fewer"
            )
        try:
            ray.init(
                address="local",  # never one that happens to be there
                num_cpus=workers * self.threads,
                num_gpus=there if gpus else 0,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=folder,
            )
        except Exception as error:  # Ray raises its plainest one where half a minute is not enough
            raise HistflError(
                f"no Ray cluster could be started here ({in_one_line(error)}); where the machine is busy, try again"
            ) from error
        if "RAY_AUTH_TOKEN" not in os.environ:  # Ray was imported before, and has written one
            tighten_token()
        _end_soon_after_a_kill(ray)

    def _join(self, ray: Any) -> None:
        tighten_token()
        address = str(self.address)
        try:
            if address != "auto":
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            _ask(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:  # Ray's own of a connection are one of these
            raise UsageError(
                f"no Ray cluster answers at {address} ({in_one_line(error)}); start one with `ray start --head`, or "
                "leave the address out for this machine alone"
            ) from None
        _log.warning(
            "a Ray cluster's head that dies ends this process, too, about a minute later and without a word: go on with "
            "--resume then"
        )

    def _room(self, ray: Any, gpus: float) -> int:
        there = ray.cluster_resources()
        room = int(there.get("CPU", 0) / self.threads)
        if gpus:
            room = min(room, int(there.get("GPU", 0) / gpus))
        workers = self.workers or room
        if workers > room or room == 0:
            raise UsageError(
                f"{max(workers, 1)} Ray workers of {self.threads} threads and {gpus:g} GPUs: the cluster has "
                f"{there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs, room for {room}; ask for less, or "
                "start more nodes"
            )
        return workers


class NoWorkerLeft(HistflError):
    """Nobody is there to go on, and nobody comes."""

    def __init__(self, patience_s: float) -> None:
        super().__init__(
            f"no Ray worker was there for {patience_s:g} s (`ray status` shows the nodes that are left); all whole "
            "rounds are kept: start nodes and go on with --resume"
        )


class _OneForAll:
    """Ray is one for all of a process: who uses it first begins it, and who goes last ends it, in whatever thread."""

    def __init__(self) -> None:
        self._lock, self._users, self._ends = threading.Lock(), 0, ExitStack()

    @contextmanager
    def used(self, begin: Callable[[ExitStack], None]) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                with ExitStack() as ends:
                    begin(ends)
                    self._ends = ends.pop_all()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._ends.close()


_RAY = _OneForAll()


def _names_a_port(address: object) -> bool:
    """Whether it is HOST:PORT."""
    if not isinstance(address, str):
        return False
    host, _, port = address.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= 5
    return host.strip() != "" and "/" not in host and digits and 1 <= int(port) <= 65535


def import_ray(*, own: bool) -> Any:
    """Ray itself; `own` where a cluster of this machine is to be made with it, for which it must be told before."""
    if own and "ray" not in sys.modules:
        os.environ.setdefault(_ON_LOOPBACK, "0")
        os.environ.setdefault(
            "RAY_worker_niceness", "0"
        )  # else 15: they do what this process would do itself
        if "RAY_AUTH_MODE" not in os.environ:  # there are other users on a machine
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise missing_extra("Ray (--engine ray, --parallel ray)", "ray", error) from None
    if own and not ray.is_initialized() and ray._private.ray_constants.ENABLE_RAY_CLUSTER:
        raise UsageError(
            f"a Ray cluster made now would be open to the network: set {_ON_LOOPBACK}=0 in the environment before "
            "Ray is imported, or make a cluster with ray.init() yourself"
        )
    return ray


def _ask(address: str) -> None:
    """An error where no Ray answers, or none that lets this user in. Another process asks: in this one Ray would try
    again for minutes, and write of each time."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S)
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"no word of Ray in {ANSWERS_WITHIN_S} s") from None
    if asked.returncode == 0:
        return
    said = asked.stderr.strip() or asked.stdout.strip()
    if "uthentication" in said:
        first = "RAY_AUTH_TOKEN" in os.environ
        raise UsageError(
            f"the Ray cluster at {address} asks for another token: set RAY_AUTH_MODE=token, and copy the token of its "
            f"head to ~/.ray/auth_token{', before which RAY_AUTH_TOKEN of this process goes: begin one without' * first}"
        )
    raise ConnectionError(said.splitlines()[-1] if said else "no reason given")


@contextmanager
def _folder() -> Iterator[str | None]:
    """For the files of a cluster of our own, its owner's alone, as long as it is used: Ray opens its own to all, who
    could put a socket of theirs in the place of one of Ray's. None where RAY_TMPDIR names a place, which is left."""
    if "RAY_TMPDIR" in os.environ:
        yield None
        return
    top = tempfile.gettempdir()
    if len(os.fsencode(top)) > LONGEST:
        top = "/tmp"
    with tempfile.TemporaryDirectory(prefix="ray-", dir=top, ignore_cleanup_errors=True) as private:
        yield str(Path(private) / "r")  # Ray opens this one, too, where nobody else comes


@contextmanager
def _replaced(place: Any, name: str, other: Callable[..., None]) -> Iterator[None]:
    """Inside, a function of Ray's is another one."""
    before = getattr(place, name)
    setattr(place, name, other)
    try:
        yield
    finally:
        setattr(place, name, before)


def _sigterm_is_python_s() -> None:
    """Ray's compiled part answers SIGTERM, too: it writes a trace, and aborts what does not end in three seconds. Set
    again, Python's handler, or none, is there in its place."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _to_our_log(data: dict[str, Any], **_: object) -> None:
    _log.debug("Ray: %s", data.get("lines"))


def _end_soon_after_a_kill(ray: Any) -> None:
    """Where this process is killed, Ray's agents tell its head, for a minute, that the node was killed; but the head is
    gone, too. Where the node's log says that it was asked to end, they end at once."""
    with suppress(OSError, AttributeError):
        log = Path(ray._private.worker.global_worker.node.get_logs_dir_path()) / "raylet.out"
        with log.open("a", encoding="utf-8") as file:
            file.write("histfl: if this node is killed, take it as 'Raylet received SIGTERM'\n")


def tighten_token(path: Path | None = None) -> None:
    """Nobody but its owner reads a cluster's token, which Ray writes for all to read."""
    path = path or Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    with suppress(OSError):
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
            _log.info("%s could be read by others; now its owner alone may", path)


def lost_errors(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises where a worker is lost, or its node with what it had to say."""
    errors = ray.exceptions
    return (
        errors.RayActorError,
        errors.WorkerCrashedError,
        errors.NodeDiedError,
        errors.OutOfMemoryError,
        errors.ObjectLostError,
    )


def share_of_a_gpu(gpus: float) -> float | None:
    """Gigabytes for a worker of a part of a GPU, the rest of which is others'; None for all there is."""
    return gpus * torch.cuda.get_device_properties(0).total_memory / 1e9 if 0 < gpus < 1 else None


def as_ours(error: Exception) -> Exception:
    """What was raised in a worker, as it would have been raised here."""
    cause = getattr(error, "cause", None)
    ray_s = cause is None or type(cause).__module__.startswith("ray.")
    if ray_s and (missing := re.search(r"No module named '?([\w.]+)", str(error))):
        return UsageError(
            f"a Ray worker cannot import {missing[1]}; install it on every node, put its folder into PYTHONPATH there, "
            "or write it into the script that is run"
        )
    if ray_s or not isinstance(cause, Exception):
        return HistflError(f"a Ray worker failed: {in_one_line(error)}")
    if not isinstance(cause, HistflError):
        cause.add_note(str(error))
    return cause
