"""A run's folder: written so that a kill at any moment loses at most the round in progress.

config.toml             every key of the configuration
network.toml            a copy of the network file, where one is named
rounds.jsonl            one record a global round; no clock time in it, so that reruns compare equal
checkpoint.safetensors  the global model after the last whole round
model.safetensors       the trained model, without frozen parameters, which are as they were given, and
pictures.json           the last partition and the label mix, bounded, for the report, and
summary.json            the answer, once all rounds are done
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from histfl.errors import DISK_FAILURES, CheckpointError, StorageError, UsageError
from histfl.experiments.config import Config
from histfl.experiments.records import TOTALS, Record
from histfl.settings import checked
from histfl.training import State

FORMAT = "histfl-checkpoint-1"


@dataclass(frozen=True)
class Checkpoint:
    """The global model after `rounds_done` rounds and `wall_seconds` of computing."""

    state: State
    rounds_done: int
    wall_seconds: float


def _no_number(text: str) -> float:
    """JSON has no NaN and no infinity; Python reads and writes them all the same, and we wrote none."""
    raise ValueError(f"{text} in place of a number")


class RunFolder:
    """One run's files under `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.toml"
        self.network_path = path / "network.toml"
        self.rounds_path = path / "rounds.jsonl"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.model_path = path / "model.safetensors"
        self.pictures_path = path / "pictures.json"
        self.summary_path = path / "summary.json"

    @property
    def _written(self) -> tuple[Path, ...]:
        """What rounds leave in the folder."""
        return (
            self.rounds_path,
            self.checkpoint_path,
            self.model_path,
            self.pictures_path,
            self.summary_path,
        )

    @contextmanager
    def claimed(self, config: Config, *, resume: bool) -> Iterator[None]:
        """Make or reopen the folder for `config` and keep other processes out while it is written."""
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / ".lock", timeout=0)
            try:
                lock.acquire()
            except filelock.Timeout:
                raise UsageError(
                    f"another process is writing {self.path}; wait for it or use another folder"
                ) from None
        try:
            begun = any(path.exists() for path in self._written)  # else it failed before its first round
            if begun and not resume:
                raise UsageError(
                    f"{self.path} already holds a run; resume it (--resume, in Python resume=True), or use another folder"
                )
            if begun and self.config_path.exists():
                self._check_same_run(config)
            yield
        finally:
            lock.release()

    def _check_same_run(self, config: Config) -> None:
        """Refuse to continue a run under settings that would have changed its past rounds."""
        here, there = config.identity(), self.read_config().identity()
        for section in sorted(here | there):
            mine, theirs = here.get(section, {}), there.get(section, {})
            for key in sorted(mine | theirs):
                if mine.get(key) != theirs.get(key):
                    raise CheckpointError(
                        f"{self.path} holds a run with {section}.{key} = {theirs.get(key)!r}, not "
                        f"{mine.get(key)!r}; resume it with its own {self.config_path.name}, or use another folder"
                    )

    def write_config(self, config: Config) -> None:
        write_whole(self.config_path, config.to_toml().encode())

    def keep_network(self, source: Path) -> None:
        """Copy the network file that the run began with; one that is kept already stays."""
        if not self.network_path.exists():
            write_whole(self.network_path, source.read_bytes())

    def read_config(self) -> Config:
        try:
            tables = tomllib.loads(self.config_path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise CheckpointError(f"{self.config_path} cannot be read: {error}; use another folder") from None
        return checked(Config, tables, str(self.config_path))

    def append(self, record: Record) -> None:
        """Add one round's record and see it onto the disk."""
        with storage_errors(self.rounds_path), self.rounds_path.open("ab") as file:
            file.write((json.dumps(record, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def read_rounds(self) -> list[Record]:
        """The records of all rounds whose line is whole."""
        if not self.rounds_path.exists():
            return []
        try:
            lines = self.rounds_path.read_bytes().split(b"\n")[:-1]
            records = [json.loads(line, parse_constant=_no_number) for line in lines]
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.rounds_path} is damaged ({error}); use another folder") from None
        for number, record in enumerate(records, start=1):
            if not isinstance(record, dict) or any(
                not isinstance(record.get(name), int | float) for name in ("round", "accuracy", *TOTALS)
            ):
                raise CheckpointError(
                    f"{self.rounds_path}, line {number} is no record of a round; use another folder"
                )
        return records

    def truncate_rounds(self, rounds_done: int) -> list[Record]:
        """Drop what was written of rounds past the checkpoint and return the records that stay."""
        records = self.read_rounds()[:rounds_done]
        if [record.get("round") for record in records] != list(range(1, rounds_done + 1)):
            raise CheckpointError(
                f"{self.rounds_path} has not the {rounds_done} rounds of {self.checkpoint_path.name}; "
                "one of them is damaged or from another run; use another folder"
            )
        if self.rounds_path.exists():
            kept = b"".join(line + b"\n" for line in self.rounds_path.read_bytes().split(b"\n")[:rounds_done])
            write_whole(self.rounds_path, kept)
        return records

    def reopen(self) -> None:
        """Take away what says that the run is finished, before it goes on."""
        with storage_errors(self.path):
            for path in (self.summary_path, self.model_path, self.pictures_path):
                path.unlink(missing_ok=True)

    def save_checkpoint(self, checkpoint: Checkpoint, config: Config, ingredients: str) -> None:
        """`ingredients` is the digest of the network, the data and the first model that the run started from."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.state.items()}
        about = {
            "rounds_done": checkpoint.rounds_done,
            "wall_seconds": checkpoint.wall_seconds,
            "run": config.fingerprint(),
            "ingredients": ingredients,
            "tensors": digest(tensors),
        }
        data = safetensors.torch.save(tensors, metadata={"format": FORMAT, "about": json.dumps(about)})
        write_whole(self.checkpoint_path, data)

    def load_checkpoint(
        self, config: Config, ingredients: str, like: Mapping[str, torch.Tensor]
    ) -> Checkpoint | None:
        """The last checkpoint, moved to where `like`'s tensors lie; None before the first one."""
        if not self.checkpoint_path.exists():
            return None
        refuse = f"{self.checkpoint_path} is {{}}; use another folder, or remove the file to start again"
        try:
            with safe_open(self.checkpoint_path, framework="pt") as file:
                metadata = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            about = json.loads(metadata["about"])
            rounds_done, wall_seconds = int(about["rounds_done"]), float(about["wall_seconds"])
            fingerprint, started_from, checksum = about["run"], about["ingredients"], about["tensors"]
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(refuse.format(f"damaged or no histfl checkpoint ({error})")) from None
        if metadata.get("format") != FORMAT or fingerprint != config.fingerprint():
            raise CheckpointError(refuse.format("from another run"))
        if started_from != ingredients:
            raise CheckpointError(
                refuse.format("of a run on another network, other data or another first model")
            )
        if digest(state) != checksum or rounds_done < 0:
            raise CheckpointError(refuse.format("damaged: its checksum does not match"))
        if {name: (x.shape, x.dtype) for name, x in state.items()} != {
            name: (x.shape, x.dtype) for name, x in like.items()
        }:
            raise CheckpointError(refuse.format("of another model"))
        placed = {name: state[name].to(tensor.device) for name, tensor in like.items()}
        return Checkpoint(placed, rounds_done, wall_seconds)

    def save_model(self, state: Mapping[str, torch.Tensor]) -> None:
        """The trained model's parameters and buffers; tied tensors are stored once each, as copies."""
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}
        write_whole(self.model_path, safetensors.torch.save(tensors))

    def save_pictures(self, pictures: Record) -> None:
        write_whole(self.pictures_path, json.dumps(pictures, allow_nan=False).encode())

    def save_summary(self, summary: Record) -> None:
        write_whole(self.summary_path, (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode())

    def read_summary(self) -> Record:
        try:
            summary = json.loads(self.summary_path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.summary_path} cannot be read: {error}") from None
        if not isinstance(summary, dict):
            raise CheckpointError(f"{self.summary_path} is not a run's summary")
        return summary


def write_whole(path: Path, data: bytes) -> None:
    """Whole or not at all: a new file takes the old one's name once it is safely on the disk."""
    unfinished = path.parent / (path.name + ".unfinished")
    with storage_errors(path):
        try:
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in DISK_FAILURES:
            raise StorageError(f"cannot write {path}: {reason}; free space or write elsewhere") from error
        raise UsageError(f"cannot write {path}: {reason}; write elsewhere") from error


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """A checksum of names and values."""
    checksum = hashlib.blake2b(digest_size=32)
    for name in sorted(tensors):
        checksum.update(name.encode() + b"\0")
        checksum.update(tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()
