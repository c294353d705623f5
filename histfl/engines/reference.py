"""The plain engine, and the oracle of every other one: a loop over cells, and clients within them."""

from __future__ import annotations

from collections.abc import Sequence

from histfl.devices import one_torch_thread
from histfl.training import CellJob, CellResult
from histfl.training.edge import run_cell
from histfl.training.precision import products


class ReferenceEngine:
    """Runs the jobs one after another in this process, on one torch thread: a client's batches are too small for more."""

    name = "reference"

    def run(self, jobs: Sequence[CellJob]) -> Sequence[CellResult]:
        if not jobs:
            return []
        with products(jobs[0].task.local.precision), one_torch_thread():
            return [run_cell(job) for job in jobs]
