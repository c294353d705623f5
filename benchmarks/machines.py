"""A deployment's machines as processes of the real commands, on loopback or in namespaces: start, kill, read."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from histfl.deploy.loopback import Comparison, compared, deal_samples
from histfl.runs.config import Config
from histfl.runs.loading import load_config
from histfl.runs.named import build_network, build_split, load_data

HISTFL = [sys.executable, "-m", "histfl"]
PORT = 8443
LIMIT_S = 1500.0
CLONE_NEWNET = 0x40000000


class Forked:
    """A command of histfl in a network namespace, in a process forked from one that has loaded all modules, so that a
    start costs next to nothing; used as a Popen."""

    def __init__(self, words: Sequence[str], log: Path, variables: dict[str, str], namespace: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["histfl.deploy.loopback", "histfl.deploy.cloud", "histfl.cli"])
        told = (list(words), str(log), variables, namespace)
        self._process = context.Process(target=_forked, args=told, daemon=True)
        self._process.start()
        self.pid = self._process.pid
        self.kill = self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("histfl", timeout or 0)
        return self._process.exitcode


def _forked(words: list[str], log: str, variables: dict[str, str], namespace: str) -> None:
    """As `ip netns exec` and the shell would start it."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    with open(f"/run/netns/{namespace}", "rb") as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ |= variables
    if "HOME" in variables:
        os.chdir(variables["HOME"])
    from histfl.cli import main

    main(words)


@dataclass
class Deployment:
    """A run of `settings` on machines whose kits are in `folder`/kits; `address` says where the cloud (None) and a cell's
    edge listen, `prefix` what comes before the commands of a machine."""

    folder: Path
    settings: Sequence[str]
    cells: int
    clients: int
    timeout_s: float = 60.0
    start_s: float = 300.0
    address: Callable[[int | None], str] = lambda cell: f"127.0.0.1:{PORT + (-1 if cell is None else cell)}"
    prefix: Callable[[str], list[str]] = lambda name: []
    forked: Callable[[str], str] | None = None  # the namespace of a machine, whose processes are to be forked
    processes: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        blocks = [
            f'[[cells]]\nclients = {len(self.clients_of(cell))}\nedges = ["{self.address(cell)}"]\n'
            for cell in range(self.cells)
        ]
        network = self.folder / "network.toml"
        network.write_text(f'cloud = "{self.address(None)}"\n' + "\n".join(blocks))
        init = [*HISTFL, "deploy", "init", str(network), "--out", str(self.kits)]
        subprocess.run(init, check=True, capture_output=True)
        config = self.config
        train, _ = load_data(config)
        deal_samples(self.kits, train, build_split(config, train, build_network(config)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()

    @property
    def all_settings(self) -> list[str]:
        return [
            *self.settings,
            "uplink.name=ideal",
            f"network.cells={self.cells}",
            f"network.clients={self.clients}",
        ]

    @property
    def config(self) -> Config:
        return load_config("quickstart", self.all_settings, [])

    @property
    def kits(self) -> Path:
        return self.folder / "kits"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def names(self) -> list[str]:
        """All machines besides the cloud."""
        return [f"edge{cell}" for cell in range(self.cells)] + [
            f"c{client}" for client in range(self.clients)
        ]

    def clients_of(self, cell: int) -> list[str]:
        each = self.clients // self.cells
        return [f"c{client}" for client in range(cell * each, (cell + 1) * each)]

    def start_all(self) -> None:
        for name in ["cloud", *self.names]:
            self.start(name)

    def start(
        self,
        name: str,
        command: Sequence[str] | None = None,
        *,
        resume: bool = False,
        home: Path | None = None,
    ) -> None:
        """Start a machine by its command, or by another one; `home` is its current, home and temporary folder."""
        kit = str((self.kits / name).resolve())
        if name == "cloud":
            told = [part for each in self.all_settings for part in ("--set", each)]
            patience = ["--timeout", f"{self.timeout_s:g}", "--start", f"{self.start_s:g}"]
            words = ["cloud", kit, "quickstart", *told, *patience, "--out", str(self.run.resolve())]
            words += ["--resume"] if resume else []
        else:
            words = ["edge" if name.startswith("edge") else "client", kit]
        variables = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if home is not None:
            variables |= {"HOME": str(home), "TMPDIR": str(home)}
        if self.forked and command is None:
            self.processes[name] = Forked(words, self.log(name), variables, self.forked(name))
            return
        with self.log(name).open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [*self.prefix(name), *(command or [*HISTFL, *words])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                cwd=home,
            )

    def kill(self, name: str) -> bool:
        """SIGKILL; whether the machine was still at work."""
        process = self.processes[name]
        at_work = process.poll() is None
        process.kill()
        process.wait()
        return at_work

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def words(self, name: str) -> str:
        return self.log(name).read_text("utf-8", "replace")

    def records(self) -> list[dict[str, Any]]:
        """Of the rounds that are done."""
        path = self.run / "rounds.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, rounds: int, limit_s: float = LIMIT_S) -> None:
        """Until so many rounds are done, or the cloud has ended."""
        until = time.monotonic() + limit_s
        while len(self.records()) < rounds and self.processes["cloud"].poll() is None:
            if time.monotonic() > until:
                raise SystemExit(f"{self.folder}: {len(self.records())} of {rounds} rounds in {limit_s:g} s")
            time.sleep(0.1)

    def finish(self, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait for the end of the cloud and of the others by themselves; what became of the run."""
        try:
            code: int | None = self.processes["cloud"].wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        until, left = time.monotonic() + 20, []
        for name, process in self.processes.items():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                left.append(name)
        records = self.records()
        codes = {name: process.poll() for name, process in self.processes.items()}
        return {
            "finished": code == 0,
            "rounds": len(records),
            "still_running_afterwards": left,
            "ended_with_an_error": sorted(name for name, each in codes.items() if each not in (0, None)),
            "missed_updates": sum(len(each["measured"]["missed_clients"]) for each in records),
            "rounds_with_missed": [each["round"] for each in records if each["measured"]["missed_clients"]],
            "lost_cells": [
                [each["round"], *each["measured"]["lost_cells"]]
                for each in records
                if each["measured"]["lost_cells"]
            ],
            "seconds_a_round": [round(each["measured"]["seconds"], 2) for each in records],
        }

    def compared(self) -> Comparison:
        """With the simulation of the same run."""
        return compared(self.config, self.run)


def memory_mb(pid: int) -> dict[str, float]:
    """Of one process, in 10^6 bytes: `rss` is all that it maps, `pss` counts pages that processes share by parts, and
    `private` is its own alone."""
    sizes: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()[1:]:
        key, number = line.split()[:2]
        sizes[key.rstrip(":")] = int(number) * 1024 / 1e6
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return {"rss": round(sizes["Rss"], 1), "pss": round(sizes["Pss"], 1), "private": round(private, 1)}
