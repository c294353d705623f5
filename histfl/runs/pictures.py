"""What a report draws besides the records: who held which units last, and who holds which labels.

Both are bounded, so that a huge model or a million clients leave a small file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from histfl.data import Split, label_mix
from histfl.runs.build import Experiment
from histfl.runs.records import Record
from histfl.runs.schema import Pictures, written

SHARED = -1  # the owner of a unit that several cells hold
NOBODY = -2  # and of one that no cell of the round does
LAYERS, UNITS, CLIENTS, CLASSES, CELLS = 48, 1024, 120, 50, 1024


def pictures(experiment: Experiment, last: Record) -> dict[str, Any]:
    """The partition of the round of `last` and the label mix, as plain lists."""
    values = {"partition": partition_picture(experiment, last), "labels": label_picture(experiment)}
    return written(Pictures, values)


def partition_picture(experiment: Experiment, record: Record) -> dict[str, Any]:
    """The owner of every unit, layer by layer, in the round of `record`: a place among its cells; and how many of these
    units each cell holds.

    The dealer deals the units out again, as in training, so nothing needs keeping.
    """
    run, cells = experiment.hist, len(record["units"])
    counts = np.array(record["units"], dtype=np.int64).reshape(cells, len(run.plan.groups))
    numbers = record.get("active_cells") or range(cells)
    submodels = run.dealer.deal(run.plan, counts, numbers, record["round"] - 1, run.task.seeds)
    layers = []
    for index, group in enumerate(run.plan.groups[:LAYERS]):
        holders = np.zeros(group.num_units, dtype=np.int64)
        owner = np.full(group.num_units, NOBODY)
        for cell, submodel in enumerate(submodels):
            units = submodel.kept[index].numpy()
            holders[units] += 1
            owner[units] = cell
        owner[holders > 1] = SHARED
        held = [int((submodel.kept[index] < UNITS).sum()) for submodel in submodels[:CELLS]]
        drawn = owner[:UNITS].tolist()
        layers.append({"name": group.name, "units": group.num_units, "owner": drawn, "held": held})
    return {
        "round": record["round"],
        "cells": cells,
        "active_cells": record.get("active_cells"),
        "groups": len(run.plan.groups),
        "layers": layers,
    }


def label_picture(experiment: Experiment) -> dict[str, Any] | None:
    """Samples by label: of every cell [cell, class], and of clients spread evenly over the network."""
    task, network = experiment.hist.task, experiment.hist.network
    if not task.data.class_names or task.split.elsewhere:
        return None
    split, classes = task.split, task.data.num_classes
    labels = task.data.targets.cpu().numpy()
    by_cell = Split(split.order, split.offsets[network.offsets])
    chosen = np.unique(np.linspace(0, split.num_clients - 1, min(CLIENTS, split.num_clients)).astype(int))
    parts = [split.client(client) for client in chosen]
    by_client = Split(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))
    return {
        "class_names": list(task.data.class_names[:CLASSES]),
        "classes": classes,
        "clients": split.num_clients,
        "cell_counts": label_mix(by_cell, labels, classes)[:CELLS, :CLASSES].tolist(),
        "shown_clients": chosen.tolist(),
        "shown_cells": network.cell_of_client[chosen].tolist(),
        "client_counts": label_mix(by_client, labels, classes)[:, :CLASSES].tolist(),
    }
