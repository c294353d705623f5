"""All contenders on one job, in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from environments import LOGS, PEERS, PeerUnavailable, python_of
from job import Settings, write_job
from processes import Contender, ContenderError

SCRIPTS_FOLDER = Path(__file__).parent / "contenders"
SCRIPTS = {
    "loop": "loop.py",
    "reference": "ours.py",
    "vectorised": "ours.py",
    "flower": "flower.py",
    "pfl": "pfl_processes.py",
    "fedjax": "fedjax_clients.py",
}
CONTENDERS = tuple(SCRIPTS)
TOLERANCES = {
    "float32": 1e-3,
    "tf32": 1e-2,
    "bf16": 0.1,
}  # how far two contenders' submodels may differ in any number
FEWEST_TURNS = 2


def start(name: str, folder: Path, cores: int) -> Contender:
    """The contender's process, with the job in memory."""
    threads = 1 if name in ("loop", "reference", "pfl") else cores
    python = python_of(name) if name in PEERS else Path(sys.executable)
    command = [str(python)]
    if name == "pfl":
        # pfl deals the clients out in turn, which needs as many for every process.
        clients = json.loads((folder / "settings.json").read_text("utf-8"))["clients"]
        count = max(number for number in range(1, cores + 1) if clients % number == 0)
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command += [str(SCRIPTS_FOLDER / SCRIPTS.get(name, f"{name}.py"))]
    command += ["--job", str(folder), "--threads", str(threads)]
    variables = {
        "OMP_NUM_THREADS": str(threads if name != "flower" else 1),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    return Contender(name, command, folder, variables, log=LOGS / f"{name}.log")


class Sitting:
    """The contenders of one job; one that fails is left out, with its reason."""

    def __init__(self, names: list[str], folder: Path, cores: int, stack: contextlib.ExitStack) -> None:
        self.running: dict[str, Contender] = {}
        self.left_out: dict[str, str] = {}
        for name in names:
            with self.excusing(name):
                self.running[name] = stack.enter_context(start(name, folder, cores))
                self.running[name].turn(edge_rounds=1)  # libraries load, ways are chosen

    @contextlib.contextmanager
    def excusing(self, name: str) -> Iterator[None]:
        try:
            yield
        except (PeerUnavailable, ContenderError) as reason:
            self.running.pop(name, None)
            self.left_out[name] = str(reason)
            print(f"{name} is left out: {reason}", file=sys.stderr)


def measure(settings: Settings, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All turns of one job."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        row: dict[str, Any] = vars(settings) | write_job(settings, folder)
        gemm = stack.enter_context(start("gemm", folder, options.cores))
        sitting = Sitting(names, folder, options.cores, stack)
        rates: list[float] = []
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        began = time.monotonic()
        while len(rates) < options.turns:
            if len(rates) >= FEWEST_TURNS and time.monotonic() - began > options.seconds:
                break
            rates.append(gemm.turn()["operations_per_second"])
            for name, contender in list(sitting.running.items()):
                with sitting.excusing(name):
                    save = str(folder / f"{name}.pt")
                    turns[name].append(contender.turn(edge_rounds=settings.edge_rounds, save=save))
        row["gemm_operations_per_second"] = max(rates)
        found: dict[str, dict[str, Any]] = {}
        for name, contender in list(sitting.running.items()):
            with sitting.excusing(name):
                found[name] = {"memory_bytes": contender.peak_memory(edge_rounds=1)}
                found[name] |= _summary(row, settings, turns[name])
        _check_same_job({name: found[name] for name in sitting.running}, folder, settings)
        row["contenders"] = {
            name: found[name] if name in sitting.running else {"left_out": sitting.left_out[name]}
            for name in names
        }
    return row


def _summary(row: dict[str, Any], settings: Settings, turns: list[dict[str, Any]]) -> dict[str, Any]:
    seconds, cpu_seconds = (min(turn[key] for turn in turns) for key in ("seconds", "cpu_seconds"))
    steps = settings.client_steps
    return {
        "seconds": [turn["seconds"] for turn in turns],
        "steps_per_second": steps / seconds,
        "images_per_second": steps * settings.batch_size / seconds,
        "steps_per_cpu_second": steps / cpu_seconds if cpu_seconds else None,
        "operations_per_second": steps * row["operations_per_step"] / seconds,
        "cuda_bytes": turns[-1].get("cuda_bytes"),
    }


def _check_same_job(found: dict[str, Any], folder: Path, settings: Settings) -> None:
    """Every contender's submodels against the first one's; a contender that did another job is no contender."""
    states = {name: torch.load(folder / f"{name}.pt") for name in found}
    if not states:
        return
    first = states.get("reference", next(iter(states.values())))
    for name, cells in states.items():
        difference = max(
            float((value - own[key]).abs().max())
            for own, cell in zip(first, cells, strict=True)
            for key, value in cell.items()
        )
        found[name]["largest_difference"] = difference
        if not difference <= TOLERANCES[settings.precision]:
            raise SystemExit(
                f"{name} ended {settings.model} ({settings.case}) with other numbers: {difference:g} apart"
            )
