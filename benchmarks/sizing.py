"""How long the sizes take: the exact algorithm and HiGHS on the same problems, in one process.

    python benchmarks/sizing.py [--most-cells 1000000] [--limit 60] [--json FILE]

One cut layer of 300 units a cell; then the layer tables of four networks. A HiGHS run that meets its
limit is shown as such with the distance of its best solution, and larger problems are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from histfl.sizing import CutLayers, SizingProblem, optimised, size
from histfl.sizing.milp import solve_milp
from histfl.wireless.costs import AffineCost, AirCompCost, Cost

NETWORKS = {
    "mlp 784-512-256-128-10": CutLayers(np.array([512, 128]), np.array([1041, 267]), 266),
    "lenet5": CutLayers(np.array([120]), np.array([485]), 3506),
    "resnet18": CutLayers(
        np.array([64, 64, 128, 128, 256, 256, 512, 512]),
        np.array([1154, 1154, 1730, 2306, 3458, 4610, 6914, 9218]),
        190_000,
    ),
    "lora rank 16": CutLayers(np.full(24, 16), np.full(24, 3072)),
}


def costs(cells: int) -> dict[str, Cost]:
    generator = np.random.default_rng(cells)
    fixed, slope = np.zeros(cells), generator.uniform(1e-6, 4e-6, cells)
    return {"fdma": AffineCost(fixed, slope), "aircomp": AirCompCost(fixed, slope / 10, 3.6e-4, 666)}


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least seconds of several runs, and the result."""
    best, result = np.inf, None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best, result


def measure(name: str, problem: SizingProblem, limit_s: float) -> dict[str, Any]:
    ours_s, counts = timed(lambda: optimised(problem), repeats=1 if problem.num_cells > 100_000 else 5)
    row: dict[str, Any] = {"problem": name, "cells": problem.num_cells, "ours_s": ours_s}
    row["gap_to_bound"] = size(problem, lambda _: counts).gap
    if limit_s > 0:
        row["highs_s"], found = timed(lambda: solve_milp(problem, time_limit_s=limit_s), repeats=1)
        row["highs_proven"] = found.proven
        ours = float(problem.cost.seconds(problem.layers.parameters(counts)).max())
        row["ours_over_highs"] = ours / found.seconds if found.counts is not None else None
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most-cells", type=int, default=1_000_000)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each HiGHS run; 0 for none")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    arguments = parser.parse_args()

    rows = []
    print(f"{'problem':26} {'cells':>8} {'ours':>11} {'gap to bound':>13} {'HiGHS':>15} {'ours/HiGHS':>11}")
    limits = dict.fromkeys(("fdma", "aircomp"), arguments.limit)
    sizes = [10**power for power in range(2, 7) if 10**power <= arguments.most_cells]
    for cells in sizes:
        for uplink, cost in costs(cells).items():
            layers = CutLayers(np.array([300 * cells]), np.array([795]), 10)
            row = measure(f"one layer, {uplink}", SizingProblem(layers, cost), limits[uplink])
            if not row.get("highs_proven", False):
                limits[uplink] = 0.0  # larger ones will not end either
            rows.append(row)
            show(row)
    for name, layers in NETWORKS.items():
        for cells in (4, 10):
            rows.append(
                measure(name, SizingProblem(layers, costs(cells)["fdma"]), min(arguments.limit, 10.0))
            )
            show(rows[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


def show(row: dict[str, Any]) -> None:
    highs, ratio = "-", "-"
    if "highs_s" in row:
        highs = f"{row['highs_s']:.3f} s" + ("" if row["highs_proven"] else " limit")
        ratio = "none found" if row["ours_over_highs"] is None else f"{row['ours_over_highs']:.6f}"
    print(
        f"{row['problem']:26} {row['cells']:8d} {row['ours_s'] * 1e3:8.2f} ms {row['gap_to_bound']:13.2e} "
        f"{highs:>15} {ratio:>11}",
        flush=True,
    )


if __name__ == "__main__":
    main()
