"""Our engines: a global round of HIST from the drawing of the partition to the merged model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from turns import State, contender_options, take_turns

sys.path.insert(0, str(Path(__file__).parent.parent))
from job import Settings, experiment

from histfl.training import CellJob, CellResult, Engine, hist


class _Kept:
    """An engine whose results are looked at afterwards: a round's outcome has no states."""

    def __init__(self, engine: Engine) -> None:
        self.name, self.close, self._engine = engine.name, engine.close, engine

    def run(self, jobs: Sequence[CellJob]) -> Sequence[CellResult]:
        self.results = list(self._engine.run(jobs))
        return self.results


def main() -> None:
    options = contender_options()
    torch.set_num_threads(options.threads)
    settings = Settings(**json.loads((options.job / "settings.json").read_text("utf-8")))
    built = experiment(settings, options.name)
    start = {name: value.detach().clone() for name, value in built.model.named_parameters()}

    def global_round(edge_rounds: int) -> list[State]:
        run = replace(built.hist, edge_rounds=edge_rounds)
        engine = _Kept(built.engine)
        list(hist(run, start, engine, first_round=0, rounds=1))
        return [result.state for result in engine.results]

    take_turns(options.socket, global_round)


if __name__ == "__main__":
    main()
