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

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import filelock
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError, safe_open

from histfl import files
from histfl.errors import CheckpointError, UsageError, in_one_line
from histfl.runs.config import Config, rerun_note
from histfl.runs.records import Record
from histfl.runs.schema import Pictures, RoundLine, Summary
from histfl.settings import checked, parse_json, parse_toml
from histfl.training import State
from histfl.training.memory import Carried

FORMAT = "histfl-checkpoint-2"
CARRIED = "carried/"  # before the names of a checkpoint's tensors that are not the model's


@dataclass(frozen=True)
class Checkpoint:
    """The global model after `rounds_done` rounds, whose lines have the checksum `records`, what else they
    `carried` on, and `wall_seconds` of computing."""

    state: State
    carried: Carried
    rounds_done: int
    wall_seconds: float
    records: str


class _About(BaseModel):
    """What a checkpoint says of itself; `records` is the checksum of its rounds' lines."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    rounds_done: int = Field(ge=0)
    wall_seconds: float = Field(ge=0)
    run: str
    ingredients: str
    records: str


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
        self._records_checksum = ""  # of the lines that this process has read or written,
        self._records_bytes = 0  # and how long they are

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
        with files.storage_errors(self.path):
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
        files.write_whole(self.config_path, (rerun_note(config) + config.to_toml()).encode())

    def keep_network(self, source: Path, *, begun: bool) -> None:
        """Copy the network file that the run began with; of a run that has `begun`, the copy that is there stays."""
        if not (begun and self.network_path.exists()):
            files.write_whole(self.network_path, files.read_bytes(source))

    def drop_network(self) -> None:
        """Take away the copy of an attempt on a network file that ended before its first round."""
        try:
            named = self.read_config().network.profile.endswith(".toml")
        except UsageError:
            named = False  # no attempt's, so a network.toml is the user's own
        if named:
            with files.storage_errors(self.network_path):
                self.network_path.unlink(missing_ok=True)

    def read_config(self) -> Config:
        try:
            tables = parse_toml(files.read_text(self.config_path))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.config_path} cannot be read: {error}; use another folder") from None
        if not tables:  # which would be a run of all defaults
            raise CheckpointError(f"{self.config_path} is empty; use another folder")
        return checked(Config, tables, str(self.config_path)).read_from(str(self.config_path))

    def append(self, record: Record) -> None:
        """Add one round's record and see it onto the disk."""
        line = json.dumps(record, allow_nan=False).encode()
        self.check_undisturbed()
        with files.storage_errors(self.rounds_path), self.rounds_path.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._records_checksum = _chained(self._records_checksum, line)
        self._records_bytes += len(line) + 1

    def check_undisturbed(self) -> None:
        """Refuse to write on where somebody else has taken away or changed the rounds that were written."""
        if not self.path.is_dir():
            raise CheckpointError(
                f"{self.path} was removed or moved while its run went on; go on with it where it lies now "
                "(--resume), or run again in another folder"
            )
        with files.storage_errors(self.rounds_path):
            there = self.rounds_path.exists()
            length = self.rounds_path.stat().st_size if there else 0
        if length != self._records_bytes:
            what = "changed" if there else "removed"
            raise CheckpointError(
                f"{self.rounds_path} was {what} by somebody else while its run went on; put it back as it was and "
                "go on with --resume, or run again in another folder"
            )

    def read_rounds(self) -> list[Record]:
        """The records of all rounds whose line is whole."""
        if not self.rounds_path.exists():
            return []
        records = []
        try:
            for number, line in enumerate(files.read_lines(self.rounds_path), start=1):
                record = parse_json(line)
                checked(RoundLine, {"line": record}, f"{self.rounds_path.name}, line {number} in {self.path}")
                records.append(record)
        except UsageError as error:
            raise CheckpointError(f"{error}; use another folder") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.rounds_path} is damaged ({error}); use another folder") from None
        return records

    def truncate_rounds(self, checkpoint: Checkpoint | None) -> list[Record]:
        """Drop what was written of rounds past the checkpoint and return the records that stay."""
        records = self.read_rounds()
        if checkpoint is None and (len(records) > 1 or self.summary_path.exists()):
            raise CheckpointError(
                f"{self.path} has {len(records)} rounds and no {self.checkpoint_path.name} to go on from; "
                "use another folder, or empty this one to start again"
            )
        rounds_done = checkpoint.rounds_done if checkpoint else 0
        lines = [*islice(files.read_lines(self.rounds_path), rounds_done)] if records else []
        checksum = functools.reduce(_chained, lines, "")
        if len(records) < rounds_done or (checkpoint and checksum != checkpoint.records):
            raise CheckpointError(
                f"{self.rounds_path} has not the {rounds_done} rounds of {self.checkpoint_path.name}; "
                "one of them is damaged or from another run; use another folder"
            )
        if self.rounds_path.exists():
            files.write_whole(self.rounds_path, b"".join(line + b"\n" for line in lines))
        self._records_checksum, self._records_bytes = checksum, sum(len(line) + 1 for line in lines)
        return records[:rounds_done]

    def reopen(self) -> None:
        """Take away what says that the run is finished, before it goes on."""
        with files.storage_errors(self.path):
            for path in (self.summary_path, self.model_path, self.pictures_path):
                path.unlink(missing_ok=True)

    def save_checkpoint(
        self,
        state: State,
        carried: Carried,
        config: Config,
        ingredients: str,
        *,
        rounds_done: int,
        wall_seconds: float,
    ) -> None:
        """`ingredients` is the digest of the network, the data and the first model that the run started from."""
        kept = state | {CARRIED + name: tensor for name, tensor in carried.tensors().items()}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in kept.items()}
        about = _About(
            rounds_done=rounds_done,
            wall_seconds=wall_seconds,
            run=config.fingerprint(),
            ingredients=ingredients,
            records=self._records_checksum,
        ).model_dump_json()
        metadata = {"format": FORMAT, "about": about, "checksum": digest(tensors, about)}
        self.check_undisturbed()
        files.write_whole(self.checkpoint_path, safetensors.torch.save(tensors, metadata=metadata))

    def load_checkpoint(
        self, config: Config, ingredients: str, like: Mapping[str, torch.Tensor]
    ) -> Checkpoint | None:
        """The last checkpoint, moved to where `like`'s tensors lie; None before the first one."""
        if not self.checkpoint_path.exists():
            return None
        device = next((tensor.device for tensor in like.values()), torch.device("cpu"))
        refuse = f"{self.checkpoint_path} is {{}}; use another folder, or empty this one to start again"
        try:
            files.check_regular(self.checkpoint_path)
            with safe_open(self.checkpoint_path, framework="pt") as file:
                metadata = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its format is {metadata.get('format')}")
            if digest(state, metadata["about"]) != metadata["checksum"]:
                raise ValueError("its checksum does not match")
            about = _About.model_validate(parse_json(metadata["about"]))
            carried = Carried.of(
                {
                    name.removeprefix(CARRIED): state.pop(name).to(device)
                    for name in [*state]
                    if name.startswith(CARRIED)
                }
            )
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(
                refuse.format(f"damaged or no histfl checkpoint ({in_one_line(error)})")
            ) from None
        if about.run != config.fingerprint():
            raise CheckpointError(refuse.format("from another run"))
        if about.ingredients != ingredients:
            raise CheckpointError(
                refuse.format("of a run on another network, other data or another first model")
            )
        if {name: (x.shape, x.dtype) for name, x in state.items()} != {
            name: (x.shape, x.dtype) for name, x in like.items()
        }:
            raise CheckpointError(refuse.format("of another model"))
        placed = {name: state[name].to(tensor.device) for name, tensor in like.items()}
        return Checkpoint(placed, carried, about.rounds_done, about.wall_seconds, about.records)

    def save_model(self, state: Mapping[str, torch.Tensor]) -> None:
        """The trained model's parameters and buffers; tied tensors are stored once each, as copies."""
        # A module's own extra state may be anything.
        tensors = {name: _plain(x).clone() for name, x in state.items() if isinstance(x, torch.Tensor)}
        files.write_whole(self.model_path, safetensors.torch.save(tensors))

    def save_pictures(self, pictures: Record) -> None:
        files.write_whole(self.pictures_path, json.dumps(pictures, allow_nan=False).encode())

    def save_summary(self, summary: Record) -> None:
        files.write_whole(self.summary_path, (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode())

    def read_pictures(self) -> Record:
        """What the run keeps to be drawn; nothing where an older or interrupted run has none."""
        try:
            pictures = parse_json(files.read_text(self.pictures_path))
        except (OSError, ValueError):
            return {}
        if not isinstance(pictures, dict):
            return {}
        checked(Pictures, pictures, self.pictures_path.name)
        return pictures

    def read_summary(self) -> Record:
        try:
            summary = parse_json(files.read_text(self.summary_path))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.summary_path} cannot be read: {error}") from None
        if not isinstance(summary, dict):
            raise CheckpointError(f"{self.summary_path} is not a run's summary")
        checked(Summary, summary, self.summary_path.name)
        return summary


def _chained(checksum: str, line: bytes) -> str:
    """The checksum of lines, one line further."""
    return hashlib.blake2b(checksum.encode() + line, digest_size=32).hexdigest()


def digest(tensors: Mapping[str, torch.Tensor], words: str = "") -> str:
    """A checksum of names and values, and of `words`."""
    checksum = hashlib.blake2b(words.encode(), digest_size=32)
    for name in sorted(tensors):
        checksum.update(name.encode() + b"\0")
        checksum.update(_plain(tensors[name]).view(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor one after another; those of a sparse or quantised one written out."""
    numbers = tensor.detach().cpu()
    return (numbers.dequantize() if numbers.is_quantized else numbers.to_dense()).contiguous()
