"""From what a round did to its record, and from the records to the run's summary."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import torch

from histfl.arrays import Floats, Ints
from histfl.runs.config import Config
from histfl.runs.schema import Round, written
from histfl.training import Hist, RoundOutcome
from histfl.training.codecs import Encoding
from histfl.training.evaluation import Evaluation
from histfl.training.objective import Objective

Record = dict[str, Any]
MEGABYTE = 2**20
TOTALS = (
    "megabytes_per_client",
    "edge_cloud_megabytes",
    "simulated_seconds",
    "energy_joules",
    "client_steps",
)


def round_record(run: Hist, outcome: RoundOutcome, evaluation: Evaluation, previous: Record | None) -> Record:
    """One line of rounds.jsonl."""
    sent = [schedule.transmissions for schedule in outcome.schedules]
    losses = [result.loss for result in outcome.results if result.loss is not None]
    cost, cells = outcome.cost, [schedule.cell for schedule in outcome.schedules]
    spent = {
        **megabytes_sent(run.encoding, run.network.num_clients, sent, outcome.parameters, outcome.bits),
        "simulated_seconds": cost.seconds,
        "energy_joules": cost.energy_joules,
        "client_steps": sum(result.client_steps for result in outcome.results),
    }
    measured = _measured(outcome)
    values = {
        "round": outcome.round + 1,
        **evaluation.metrics,
        "loss": evaluation.loss,
        "training_loss": sum(losses) / len(losses) if losses else None,
        **{name: (previous[name] if previous else 0) + spent[name] for name in TOTALS},
        "latency": {
            "seconds": cost.seconds,
            "compute_seconds": cost.compute_seconds,
            "uplink_seconds": cost.uplink_seconds,
            "predicted_seconds": outcome.choice.predicted_seconds,
            "slowest_cell": cells[cost.slowest_cell],
            "cell_seconds": cost.cell_seconds.tolist(),
        },
        "active_cells": cells if len(cells) < run.network.num_cells else None,
        "submodel_parameters": outcome.parameters.tolist(),
        "units": outcome.choice.counts.tolist(),
        "cap": outcome.choice.cap,
        "updates_sent": sum(sent),
        "updates_lost": sum(sent)
        - sum(len(c) for s in outcome.schedules for c in s.arrived)
        + len(measured.get("missed_clients", ())),
        "edge_error": sum(result.edge_error for result in outcome.results) / len(outcome.results),
        # Theorem 3's sum over cells of MSE_j, the mean over edge rounds: an entry's error times the cell's
        # entries, and no error where no update arrived
        "aggregation_error": sum(
            result.edge_error * schedule.share_heard * int(entries)
            for result, schedule, entries in zip(
                outcome.results, outcome.schedules, outcome.parameters, strict=True
            )
        ),
        **({"measured": measured} if measured else {}),
    }
    return written(Round, values)


def megabytes_sent(
    encoding: Encoding, num_clients: int, transmissions: Sequence[int], parameters: Ints, bits: Floats
) -> dict[str, float]:
    """Of a global round, in 2^20 bytes: what a client sends its edge, the mean over all clients of the network, and
    what the edges send the cloud.

    A cell's submodel has `parameters` numbers, and its clients send updates of `bits` so many times: `transmissions`;
    all are [cell].
    """
    updates = [float(each) / 8 for each in bits]
    submodels = [int(size) * encoding.plain / 8 for size in parameters]  # a mean is sent as it is
    return {
        "megabytes_per_client": sum(b * n for b, n in zip(updates, transmissions, strict=True))
        / num_clients
        / MEGABYTE,
        "edge_cloud_megabytes": sum(submodels) / MEGABYTE,
    }


def _measured(outcome: RoundOutcome) -> Record:
    """What was real of the round; nothing of a simulated one."""
    found = [result.measured for result in outcome.results if result.measured is not None]
    if not found:
        return {}
    return {
        "seconds": max(each.seconds for each in found),
        "cell_seconds": [each.seconds for each in found],
        "training_seconds": [each.training_seconds for each in found],
        "link_seconds": [each.link_seconds for each in found],
        "cloud_to_edges_megabytes": [each.bytes_from_cloud / MEGABYTE for each in found],
        "edges_to_cloud_megabytes": [each.bytes_to_cloud / MEGABYTE for each in found],
        "edges_to_clients_megabytes": [each.bytes_to_clients / MEGABYTE for each in found],
        "clients_to_edges_megabytes": [each.bytes_from_clients / MEGABYTE for each in found],
        "missed_clients": [client for each in found for client in each.missed],
        "lost_cells": [
            schedule.cell for schedule, each in zip(outcome.schedules, found, strict=True) if each.lost
        ],
    }


def done(config: Config, records: Sequence[Record]) -> bool:
    """Whether the records are all that the configuration asks for."""
    return (
        len(records) >= config.training.rounds
        or _at_targets(config, records)
        or _out_of_patience(config, records)
    )


def _at_targets(config: Config, records: Sequence[Record]) -> bool:
    """Whether the run may end early, all its targets being reached."""
    settings = config.training
    if not (settings.stop_at_targets and settings.targets and records):
        return False
    objective = config.objective.made()
    best = objective.best(record[objective.goal] for record in records)
    return all(objective.reaches(best, target) for target in settings.targets)


def _out_of_patience(config: Config, records: Sequence[Record]) -> bool:
    """Whether none of the last `training.patience` rounds is better than the best one before them."""
    patience = config.training.patience
    if patience is None or len(records) <= patience:
        return False
    objective = config.objective.made()
    values = [record[objective.goal] for record in records]
    return objective.best(values) == objective.best(values[:-patience])


def summarise(
    config: Config, records: Sequence[Record], *, about: dict[str, Any], wall_seconds: float
) -> Record:
    """The run's answer (summary.json); `about` names what the records do not say."""
    last, objective = records[-1], config.objective.made()
    values = [record[objective.goal] for record in records]
    return {
        "method": config.method.name,
        "model": config.model.name,
        "dataset": config.data.name,
        "split": config.data.split,
        "uplink": config.uplink.name,
        "sizes": config.method.sizes,
        **about,
        "rounds": len(records),
        "stopped_at_targets": _at_targets(config, records),
        "seed": config.training.seed,
        "active_cells": last.get("active_cells"),  # whose these are; null: all
        "submodel_parameters": last["submodel_parameters"],
        f"final_{objective.goal}": values[-1],
        f"best_{objective.goal}": objective.best(values),
        "final_loss": last["loss"],
        **({"own_data": last["own_data"]} if "own_data" in last else {}),
        **_measured_in_all(records),
        **{name: last[name] for name in TOTALS},
        "to_target": {
            f"{target:g}": reached(records, target, objective) for target in config.training.targets
        },
        "wall_seconds": wall_seconds,
        "client_steps_per_second": last["client_steps"] / wall_seconds if wall_seconds > 0 else None,
        "versions": versions(),
    }


