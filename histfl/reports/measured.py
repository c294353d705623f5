"""What a deployment really took, beside what the simulation counts for the same rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from histfl.reports.plots import Axis, Line, Plot
from histfl.reports.style import BLACK, GREY
from histfl.reports.tables import Cell, Column, Table
from histfl.runs.records import in_megabytes
from histfl.runs.run import Run
from histfl.sizing import POLICIES, UNIFORM

COLUMNS = (
    Column("run", "run"),
    Column("seconds", "seconds", "a round"),
    Column("training_seconds", "of these the clients' steps", "a round"),
    Column("link_seconds", "between clients and edge", "a round"),
    Column("simulated_seconds", "as simulated", "a round"),
    Column("clients_to_edges_megabytes", "MB from clients to edges"),
    Column("counted_megabytes", "as counted"),
    Column("edges_to_cloud_megabytes", "MB from edges to the cloud"),
    Column("edge_cloud_megabytes", "as counted"),
    Column("updates_missed", "updates missed"),
    Column("cells_lost", "cells lost"),
)
MEASURED_SIZES = [name for name in POLICIES if name != UNIFORM]
CAPTION = (
    "Seconds are of a round's slowest cell, means over the rounds; what is neither steps nor the links of clients is the "
    "link to the cloud and the averaging. Megabytes are those of all rounds, of whole messages; counted are those of the "
    "updates alone."
)


def deployed(runs: Sequence[Run]) -> list[Run]:
    """The runs whose clients were machines of their own."""
    return [run for run in runs if any(record.get("measured") for record in run.records)]


def measured_table(runs: Sequence[Run]) -> Table:
    """A row a deployed run."""
    return Table(COLUMNS, tuple(_row(run) for run in runs))


def _row(run: Run) -> tuple[Cell, ...]:
    rounds, last = [record["measured"] for record in run.records if record.get("measured")], run.records[-1]
    slowest = [int(np.argmax(each["cell_seconds"])) for each in rounds]
    clients = run.summary.get("clients")  # told when the run ends
    seconds = (
        np.mean([each["seconds"] for each in rounds]),
        np.mean([each["training_seconds"][cell] for each, cell in zip(rounds, slowest, strict=True)]),
        np.mean([each["link_seconds"][cell] for each, cell in zip(rounds, slowest, strict=True)]),
        np.mean([record["latency"]["seconds"] or 0.0 for record in run.records]),
    )
    megabytes = (
        sum(sum(each["clients_to_edges_megabytes"]) for each in rounds),
        None if clients is None else last["megabytes_per_client"] * clients,
        sum(sum(each["edges_to_cloud_megabytes"]) for each in rounds),
        last["edge_cloud_megabytes"],
    )
    counts = (
        sum(len(each["missed_clients"]) for each in rounds),
        sum(len(each["lost_cells"]) for each in rounds),
    )
    return (
        Cell(run.name, run.name),
        *(Cell(f"{value:.3g}", float(value)) for value in seconds),
        *(Cell("", None) if value is None else Cell(in_megabytes(value), value) for value in megabytes),
        *(Cell(str(count), count) for count in counts),
    )


def measured_plot(run: Run) -> Plot:
    """Seconds of every round, as measured and as simulated."""
    rounds = [record for record in run.records if record.get("measured")]
    numbers = np.array([record["round"] for record in rounds], dtype=float)
    measured = np.array([record["measured"]["seconds"] for record in rounds])
    simulated = np.array([record["latency"]["seconds"] or np.nan for record in rounds])
    lines = [
        Line("measured", numbers, measured, BLACK, markers=len(rounds) == 1),
        Line("simulated", numbers, simulated, GREY, "dash", markers=len(rounds) == 1),
    ]
    about = (
        "Measured: from the cloud's asking to the slowest cell's answer. Simulated: computing and uplink of the network "
        "described."
    )
    if run.config.method.sizes in MEASURED_SIZES:
        foretold = np.array([record["latency"].get("predicted_seconds") or np.nan for record in rounds])
        lines.append(Line("foretold by the sizes", numbers, foretold, GREY, "dot"))
        about += " Foretold: by the sizes, which follow what was measured from the second round on."
    axes = Axis("global round"), Axis("seconds a round", scale="powers")
    return Plot(f"Seconds of every round: {run.name}", about, *axes, tuple(lines))
