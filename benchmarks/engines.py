"""Client steps a second: the reference engine, the vectorised engine and a plain PyTorch loop.

    python benchmarks/engines.py
    python benchmarks/engines.py --models mlp --repeats 5 --json engines.json

Every contender runs in a process of its own, since memory that one has freed makes the next one faster.
The contenders take turns, `--repeats` times, and the best turn of each counts. The loop and the reference
engine have one torch thread, since with more their speed differs from process to process. `cpu` is client
steps a second of processor time on one core, which other programs' turns on the same cores do not count in
(though what they do to the caches does).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import platform
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from histfl.data import TensorData
from histfl.engines import ENGINES
from histfl.experiments.build import Ingredients, build
from histfl.experiments.config import Config
from histfl.models import build_model
from histfl.network import Network
from histfl.partition import Submodel, draw, even_counts, extract
from histfl.settings import checked
from histfl.training import CellJob

SAMPLES, CLASSES, SHAPE = 60_000, 10, (1, 28, 28)
METHODS = {"full": "hfedavg", "hist": "hist"}
CONTENDERS = ("loop", *ENGINES)


def make_jobs(model: str, case: str, options: argparse.Namespace) -> list[CellJob]:
    """One global round; the samples are noise of Fashion-MNIST's shape, since speed does not see them."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, *SHAPE, generator=generator)
    targets = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    data = TensorData(inputs, targets, tuple(map(str, range(CLASSES))))
    network = Network.uniform(options.cells, clients=options.clients)
    tables = {
        "method": {"name": METHODS[case]},
        "uplink": {"name": "ideal"},
        "data": {"split": "iid"},
        "training": {"local_steps": options.local_steps, "batch_size": options.batch_size},
    }
    module = build_model(model, {}, SHAPE, CLASSES, seed=1)
    ingredients = Ingredients(module, data, data, network)
    run = build(checked(Config, tables, "benchmark"), ingredients, device=options.device, engine="reference")
    hist, seeds = run.hist, run.hist.task.seeds
    state = {name: value.detach() for name, value in run.model.named_parameters()}
    counts = even_counts(hist.plan, options.cells)
    submodels: tuple[Submodel, ...] = tuple(draw(hist.plan, counts, seeds.numpy("partition", 0)))
    cells = [network.cell(index) for index in range(options.cells)]
    schedules = [hist.participation.schedule(cell, options.edge_rounds, 0, seeds) for cell in cells]
    return [
        CellJob(hist.task, cell, 0, extract(state, submodel), {}, schedule, None)
        for cell, submodel, schedule in zip(cells, submodels, schedules, strict=True)
    ]


def plain_loop(jobs: list[CellJob]) -> None:
    """What one writes first: a module and torch.optim.SGD a client, on tensors already in memory."""
    task = jobs[0].task
    for job in jobs:
        for clients in job.schedule.arrived:
            for client in clients + job.cell.first_client:
                model = deepcopy(task.model)
                for name, value in job.start.items():
                    owner, _, leaf = name.rpartition(".")
                    setattr(model.get_submodule(owner), leaf, nn.Parameter(value.clone()))
                optimiser = torch.optim.SGD(model.parameters(), lr=task.local.learning_rate)
                samples = torch.from_numpy(task.split.client(int(client)))
                for _ in range(task.local.local_steps):
                    batch = samples[torch.randint(len(samples), (task.local.batch_size,))]
                    optimiser.zero_grad()
                    task.loss(model(task.data.inputs[batch]), task.data.targets[batch]).backward()
                    optimiser.step()


def contend(
    pipe: multiprocessing.connection.Connection, name: str, model: str, case: str, options: argparse.Namespace
) -> None:
    """A contender's process: a turn for every message, until an empty one."""
    torch.set_num_threads(options.threads if name == "vectorised" else 1)
    jobs = make_jobs(model, case, options)
    run: Callable[[], Any]
    if name == "loop":
        run = lambda: plain_loop(jobs)  # noqa: E731
    else:
        engine = ENGINES[name]()
        run = lambda: engine.run(jobs)  # noqa: E731
    run()  # libraries load, ways are chosen
    steps = sum(len(c) for job in jobs for c in job.schedule.arrived) * options.local_steps
    pipe.send(sum(value.numel() for value in jobs[0].start.values()))
    while pipe.recv():
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        pipe.send((steps / (time.perf_counter() - wall), steps / (time.process_time() - cpu)))


def measure(model: str, case: str, options: argparse.Namespace) -> dict[str, Any]:
    """The best turn of every contender on one job."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    row: dict[str, Any] = {"model": model, "case": case}
    for name in CONTENDERS:
        pipes[name], theirs = context.Pipe()
        process = context.Process(target=contend, args=(theirs, name, model, case, options))
        process.start()
        processes.append(process)
        row["parameters"] = pipes[name].recv()
    best = dict.fromkeys(CONTENDERS, (0.0, 0.0))
    for _ in range(options.repeats):
        for name, pipe in pipes.items():
            pipe.send(True)
            best[name] = tuple(map(max, best[name], pipe.recv()))  # type: ignore[assignment]
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(False)
        process.join()
    for name, (wall, cpu) in best.items():
        row[name] = {"steps_per_second": wall, "steps_per_cpu_second": cpu}
        row[name]["times_the_loop"] = wall / best["loop"][0]
        row[name]["times_the_loop_per_cpu_second"] = cpu / best["loop"][1]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["mlp", "lenet5"])
    parser.add_argument("--cases", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the vectorised engine")
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--edge-rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the table there")
    options = parser.parse_args()
    print("model   case  parameters | client steps/s (a cpu second), times the loop (a cpu second):")
    rows = []
    for model in options.models:
        for case in options.cases:
            rows.append(measure(model, case, options))
            shown = "  ".join(
                f"{name} {found['steps_per_second']:.0f} ({found['steps_per_cpu_second']:.0f}) "
                f"{found['times_the_loop']:.2f}x ({found['times_the_loop_per_cpu_second']:.2f}x)"
                for name, found in ((name, rows[-1][name]) for name in CONTENDERS)
            )
            print(f"{model:7s} {case:5s} {rows[-1]['parameters']:10d} | {shown}", flush=True)
    if options.json:
        report = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": options.threads,
            "load_at_the_end": os.getloadavg()[0],
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "rows": rows,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
