"""The plain engine, and the oracle of every other one: a loop over cells, and clients within them."""

from __future__ import annotations

from collections.abc import Sequence

from histfl.training import CellJob, CellResult
from histfl.training.edge import run_cell


class ReferenceEngine:
    """Runs the jobs one after another in this process."""

    name = "reference"

    def run(self, jobs: Sequence[CellJob]) -> Sequence[CellResult]:
        return [run_cell(job) for job in jobs]
