"""What cells on Ray cost: seconds of a round against workers, of a round of hardly any work, bytes moved, memory, many nodes;
and what two runs at a time gain on one GPU.

    python benchmarks/on_ray.py rounds [--workers 1,2] [--rounds 5]
    python benchmarks/on_ray.py empty
    python benchmarks/on_ray.py bytes
    python benchmarks/on_ray.py memory [--cells 10000]
    python benchmarks/on_ray.py nodes [--nodes 8] [--workers-per-node 8]
    python benchmarks/on_ray.py gpu [--rounds 2000]

Contenders take turns in one process; the best round of each counts. Each line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from histfl.data import TensorData
from histfl.engines import Cluster, RayEngine, VectorisedEngine
from histfl.network import Network
from histfl.runs.build import Experiment, Ingredients, build, prepare
from histfl.runs.config import Config
from histfl.runs.loading import load_config
from histfl.settings import checked
from histfl.training import Engine, hist

# Hardly any work. Clients that all drop out would be none at all, but their cells go to one worker, in one lot.
IDLE = ["training.local_steps=1", "training.edge_rounds=1", "training.batch_size=1"]
MLP = ["model.hidden=300", "network.clients=60", "training.local_steps=20", "training.edge_rounds=5"]


def seconds_of(experiment: Experiment, engine: Engine, rounds: int) -> float:
    """Of the best global round."""
    state = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    best, begun = float("inf"), time.perf_counter()
    for _ in hist(experiment.hist, state, engine, first_round=0, rounds=rounds):
        best = min(best, time.perf_counter() - begun)
        begun = time.perf_counter()
    return best


def compare(settings: list[str], workers: list[int], rounds: int) -> dict[str, float]:
    """Seconds of a round in this process, and on so many workers of one thread."""
    experiment = prepare(load_config("quickstart", settings), device="cpu")
    found = {"in process": float("inf")} | {f"{each} workers": float("inf") for each in workers}
    with Cluster(workers=sum(workers)).connected("cpu"):
        engines: dict[str, Engine] = {"in process": VectorisedEngine()}
        engines |= {f"{each} workers": RayEngine(cluster=Cluster(workers=each)) for each in workers}
        for _ in range(3):
            for name, engine in engines.items():
                found[name] = min(found[name], seconds_of(experiment, engine, rounds))
        for engine in engines.values():
            engine.close()
    return {name: round(value, 4) for name, value in found.items()}


def bytes_of_a_round(settings: list[str]) -> dict[str, float]:
    """Megabytes (10^6) of the submodels that go to workers and come back, and of what is sent once."""
    experiment = prepare(load_config("quickstart", settings), device="cpu")
    sent = 0

    class Counting(VectorisedEngine):
        def run(self, jobs, *, most=None):  # type: ignore[no-untyped-def]
            nonlocal sent
            sent += sum(x.numel() * x.element_size() for job in jobs for x in job.start.values())
            return super().run(jobs, most=most)

    seconds_of(experiment, Counting(), 1)
    data = experiment.hist.task.data
    kept = sum(x.numel() * x.element_size() for x in (data.inputs, data.targets))
    return {"MB there and back a round": 2 * sent / 1e6, "MB of data a node, once": kept / 1e6}


def many_cells(cells: int, participants: int) -> Experiment:
    """Ten clients a cell, of whom `participants` take part; hierarchical FedAvg of a model of 5,514 parameters."""
    clients = 10 * cells
    generator = torch.Generator().manual_seed(1)
    data = TensorData(
        torch.randn(clients, 32, generator=generator),
        torch.arange(clients) % 10,
        tuple(map(str, range(10))),
    )
    model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    network = Network.uniform(cells=cells, clients=clients)
    tables = {
        "method": {"name": "hfedavg"},
        "data": {"split": "iid"},
        "uplink": {"name": "ideal"},
        "network": {"cells": cells, "clients": clients, "participants": participants, "profile": "given"},
        "training": {"local_steps": 1, "edge_rounds": 1, "batch_size": 1, "rounds": 2},
    }
    return build(
        checked(Config, tables, "benchmark"),
        Ingredients(model, data, TensorData(data.inputs[:9], data.targets[:9], data.class_names), network),
        device="cpu",
    )


def memory(cells: int, participants: int, engine: str) -> dict[str, object]:
    """Of this process alone, at its peak; one round."""
    experiment = many_cells(cells, participants)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chosen: Engine = RayEngine(cluster=Cluster(workers=2)) if engine == "ray" else VectorisedEngine()
    seconds = seconds_of(experiment, chosen, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chosen.close()
    return {
        "engine": engine,
        "cells": cells,
        "participants": cells * participants,
        "MB before": before // 1024,
        "MB at the peak": peak // 1024,
        "s a round": round(seconds, 2),
    }


def nodes(count: int, workers_each: int) -> dict[str, object]:
    """Seconds of a round of hardly any work, a lot of four cells a worker, on so many nodes of so many cores, all on this
    machine: 200 MB a worker, which start on its few cores all at once."""
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
    os.environ |= {"RAY_worker_register_timeout_seconds": "1800"}
    import ray
    from ray.cluster_utils import Cluster as Nodes

    simulated = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(count):
        simulated.add_node(num_cpus=workers_each, object_store_memory=80 * 2**20)
    ray.init(address=simulated.address, log_to_driver=False)
    workers = count * workers_each
    engine = RayEngine(
        cluster=Cluster(workers=workers, patience_s=3600), cores=workers
    )  # blocks of four clients
    settings = [f"network.cells={4 * workers}", f"network.clients={4 * workers}", *IDLE]
    experiment = prepare(
        load_config("quickstart", ["method.name=hfedavg", "model.hidden=16", *settings]), device="cpu"
    )
    found = {"nodes": count, "workers": workers, "cells": 4 * workers}
    found |= {"s a round": round(seconds_of(experiment, engine, 5), 4)}
    found |= {"s in process": round(seconds_of(experiment, VectorisedEngine(cores=workers), 5), 4)}
    engine.close()
    ray.shutdown()
    simulated.shutdown()
    return found


def sweep_seconds(folder: Path, rounds: int, options: list[str]) -> float:
    """Of a command that carries out two arms, seeds 1 and 2 of the paper's MLP, from its start to its end."""
    words = [sys.executable, "-m", "histfl", "sweep", "mlp", "--vary", "training.seed=1,2"]
    words += ["--set", f"training.rounds={rounds}", "--out", str(folder), *options]
    begun = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - begun


