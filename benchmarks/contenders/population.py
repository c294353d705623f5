"""One point of the scaling curves: rounds of a whole run, its seconds and its memory once it is set up."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from turns import contender_options, cuda_bytes, requests, synchronise

sys.path.insert(0, str(Path(__file__).parent.parent))
from scaling import Point

from histfl.data import Split, TensorData
from histfl.models import build_model
from histfl.network import Network
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.settings import checked

CLASSES, TESTED = 10, 500


def experiment(point: Point) -> Experiment:
    """A run in which every client holds `samples_per_client` samples, whatever the population."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(point.samples, point.features, generator=generator)
    targets = torch.randint(CLASSES, (point.samples,), generator=generator)
    data = TensorData(inputs, targets, tuple(map(str, range(CLASSES))))
    test = TensorData(inputs[:TESTED], targets[:TESTED], data.class_names)
    tables = {
        "data": {"split": "iid"},
        "network": {
            "cells": point.cells,
            "clients": point.clients,
            "active_cells": point.active_cells,
            "participants": point.participants // point.active_cells if point.sampled else "all",
        },
        "uplink": {"name": "ideal"},
        "training": {
            "rounds": point.rounds,
            "edge_rounds": 1,
            "local_steps": point.local_steps,
            "batch_size": point.batch_size,
        },
    }
    model = build_model("mlp", {"hidden": point.hidden}, (point.features,), CLASSES, seed=1)
    network = Network.uniform(point.cells, clients=point.clients)
    config = checked(Config, tables, "benchmark")
    built = build(config, Ingredients(model, data, test, network), device=point.device)
    offsets = np.arange(point.clients + 1, dtype=np.int64) * point.samples_per_client
    split = Split(built.hist.task.split.order[: offsets[-1]], offsets)
    return replace(built, hist=replace(built.hist, task=replace(built.hist.task, split=split)))


def most_memory() -> int | None:
    """The most that this process has had in memory since `forget_most_memory`, in bytes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def forget_most_memory() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def main() -> None:
    options = contender_options()
    torch.set_num_threads(options.threads)
    point = Point(**json.loads((options.job / "settings.json").read_text("utf-8")))
    began = time.perf_counter()
    built = experiment(point)
    setup = {"setup_seconds": time.perf_counter() - began, "setup_memory_bytes": most_memory()}
    for _, answer in requests(options.socket):
        times: list[float] = []
        found: dict[str, object] = {}

        def on_round(
            record: dict[str, object], times: list[float] = times, found: dict[str, object] = found
        ) -> None:
            synchronise()
            times.append(time.perf_counter())
            found |= {
                "memory_bytes": most_memory(),
                "cuda_bytes": cuda_bytes(),
                "steps": record["client_steps"],
            }
            if len(times) == 1:  # the first round still sets up: libraries load, ways are chosen
                forget_most_memory()

        execute(built, on_round=on_round)
        answer(setup | found | {"seconds": np.diff(times).tolist()})


if __name__ == "__main__":
    main()
