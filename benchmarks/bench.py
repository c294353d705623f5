"""The same federated job on our engines, a plain PyTorch loop, Flower's simulation, pfl and FedJAX, side by side.

    python benchmarks/bench.py                          everything, on the CPU (about a quarter of an hour)
    python benchmarks/bench.py --contenders loop vectorised --models mlp
    python benchmarks/bench.py --device cuda --models mlp lenet5 resnet18 --precision bf16
    python benchmarks/bench.py --scaling                seconds a round against participants and population

The job is one global round: 60 clients in 4 cells, batch 50, 20 local steps, 5 edge rounds; the full model
(`full`) or disjoint submodels (`hist`). Every contender gets the same first models and the same batches, has
the data in memory before the clock starts, and ends with the same submodels, which is checked. Each runs in
processes of its own. They take turns, all equally often, and the best turn of each counts. A job that is measured
again replaces its row among the results; the rows of other jobs stay.

The loop and the reference engine have one torch thread, since with more their speed differs from process to
process. Flower has a supernode of one CPU a client, pfl a process of one thread a core, FedJAX the threads of XLA;
they are installed into environments of their own under .bench/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from comparison import CONTENDERS, FEWEST_TURNS, TOLERANCES, measure
from environments import PEERS
from job import METHODS, Settings
from report import write_report
from scaling import measure_scaling

HERE = Path(__file__).parent
MODELS = ("mlp", "lenet5", "resnet18")


def about(options: argparse.Namespace) -> dict[str, Any]:
    """The machine and the settings of the sitting."""
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else None
    return {
        "machine": platform.processor() or platform.machine(),
        "processor": _processor(),
        "gpu": gpu,
        "cores": options.cores,
        "load_before": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "peers": PEERS,
        "command": _command(sys.argv),
    }


def _command(words: Sequence[str]) -> str:
    """What to type for the same figures, wherever the data and the results lie."""
    places = [place for place, word in enumerate(words) if word in ("--out", "--data-dir")]
    left_out = {near for place in places for near in (place, place + 1)}
    return " ".join(["python", *(word for place, word in enumerate(words) if place not in left_out)])


def _processor() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return None


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The comparison with the peers, as far as it has come after every job."""
    names = options.contenders or [n for n in CONTENDERS if options.device == "cpu" or n not in PEERS]
    if options.device == "cuda" and set(names) & set(PEERS):
        raise SystemExit(f"--device cuda: the peers run on the CPU; leave {' and '.join(PEERS)} out")
    models = options.models or (MODELS[:2] if options.device == "cpu" else MODELS)
    settings = Settings(
        clients=options.clients,
        cells=options.cells,
        batch_size=options.batch_size,
        local_steps=options.local_steps,
        edge_rounds=options.edge_rounds,
        device=options.device,
        precision=options.precision,
        data_dir=options.data_dir,
    )
    report = about(options) | {"rows": []}
    for model in models:
        for case in options.cases:
            row = measure(replace(settings, model=model, case=case), names, options)
            report["rows"].append(row | {"command": report["command"]})
            _print_row(row)
            yield report


def with_earlier_rows(report: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """The report, and in it what an earlier sitting on the same machine measured of other jobs."""
    if any(report[key] != earlier.get(key) for key in ("processor", "gpu", "cores", "torch")):
        return report
    rows = {(row["model"], row["case"]): row for row in (*earlier["rows"], *report["rows"])}
    return report | {"rows": [rows[job] for job in product(MODELS, METHODS) if job in rows]}


def _print_row(row: dict[str, Any]) -> None:
    print(f"{row['model']} {row['case']}: {row['parameters']:,} parameters, {row['data']}")
    for name, found in row["contenders"].items():
        if "left_out" in found:
            print(f"  {name:11s} left out: {found['left_out']}")
        else:
            print(f"  {name:11s} {found['steps_per_second']:10,.0f} client steps/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scaling", action="store_true", help="the scaling curves instead of the comparison")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS)
    parser.add_argument("--models", nargs="+", choices=MODELS)
    parser.add_argument("--cases", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32", choices=list(TOLERANCES))
    parser.add_argument("--data-dir", help="where the data sets lie, as in histfl run")
    parser.add_argument(
        "--cores", type=int, default=usable_cores(), help="threads and processes that work at once"
    )
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--edge-rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=5, help="of every contender, at most")
    parser.add_argument(
        "--seconds", type=float, default=120, help=f"a job; it takes {FEWEST_TURNS} turns at least"
    )
    parser.add_argument("--largest", type=int, default=1_000_000, help="population of --scaling")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no contender outlives the benchmark
    name, reports = "bench", compare(options)
    if options.scaling:
        name, reports = "scaling", iter([about(options) | measure_scaling(options)])
    options.out.mkdir(parents=True, exist_ok=True)
    unusual = [options.precision] * (options.precision != "float32")
    unusual += [f"{options.clients}-clients"] * (options.clients != Settings.clients)
    path = options.out / f"{'-'.join([name, options.device, *unusual])}.json"
    earlier = json.loads(path.read_text("utf-8")) if path.exists() else {}
    text = ""
    for report in reports:  # what is measured stays, also where the rest is interrupted
        if not options.scaling:
            report = with_earlier_rows(report, earlier)
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        text = write_report(path)
    print(text, f"\n{path} and the table and plot beside it", sep="")


if __name__ == "__main__":
    main()