def _measured_in_all(records: Sequence[Record]) -> Record:
    """What was real of all rounds; nothing of a simulated run."""
    found = [record["measured"] for record in records if record.get("measured")]
    if not found:
        return {}
    links = [key for key in found[0] if key.endswith("_megabytes")]
    return {
        "measured": {"seconds": sum(each["seconds"] for each in found)}
        | {key: sum(sum(each[key]) for each in found) for key in links}
        | {
            "updates_missed": sum(len(each["missed_clients"]) for each in found),
            "cells_lost": sum(len(each["lost_cells"]) for each in found),
        }
    }


def scalars(values: Mapping[str, Any], prefix: str = "", *, by_cell: bool = True) -> dict[str, float]:
    """The numbers of a record or summary by path, such as latency/uplink_seconds; lists by cell number,
    unless the cells change from round to round."""
    by_cell = by_cell and values.get("active_cells") is None
    found: dict[str, float] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= scalars(value, f"{path}/", by_cell=by_cell)
        elif by_cell and isinstance(value, list) and key in ("cell_seconds", "submodel_parameters"):
            found |= scalars({f"cell_{cell}": number for cell, number in enumerate(value)}, f"{path}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[path] = value
    return found


def versions() -> dict[str, str]:
    """What the numbers were computed with."""
    try:
        own = metadata.version("histfl")
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        own = "not installed"
    return {"histfl": own, "python": platform.python_version(), "torch": torch.__version__}


def significant(value: float, digits: int = 3) -> str:
    """A number with so many digits, zeros at its end too: 25.0 and 7.80 as 12.5 and 9.31."""
    return f"{value:#.{digits}g}".rstrip(".")


def in_megabytes(value: float) -> str:
    """A number of megabytes as it is shown: of small models' the digits that tell."""
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.3g}"


def shown_goal(value: float, objective: Objective) -> str:
    """A value of the goal, the same way everywhere: 75.8%, or 2.134."""
    return f"{value:.1%}" if objective.aim.is_share else f"{value:.4g}"


def reached(records: Sequence[Record], target: float, objective: Objective) -> Record | None:
    """The round in which the objective's goal first came to `target`, and what it had cost until then."""
    for record in records:
        if objective.reaches(record[objective.goal], target):
            return {key: record[key] for key in ("round", "megabytes_per_client", "simulated_seconds")}
    return None
