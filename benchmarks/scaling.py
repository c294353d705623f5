"""Seconds a round and memory against the number of participants, and against a population of which few take part."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from environments import LOGS
from processes import Contender

PARTICIPANTS = (10, 100, 1_000, 10_000)
POPULATIONS = (1_000, 10_000, 100_000, 1_000_000)
SAMPLED, ACTIVE_CELLS, MOST_CELLS = 1_000, 100, 10_000
ROUNDS, ROUNDS_OF_MANY = 11, 4


@dataclass(frozen=True)
class Point:
    """One run: an MLP features-hidden-10 cut by HIST among the cells that take part."""

    clients: int
    cells: int
    active_cells: int
    participants: int
    samples: int
    samples_per_client: int
    features: int
    hidden: int
    local_steps: int
    batch_size: int
    rounds: int
    device: str

    @property
    def sampled(self) -> bool:
        return self.participants < self.clients


def participants_points(device: str) -> list[Point]:
    """The paper's MLP in four cells; all clients take part, six samples each."""
    return [
        Point(
            clients=count,
            cells=4,
            active_cells=4,
            participants=count,
            samples=60_000,
            samples_per_client=6,
            features=784,
            hidden=300,
            local_steps=5,
            batch_size=50,
            rounds=ROUNDS_OF_MANY if count == PARTICIPANTS[-1] else ROUNDS,
            device=device,
        )
        for count in PARTICIPANTS
    ]


def population_points(device: str, largest: int) -> list[Point]:
    """A thousand participants in a hundred cells a round; two samples a client, all of the largest population's
    samples in memory at every point, so that the population is all that changes."""
    return [
        Point(
            clients=population,
            cells=min(MOST_CELLS, population * ACTIVE_CELLS // SAMPLED),
            active_cells=ACTIVE_CELLS,
            participants=SAMPLED,
            samples=2 * POPULATIONS[-1],
            samples_per_client=2,
            features=16,
            hidden=200,
            local_steps=5,
            batch_size=10,
            rounds=ROUNDS,
            device=device,
        )
        for population in POPULATIONS
        if population <= largest
    ]


def measure_scaling(options: argparse.Namespace) -> dict[str, Any]:
    """Both curves; every point is a process of its own."""
    curves = {
        "participants": participants_points(options.device),
        "population": population_points(options.device, options.largest),
    }
    found: dict[str, Any] = {}
    for name, points in curves.items():
        found[name] = []
        for point in points:
            measured = _measure(point, options.cores)
            found[name].append(asdict(point) | measured | {"best_seconds": min(measured["seconds"])})
            print(
                f"{point.participants:,} of {point.clients:,} clients: {min(measured['seconds']):.3f} s a round",
                flush=True,
            )
    return found


def _measure(point: Point, cores: int) -> dict[str, Any]:
    script = Path(__file__).parent / "contenders" / "population.py"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "settings.json").write_text(json.dumps(asdict(point)), encoding="utf-8")
        command = [sys.executable, str(script), "--job", str(folder), "--threads", str(cores)]
        variables, log = {"OMP_NUM_THREADS": str(cores)}, LOGS / "population.log"
        with Contender("population", command, folder, variables, log=log) as contender:
            return contender.turn()
