"""What is read of a run's files: they may come from elsewhere, so nothing is taken on trust."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Number = Annotated[float, Field(strict=True)]
Accuracy = Annotated[float, Field(strict=True, ge=0, le=1)]
Cost = Annotated[float, Field(strict=True, ge=0)]
MOST_CELLS = 100_000  # that are drawn
Count = Annotated[int, Field(strict=True, ge=0)]


class _Read(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class Latency(_Read):
    compute_seconds: Cost
    uplink_seconds: Cost
    cell_seconds: Annotated[list[Cost], Field(min_length=1)]


Estimate = Annotated[float, Field(strict=True, ge=-1e30, le=1e30)]  # an unbiased one may be below zero


class Theory(_Read):
    loss: Estimate
    gradient_norm: Estimate
    cell_divergence: Estimate
    client_divergence: Annotated[list[Estimate], Field(min_length=1)]
    gradient_variance: Annotated[list[Estimate], Field(min_length=1)]
    smoothness: Estimate
    model_norm: Estimate
    parameters: Count


class Round(_Read):
    round: Count
    accuracy: Accuracy | None = None  # where it is no metric of the objective
    loss: Number
    megabytes_per_client: Cost
    edge_cloud_megabytes: Cost
    simulated_seconds: Cost
    energy_joules: Cost
    client_steps: Count
    edge_error: Cost
    aggregation_error: Cost
    latency: Latency
    submodel_parameters: Annotated[list[Count], Field(min_length=1)]
    units: list[list[Count]]
    active_cells: list[Count] | None = None
    theory: Theory | None = None

    @model_validator(mode="after")
    def _cells_are_numbered(self) -> Round:
        if self.active_cells is not None and len(self.active_cells) != len(self.latency.cell_seconds):
            raise ValueError(
                f"{len(self.active_cells)} active cells, but seconds of {len(self.latency.cell_seconds)}"
            )
        if len({len(counts) for counts in self.units}) > 1:
            raise ValueError("the units are not of the same layers in every cell")
        return self


class RoundLine(_Read):
    """One line of rounds.jsonl, whatever it holds."""

    line: Round


class Reached(_Read):
    round: Count
    megabytes_per_client: Cost
    simulated_seconds: Cost


class Summary(_Read):
    method: str
    rounds: Count
    seed: Count
    final_accuracy: Accuracy | None = None
    best_accuracy: Accuracy | None = None
    megabytes_per_client: Cost
    edge_cloud_megabytes: Cost
    simulated_seconds: Cost
    energy_joules: Cost
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


class Layer(_Read):
    name: str
    units: Count
    owner: list[Annotated[int, Field(strict=True, ge=-1)]]


class Partition(_Read):
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


class Labels(_Read):
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


class Pictures(_Read):
    partition: Partition
    labels: Labels


class Columns(_Read):
    """The rounds that are kept of a run."""

    round: list[Cost]
    accuracy: list[Accuracy]
    loss: list[Number]
    megabytes_per_client: list[Cost]
    simulated_seconds: list[Cost]

    @model_validator(mode="after")
    def _lengths_agree(self) -> Columns:
        if len({len(column) for column in dict(self).values()}) > 1:
            raise ValueError("the columns are of different lengths")
        return self


class KeptResult(_Read):
    """What `histfl reproduce collect` keeps of an arm."""

    arm: str
    labels: dict[str, str | int | float | list[int]]
    finished: Annotated[bool, Field(strict=True)]
    to_target: dict[str, Reached | None]
    config: dict[str, dict[str, Any]]
    records: Columns
    wall_seconds: Cost | None = None
    versions: dict[str, str] | None = None
    commit: str | None = None
    machine: str | None = None
    torch: str | None = None
    command: str
    diverged: str | None = None
