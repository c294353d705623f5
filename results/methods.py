"""Run the comparisons of client steps, methods and scales, and collect them: `python results/methods.py FOLDER`.

Every run is a `histfl run` of its own in a folder below FOLDER; one that was interrupted goes on, one that is done is
left out. With `--collect` what is done is written to client-steps.json, methods.json and scale.json beside this file.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SEEDS = (1, 2, 3)
# Shares that add up to 1, so that all cells together send as much as HIST's; scaled as HeteroFL and FedRolex are.
EQUAL = "method.scale=1.0 training.learning_rate=0.01 training.rounds=25 training.targets=[0.7,0.75,0.8]"
METHODS = {
    "hist": f"method.name=hist {EQUAL}",
    "rolling": f"method.name=rolling {EQUAL}",
    "rolling-by-75": f"method.name=rolling method.roll=75 {EQUAL}",
    "rolling-apart": f"method.name=rolling method.apart=true {EQUAL}",
    "nested": f"method.name=nested {EQUAL}",
    "nested-widths": f"method.name=nested method.sizes=[0.5,0.25,0.125,0.125] {EQUAL}",
}
# Each at its best rate. At 0.01, HIST at scale 1 is above, and both without a scale are in learning-rates.json.
TO_84 = "training.rounds=150 training.targets=[0.8,0.84] training.stop_at_targets=true"
SCALES = {
    "hfedavg-lr0.16": f"method.name=hfedavg training.learning_rate=0.16 {TO_84}",
    "hist-lr0.08": f"method.name=hist training.learning_rate=0.08 {TO_84}",
    "hist-scale0.5-lr0.04": f"method.name=hist method.scale=0.5 training.learning_rate=0.04 {TO_84}",
}
# Clients of two labels each, five in a cell: they drift apart, and so do the cells.
SKEWED = "network.clients=20 training.learning_rate=0.05 training.rounds=40 training.targets=[0.75,0.8]"
CLIENT_STEPS = {
    f"{method}-{steps}": f"method.name={method} {setting} {SKEWED}"
    for method in ("hfedavg", "hist")
    for steps, setting in {
        "plain": "",
        "fedprox": "training.proximal=0.1",
        "mtgc": "training.correction=mtgc",
    }.items()
}
KEPT: tuple[str, ...] = (
    "method",
    "sizes",
    "cells",
    "clients",
    "engine",
    "device",
    "rounds",
    "seed",
    "submodel_parameters",
)
KEPT += ("best_accuracy", "final_accuracy", "megabytes_per_client", "to_target")


def commands(arms: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """By name, the arguments of `histfl`; all arms of a seed before the next seed."""
    for seed in SEEDS:
        for name, settings in arms.items():
            given = [
                part
                for setting in (*settings.split(), f"training.seed={seed}")
                for part in ("--set", setting)
            ]
            yield f"{name}-s{seed}", ["run", "mlp", *given, "--device", "cpu"]


def main(folder: Path, *, collect: bool) -> None:
    for file, arms in (("client-steps", CLIENT_STEPS), ("methods", METHODS), ("scale", SCALES)):
        runs = []
        for name, arguments in commands(arms):
            out, done = folder / name, folder / name / "summary.json"
            if not collect and not done.exists():
                more = ["--out", str(out), "--json", *(["--resume"] if out.exists() else [])]
                subprocess.run(
                    [sys.executable, "-m", "histfl", *arguments, *more],
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
            elif collect and done.exists():
                summary = json.loads(done.read_text())
                records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
                runs.append(
                    {
                        "name": name,
                        "command": shlex.join(["histfl", *arguments]),
                        "summary": {key: summary[key] for key in KEPT},
                        "accuracy": [record["accuracy"] for record in records],
                    }
                )
        if collect:
            head = subprocess.run(
                ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
            )
            stored = {
                "machine": "one thread of a 2-core server CPU",
                "commit": head.stdout.strip(),
                "runs": runs,
            }
            (HERE / f"{file}.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), collect="--collect" in sys.argv[2:])
