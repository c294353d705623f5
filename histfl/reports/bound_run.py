"""What `histfl bound` reads of a run's folder, and where the run departs from what the theorems assume."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from histfl.errors import CheckpointError, UsageError
from histfl.network import spread_evenly
from histfl.runs.config import Config
from histfl.runs.records import Record
from histfl.runs.store import RunFolder


@dataclass(frozen=True)
class BoundRun:
    """A run of HIST with recorded constants. `participants` [cell] are the clients of an edge round."""

    folder: Path
    config: Config
    records: tuple[Record, ...]
    clients_per_cell: tuple[int, ...]

    @property
    def edge_rounds(self) -> int:
        return self.config.training.edge_rounds

    @property
    def local_steps(self) -> int:
        return self.config.training.local_steps

    @property
    def learning_rate(self) -> float:
        return self.config.training.learning_rate

    @property
    def over_the_air(self) -> bool:
        return self.config.uplink.name == "aircomp"

    @property
    def participants(self) -> tuple[int, ...]:
        """n'_j; where updates are lost, those that arrive on average, rounded down."""
        network = self.config.network
        most = math.inf if network.participants == "all" else network.participants
        arriving = (min(count, most) * (1 - network.dropout) for count in self.clients_per_cell)
        return tuple(max(1, math.floor(round(count, 9))) for count in arriving)

    @property
    def partial(self) -> bool:
        return self.config.network.dropout > 0 or self.participants != self.clients_per_cell

    @property
    def theorem(self) -> int:
        """1: all clients; 2: some of them; 3: over the air."""
        return 3 if self.over_the_air else 2 if self.partial else 1


def read_run(path: Path) -> BoundRun:
    """The run in folder `path`; a folder that holds none, or one without constants, says what to do."""
    folder = RunFolder(path)
    if not folder.config_path.is_file():
        inside = sorted(each.parent.name for each in path.glob(f"*/{folder.config_path.name}"))
        hint = f"it holds the runs {', '.join(inside)}; give one of them" if inside else "give a run's folder"
        raise UsageError(f"{path} holds no run ({folder.config_path.name} is missing); {hint}")
    config = folder.read_config()
    if config.method.name != "hist":
        raise UsageError(
            f"{path} is a run of method {config.method.name!r}; the theorems are about disjoint submodels "
            "that cover the model, so give a run of method 'hist'"
        )
    if config.network.active_cells != "all":
        raise UsageError(
            f"{path} is a run with network.active_cells = {config.network.active_cells}; the theorems are about "
            "networks in which every cell trains in every round, so give a run without it"
        )
    records = tuple(folder.read_rounds())
    if not any("theory" in record for record in records):
        raise UsageError(
            f"{path} has no recorded constants; train again with --set theory.every=5 and another --out"
        )
    return BoundRun(path, config, records, _clients_per_cell(folder, config))


def _clients_per_cell(folder: RunFolder, config: Config) -> tuple[int, ...]:
    if config.network.profile in ("uniform", "paper"):
        return tuple(spread_evenly(config.network.clients, config.network.cells).tolist())
    if not folder.summary_path.exists():
        raise UsageError(
            f"{folder.path} is not finished, and its clients per cell are told by {folder.summary_path.name} "
            "alone; finish the run with --resume"
        )
    counts, network = folder.read_summary().get("clients_per_cell"), config.network
    if (
        not isinstance(counts, list)
        or not all(type(count) is int and count > 0 for count in counts)
        or (len(counts), sum(counts)) != (network.cells, network.clients)
    ):
        raise CheckpointError(
            f"{folder.summary_path}: clients_per_cell = {counts} is not of {network.cells} cells and "
            f"{network.clients} clients; train the run again"
        )
    return tuple(counts)


def caveats(run: BoundRun) -> tuple[str, ...]:
    """Where the run departs from the theorems' assumptions, a sentence each."""
    return tuple(_caveats(run))


def _caveats(run: BoundRun) -> Iterator[str]:
    training = run.config.training
    for name in ("momentum", "weight_decay", "clip_norm"):
        if value := getattr(training, name):
            yield f"The theorems are about plain SGD; this run has {name} = {value:g}."
    if run.config.network.dropout > 0:
        yield "Updates were lost; the bound counts the clients whose updates arrive on average, rounded down."
    if run.over_the_air and run.partial:
        yield (
            "No theorem of the paper covers partial participation over the air: these are Theorem 2's "
            "conditions and terms, and Theorem 3's term of the aggregation error."
        )
    cells, sizes = len(run.clients_per_cell), run.records[-1]["submodel_parameters"]
    parameters = next(record["theory"] for record in run.records if "theory" in record)["parameters"]
    everywhere = round((sum(sizes) - parameters) / (cells - 1)) if cells > 1 else 0
    if everywhere > 0:
        yield (
            f"{everywhere:,} of {parameters:,} parameters are held by every cell and averaged; the theorems "
            "assume that none is."
        )
