"""What stands in a run's files: one list of keys, by which they are written and read.

What is read may come from elsewhere, so nothing is taken on trust. Keys without a default were always there; the
others may be missing in files of older runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Number = Annotated[float, Field(strict=True)]
Accuracy = Annotated[float, Field(strict=True, ge=0, le=1)]
Cost = Annotated[float, Field(strict=True, ge=0)]
MOST_CELLS = 100_000  # that are drawn
Count = Annotated[int, Field(strict=True, ge=0)]


class Entry(BaseModel):
    """A table of such a file. Further keys are allowed: metrics by their names, and what later versions write."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class Latency(Entry):
    """A round's seconds: of its slowest cell, that cell's parts, what the sizes promised, and every cell's."""

    seconds: Cost | None = None
    compute_seconds: Cost
    uplink_seconds: Cost
    predicted_seconds: Cost | None = None
    slowest_cell: Count | None = None
    cell_seconds: Annotated[list[Cost], Field(min_length=1)]


Estimate = Annotated[float, Field(strict=True, ge=-1e30, le=1e30)]  # an unbiased one may be below zero


class Theory(Entry):
    loss: Estimate
    gradient_norm: Estimate
    cell_divergence: Estimate
    client_divergence: Annotated[list[Estimate], Field(min_length=1)]
    gradient_variance: Annotated[list[Estimate], Field(min_length=1)]
    smoothness: Estimate
    model_norm: Estimate
    parameters: Count


class Spread(Entry):
    """Over clients or cells: the mean, that of the worst tenth, the standard deviation."""

    mean: Number
    worst_decile: Number
    spread: Cost


class OwnData(Entry):
    """What the merged model comes to on the training data of each client or cell, by metric."""

    per: str
    values: dict[str, Spread]


class Measured(Entry):
    """What a round really took, where cells and clients are machines of their own: seconds of its slowest cell and of
    every cell, of these those of the clients' steps and those between clients and edge (of the slowest client an edge
    round); megabytes on every cell's links: that to the cloud, and those of its clients together; the clients that
    were missed, one for each edge round, and the cells that did not answer."""

    seconds: Cost
    cell_seconds: Annotated[list[Cost], Field(min_length=1)]
    training_seconds: list[Cost]
    link_seconds: list[Cost]
    cloud_to_edges_megabytes: list[Cost]
    edges_to_cloud_megabytes: list[Cost]
    edges_to_clients_megabytes: list[Cost]
    clients_to_edges_megabytes: list[Cost]
    missed_clients: list[Count]
    lost_cells: list[Count]


class Round(Entry):
    """A line of rounds.jsonl. `round` counts from 1, and costs are totals since the start; lists by cell are of the
    round's cells, those numbered in `active_cells`, or all where that is null."""

    round: Count
    accuracy: Accuracy | None = None  # where it is a metric; others stand beside it by their names
    loss: Number
    training_loss: Number | None = None
    megabytes_per_client: Cost
    edge_cloud_megabytes: Cost
    simulated_seconds: Cost
    energy_joules: Cost
    client_steps: Count
    latency: Latency
    active_cells: list[Count] | None = None
    submodel_parameters: Annotated[list[Count], Field(min_length=1)]
    units: list[list[Count]]
    cap: Cost | None = None
    updates_sent: Count | None = None
    updates_lost: Count | None = None
    edge_error: Cost
    aggregation_error: Cost
    theory: Theory | None = None
    own_data: OwnData | None = None
    measured: Measured | None = None

    @model_validator(mode="after")
    def _cells_are_numbered(self) -> Round:
        if self.active_cells is not None and len(self.active_cells) != len(self.latency.cell_seconds):
            raise ValueError(
                f"{len(self.active_cells)} active cells, but seconds of {len(self.latency.cell_seconds)}"
            )
        if len({len(counts) for counts in self.units}) > 1:
            raise ValueError("the units are not of the same layers in every cell")
        return self


def written(schema: type[Entry], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as they are written: keys in the schema's order, the further ones after them."""
    return schema.model_validate(values).model_dump(exclude_unset=True)


class RoundLine(Entry):
    """One line of rounds.jsonl, whatever it holds."""

    line: Round


class Reached(Entry):
    round: Count
    megabytes_per_client: Cost
    simulated_seconds: Cost


class Privacy(Entry):
    epsilon: Cost | None
    delta: Cost
    sentence: str


class Summary(Entry):
    """summary.json, with what stands in a configuration beside it: the answer of a run."""

    method: str
    rounds: Count
    seed: Count
    final_accuracy: Accuracy | None = None
    best_accuracy: Accuracy | None = None
    megabytes_per_client: Cost
    edge_cloud_megabytes: Cost
    simulated_seconds: Cost
    energy_joules: Cost
    privacy: Privacy | None = None
    to_target: dict[str, Reached | None]
    versions: dict[str, str]

    @field_validator("to_target")
    @classmethod
    def _targets_are_numbers(cls, targets: dict[str, Any]) -> dict[str, Any]:
        for target in targets:
            try:
                valid = math.isfinite(float(target))
            except ValueError:
                valid = False
            if not valid:
                raise ValueError(f"the target {target!r} is not a number")
        return targets


class Layer(Entry):
    name: str
    units: Count
    owner: list[Annotated[int, Field(strict=True, ge=-2)]]
    held: list[Count] | None = None


class Partition(Entry):
    round: Count
    cells: Annotated[int, Field(strict=True, ge=1, le=MOST_CELLS)]
    active_cells: list[Count] | None = None
    groups: Count
    layers: list[Layer]

    @model_validator(mode="after")
    def _owners_are_cells(self) -> Partition:
        if self.active_cells is not None and len(self.active_cells) != self.cells:
            raise ValueError(f"{len(self.active_cells)} numbers for {self.cells} cells")
        if any(owner >= self.cells for layer in self.layers for owner in layer.owner):
            raise ValueError(f"a unit belongs to a cell that is not among the {self.cells}")
        return self


class Labels(Entry):
    class_names: list[str]
    classes: Count
    clients: Count
    cell_counts: list[list[Count]]
    shown_clients: list[Count]
    shown_cells: list[Count]
    client_counts: list[list[Count]]

    @model_validator(mode="after")
    def _shapes_agree(self) -> Labels:
        rows = (*self.cell_counts, *self.client_counts)
        clients = {len(self.shown_clients), len(self.shown_cells), len(self.client_counts)}
        if len(clients) > 1 or any(len(row) != len(self.class_names) for row in rows):
            raise ValueError("the label counts and the names do not match")
        return self


class Pictures(Entry):
    partition: Partition
    labels: Labels | None = None  # none where targets are no labels