def two_arms(rounds: int, device: str, gpus: str) -> dict[str, object]:
    """Seconds of two arms one after the other and of two at a time, a worker each, whole commands; and of their rounds
    alone, which are what a long sweep takes more than one of two rounds."""
    ways: dict[str, list[str]] = {
        "one after the other": [],
        "two at a time": ["--parallel", "ray", "--workers", "2", "--gpus-per-worker", gpus],
    }
    found: dict[str, object] = {"arms": 2, "rounds": rounds, "device": device}
    with tempfile.TemporaryDirectory() as folder:
        whole, start = {}, {}
        sweep_seconds(Path(folder) / "first", 2, ["--device", device])  # what is compiled is kept
        for way, options in ways.items():
            asked = [*options, "--device", device]
            start[way] = sweep_seconds(Path(folder) / f"start-{way}", 2, asked)
            whole[way] = sweep_seconds(Path(folder) / way, rounds, asked)
            found |= {f"s, {way}": round(whole[way], 1), f"s, {way}, of two rounds": round(start[way], 1)}
        after, at_a_time = ways
        found["ratio of whole commands"] = round(whole[at_a_time] / whole[after], 3)
        found["ratio of the rounds"] = round(
            (whole[at_a_time] - start[at_a_time]) / (whole[after] - start[after]), 3
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rounds", "empty", "bytes", "memory", "nodes", "gpu"])
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--rounds", type=int, help="5; of gpu 2000")
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--workers-per-node", type=int, default=8)
    parser.add_argument("--gpus-per-worker", default="0.5")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--participants", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--engine", default="ray", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rounds = options.rounds or (2000 if options.what == "gpu" else 5)
    workers = [int(each) for each in options.workers.split(",")]
    if options.what == "rounds":
        print(json.dumps(compare(MLP, workers, rounds)))
    elif options.what == "empty":
        print(json.dumps(compare([*MLP, *IDLE], workers, rounds)))
    elif options.what == "bytes":
        print(json.dumps(bytes_of_a_round(MLP)))
    elif options.what == "nodes":
        print(json.dumps(nodes(options.nodes, options.workers_per_node)))
    elif options.what == "gpu":
        print(json.dumps(two_arms(rounds, options.device, options.gpus_per_worker)))
    elif options.participants is not None:
        print(json.dumps(memory(options.cells, options.participants, options.engine)))
    else:
        for engine in ("ray", "vectorised"):
            for participants in (1, 10):  # a process each: a peak is one's own
                words = ["memory", "--engine", engine, "--participants", str(participants)]
                subprocess.run([sys.executable, __file__, *words, "--cells", str(options.cells)], check=True)


if __name__ == "__main__":
    main()
