"""Run folders in the real format with made-up numbers: many rounds in no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from histfl.runs.config import Config
from histfl.runs.loading import load_config
from histfl.runs.records import summarise
from histfl.runs.store import RunFolder


def made_up_rounds(
    config: Config, *, rounds: int, offset: float = 0.0, error: float = 0.0
) -> list[dict[str, Any]]:
    """Accuracy rises to 0.9 + offset; hierarchical FedAvg sends four times as much a round. Where a number of
    cells takes part, they are the next ones in every round."""
    sampled = config.network.active_cells
    cells = sampled if isinstance(sampled, int) else config.network.cells
    factor = 4.0 if config.method.name == "hfedavg" else 1.0
    return [
        {
            "round": number,
            "accuracy": 0.9 * number / (number + 3) + offset,
            "loss": 3.0 / number,
            "training_loss": 2.0 / number,
            "megabytes_per_client": 0.7 * factor * number,
            "edge_cloud_megabytes": 0.3 * factor * number,
            "simulated_seconds": 0.11 * factor * number,
            "energy_joules": 0.05 * factor * number,
            "client_steps": 100 * number,
            "latency": {
                "seconds": 0.11 * factor,
                "compute_seconds": 0.01 * factor,
                "uplink_seconds": 0.1 * factor,
                "predicted_seconds": 0.11 * factor,
                "slowest_cell": 0,
                "cell_seconds": [0.11 * factor / (cell + 1) for cell in range(cells)],
            },
            "active_cells": [(number + place) % config.network.cells for place in range(cells)]
            if sampled != "all"
            else None,
            "submodel_parameters": [1000 + number * cell for cell in range(cells)],
            "units": [[4]] * cells,
            "cap": None,
            "updates_sent": 20,
            "updates_lost": 0,
            "edge_error": error,
            "aggregation_error": error,
        }
        for number in range(1, rounds + 1)
    ]


def write_run(folder: Path, *settings: str, rounds: int = 6, offset: float = 0.0, error: float = 0.0) -> Path:
    """A finished run of the quickstart's configuration with `settings`."""
    config = load_config("quickstart", [f"training.rounds={rounds}", *settings])
    records = made_up_rounds(config, rounds=rounds, offset=offset, error=error)
    about = {
        "cells": config.network.cells,
        "clients": config.network.clients,
        "engine": "reference",
        "device": "cpu",
    }
    folder.mkdir(parents=True)
    store = RunFolder(folder)
    store.config_path.write_text(config.to_toml(), "utf-8")
    store.rounds_path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    store.save_pictures(made_up_pictures(config.network.cells))
    store.save_summary(summarise(config, records, about=about, wall_seconds=1.0))
    return folder


def made_up_pictures(cells: int, *, layer: str = "fc1", label: str = "shirt") -> dict[str, Any]:
    owners = [unit % cells for unit in range(4 * cells)]
    return {
        "partition": {
            "round": 6,
            "cells": cells,
            "groups": 1,
            "layers": [{"name": layer, "units": len(owners), "owner": owners}],
        },
        "labels": {
            "class_names": [label, "bag"],
            "classes": 2,
            "clients": 2 * cells,
            "cell_counts": [[3, 5]] * cells,
            "shown_clients": list(range(2 * cells)),
            "shown_cells": [client // 2 for client in range(2 * cells)],
            "client_counts": [[1, 2], [2, 3]] * cells,
        },
    }
