"""How close max-min beamforming comes to its bound, how fast it is, and what other methods reach.

    python benchmarks/beamforming.py
    python benchmarks/beamforming.py --device cuda --problems 100000 --json beamforming.json

Speed on a CPU is that of OMP_NUM_THREADS threads; batched and one by one are timed in the same run, on
the same problems, so that their ratio holds whatever else the machine does. `cpu` is processor time, in which
other programs' turns on the same cores do not count.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from histfl.wireless import Rayleigh, max_min
from histfl.wireless.beamforming_sca import principal_eigenvector, sca
from histfl.wireless.relaxation import sdr_randomised, upper_bound


def sca_elsewhere(channels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Successive convex approximation from one random beam a problem: a path that max_min does not follow."""
    generator = torch.Generator(device=channels.device).manual_seed(0)
    return sca(channels, Rayleigh().draw(len(channels), channels.shape[-1], generator))


BASELINES: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "sca": sca,
    "sca_elsewhere": sca_elsewhere,
    "sdr": sdr_randomised,
    "eigenvector": principal_eigenvector,
}


def timed(function: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """The result and its seconds, everything queued on the device included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - start


def measure(clients: int, antennas: int, problems: int, options: argparse.Namespace) -> dict[str, Any]:
    """Shares of the bound and milliseconds for one size."""
    device = torch.device(options.device)
    generator = torch.Generator(device=device).manual_seed(options.seed)
    channels = Rayleigh().draw((problems, clients), antennas, generator)
    max_min(channels[: min(problems, 64)])  # libraries load, kernels compile
    seconds = cpu_seconds = math.inf
    for _ in range(options.repeats):
        cpu_start = time.process_time()
        (_, values), once = timed(lambda: max_min(channels), device)
        cpu_seconds = min(cpu_seconds, time.process_time() - cpu_start)
        seconds = min(seconds, once)
    single = channels[: options.one_by_one]
    cpu_start = time.process_time()
    _, seconds_single = timed(lambda: [max_min(channel) for channel in single], device)
    cpu_single = time.process_time() - cpu_start
    compared = channels[: options.compared]
    bound = upper_bound(compared)
    shares = values[: len(compared)] / bound
    row: dict[str, Any] = {
        "clients": clients,
        "antennas": antennas,
        "problems": problems,
        "share_mean": shares.mean().item(),
        "share_worst": shares.min().item(),
        "seconds": seconds,
        "ms_batched": 1e3 * seconds / problems,
        "cpu_ms_batched": 1e3 * cpu_seconds / problems,
        "ms_one_by_one": 1e3 * seconds_single / len(single),
        "cpu_ms_one_by_one": 1e3 * cpu_single / len(single),
    }
    row["speedup"] = row["ms_one_by_one"] / row["ms_batched"]
    row["cpu_speedup"] = row["cpu_ms_one_by_one"] / row["cpu_ms_batched"]
    for name, baseline in BASELINES.items():
        (_, others), seconds = timed(lambda baseline=baseline: baseline(compared), device)
        row[f"{name}_share"] = (others / bound).mean().item()
        row[f"{name}_ms"] = 1e3 * seconds / len(compared)
        row[f"{name}_better"] = int((others > values[: len(compared)] + 1e-9).sum())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--problems", type=int, default=1000, help="problems a size")
    parser.add_argument("--compared", type=int, default=1000, help="problems with bound and baselines")
    parser.add_argument("--one-by-one", type=int, default=30, help="problems solved one at a time")
    parser.add_argument("--repeats", type=int, default=3, help="batched runs; the fastest counts")
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 15, 30])
    parser.add_argument("--antennas", type=int, nargs="+", default=[10])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the table there")
    options = parser.parse_args()
    if min(options.problems, options.compared, options.one_by_one, options.repeats) < 1:
        parser.error("--problems, --compared, --one-by-one and --repeats must be at least 1")
    rows = []
    print(
        "clients antennas | share of the bound: mean worst | ms a problem: batched (cpu) one-by-one ratio (cpu) | "
        "others' mean share (problems they win): " + " ".join(BASELINES)
    )
    for antennas in options.antennas:
        for clients in options.clients:
            row = measure(clients, antennas, options.problems, options)
            rows.append(row)
            others = " ".join(f"{row[f'{name}_share']:.3f} ({row[f'{name}_better']})" for name in BASELINES)
            print(
                f"{clients:7d} {antennas:8d} | {row['share_mean']:.4f} {row['share_worst']:.4f} | "
                f"{row['ms_batched']:.4f} ({row['cpu_ms_batched']:.4f}) {row['ms_one_by_one']:.2f} {row['speedup']:.1f} ({row['cpu_speedup']:.1f}) | {others}",
                flush=True,
            )
    if options.json:
        report = {
            "device": options.device,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "rows": rows,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
