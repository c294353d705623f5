"""Seconds a round and memory against the number of participants, and against a population of which few take part."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from environments import LOGS
from processes import Contender

PARTICIPANTS = (10, 100, 1_000, 10_000)
POPULATIONS = (1_000, 10_000, 100_000, 1_000_000)
SAMPLED, ACTIVE_CELLS, MOST_CELLS = 1_000, 100, 10_000
TURNS, ROUNDS, ROUNDS_OF_MANY = 2, 6, 3  # the first round of a turn is not counted


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
    """Both curves."""
    return {
        "participants": _curve(participants_points(options.device), options.cores),
        "population": _curve(population_points(options.device, options.largest), options.cores),
    }


def _curve(points: Sequence[Point], cores: int) -> list[dict[str, Any]]:
    """Every point is a process of its own; they take turns, and the best round of each counts."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(_start(point, Path(temporary) / str(number), cores))
            for number, point in enumerate(points)
        ]
        turns = [[contender.turn() for contender in running] for _ in range(TURNS)]
    found = []
    for point, taken in zip(points, zip(*turns, strict=True), strict=True):
        seconds = [second for turn in taken for second in turn["seconds"]]
        found.append(asdict(point) | taken[-1] | {"seconds": seconds, "best_seconds": min(seconds)})
        print(
            f"{point.participants:,} of {point.clients:,} clients: {min(seconds):.3f} s a round", flush=True
        )
    return found


def _start(point: Point, folder: Path, cores: int) -> Contender:
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(asdict(point)), encoding="utf-8")
    script = Path(__file__).parent / "contenders" / "population.py"
    command = [sys.executable, str(script), "--job", str(folder), "--threads", str(cores)]
    variables, log = {"OMP_NUM_THREADS": str(cores)}, LOGS / f"{point.participants}-of-{point.clients}.log"
    return Contender("population", command, folder, variables, log=log)
