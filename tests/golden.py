"""Golden records: checksums of what small runs write, to see that a change keeps every bit.

`python tests/golden.py` prints them as JSON, with what machine they are of; `--compare FILE` names the runs that
differ from a file written before. Bits are those of one kind of machine, so the stored ones (tests/golden.json, a record
a kind) are compared where they were made (tests/test_golden.py) and made anew elsewhere: before a change, and after it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import histfl
from histfl.cli import main

FILES = ("rounds.jsonl", "model.safetensors")
SMALL = (
    "training.rounds=3",
    "training.edge_rounds=2",
    "training.local_steps=3",
    "network.clients=9",
    "network.cycles_per_step=1e6",
)
OVERLAP = (
    "method.name=overlap",
    "network.participants=2",
    "network.dropout=0.2",
    "training.momentum=0.9",
    "training.weight_decay=0.001",
    "training.clip_norm=1.0",
)
LENET = ("model.name=lenet5", "training.batch_size=10", "training.learning_rate=0.05")
AIRCOMP = (
    "uplink.name=aircomp",
    "uplink.signal=simulated",
    "method.sizes=optimised",
    "network.profile=paper",
)
CASES: dict[str, tuple[str, ...]] = {
    "hist": ("network.cycles_per_step=1e6",),
    "hfedavg": ("network.cycles_per_step=1e6", "method.name=hfedavg"),
    "ist": (*SMALL, "method.name=ist"),
    "lenet5": (*SMALL, *LENET),
    "aircomp": (*SMALL, *AIRCOMP),
    "overlap": (*SMALL, *OVERLAP),
    "tdma": (
        *SMALL,
        "uplink.name=tdma",
        "method.sizes=optimised",
        "network.profile=paper",
        "uplink.channel=rician",
    ),
}
WITH_REFERENCE = ("overlap", "lenet5", "aircomp")


def machine() -> dict[str, object]:
    """What decides the bits besides the code."""
    words = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": words[0].partition(":")[2].strip() if words else platform.processor(),
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except OSError:
        return []


def golden(names: Iterable[str] | None = None) -> dict[str, str]:
    """The checksums by run."""
    torch.set_num_threads(1)  # the reference engine's sums depend on it
    with tempfile.TemporaryDirectory() as place:
        found = {name: _checksum(folder) for name, folder in _runs(Path(place), names)}
    return found


def _runs(place: Path, names: Iterable[str] | None) -> Iterable[tuple[str, Path]]:
    wanted = set(all_names() if names is None else names)
    for name, settings in CASES.items():
        for engine in ("vectorised", "reference") if name in WITH_REFERENCE else ("vectorised",):
            if f"{name}-{engine}" in wanted:
                _command(place / name / engine, settings, "--engine", engine)
                yield f"{name}-{engine}", place / name / engine
    if "resumed" in wanted:
        folder = place / "resumed"
        _command(folder, (*CASES["overlap"], "training.rounds=1"))
        _command(folder, (*CASES["overlap"], "training.rounds=3"), "--resume")
        yield "resumed", folder
    if "float64" in wanted:
        _float64(place / "float64")
        yield "float64", place / "float64"


def all_names() -> list[str]:
    """Every run there is."""
    both = [f"{name}-reference" for name in WITH_REFERENCE]
    return [*(f"{name}-vectorised" for name in CASES), *both, "resumed", "float64"]


def _command(out: Path, settings: Iterable[str], *options: str) -> None:
    changed = [word for setting in settings for word in ("--set", setting)]
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(SystemExit):
        main(["run", "quickstart", *changed, "--device", "cpu", "--out", str(out), *options])


def _float64(out: Path) -> None:
    """Convolutions, BatchNorm, GroupNorm and a residual sum, in double precision, from Python."""
    torch.manual_seed(3)
    inputs, targets = torch.rand(120, 1, 8, 8, dtype=torch.float64), torch.arange(120) % 4
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 24),
        nn.ReLU(),
        nn.Linear(24, 4),
    ).double()
    network = histfl.Network.uniform(cells=2, clients_per_cell=3)
    settings = {"rounds": 3, "edge_rounds": 2, "local_steps": 2, "batch_size": 5, "learning_rate": 0.05}
    settings |= {"cycles_per_step": 1e6, "split": "iid"}
    histfl.train(
        model, (inputs, targets), (inputs, targets), network=network, device="cpu", out=out, **settings
    )


def _checksum(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in FILES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def of_this_machine(records: list[dict[str, Any]]) -> dict[str, str] | None:
    """The stored checksums by run that are of a machine like this one."""
    return next((record["runs"] for record in records if record["machine"] == machine()), None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", type=Path, help="a file written before")
    before = parser.parse_args().compare
    if before is None:
        print(json.dumps([{"machine": machine(), "runs": golden()}], indent=2))
    elif (then := of_this_machine(json.loads(before.read_text("utf-8")))) is None:
        sys.exit(
            f"{before} has no record of a machine like this one, {machine()}; write one before the change"
        )
    else:
        now = golden()
        changed = [name for name in then if now.get(name) != then[name]]
        print("changed: " + ", ".join(changed) if changed else f"all {len(then)} as before")
        sys.exit(bool(changed))
