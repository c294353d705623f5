"""Sizes in training: what a run records of them, and that they keep their promise."""

from __future__ import annotations

import numpy as np
import pytest

from histfl.planning.request import PlanRequest, make_plan
from histfl.runs.build import build, load_ingredients
from histfl.runs.execute import execute
from histfl.runs.store import Record

SETTINGS = (
    "model.hidden=40",
    "network.clients=12",
    "training.rounds=2",
    "training.edge_rounds=2",
    "training.local_steps=1",
    "training.batch_size=8",
)


def run(*settings: str) -> list[Record]:
    config = PlanRequest("quickstart", settings=(*SETTINGS, *settings)).config()
    return execute(build(config, load_ingredients(config), device="cpu", engine="reference")).records


@pytest.mark.parametrize("participants", ['"all"', "2"])
@pytest.mark.parametrize("uplink", ["fdma", "tdma", "aircomp"])
def test_optimised_sizes_keep_their_promise_and_are_never_slower(uplink: str, participants: str) -> None:
    shared = (f"uplink.name={uplink}", f"network.participants={participants}")
    records = {sizes: run(*shared, f"method.sizes={sizes}") for sizes in ("uniform", "optimised")}
    for best, equal in zip(records["optimised"], records["uniform"], strict=True):
        units = np.array(best["units"])
        assert units.sum(axis=0).tolist() == [40]
        assert (best["cap"], equal["cap"]) == (1.5, None)
        assert units.max() <= best["cap"] * 40 / 4
        assert best["submodel_parameters"] == (10 + 795 * units[:, 0]).tolist()
        for record in (best, equal):
            assert record["latency"]["predicted_seconds"] == pytest.approx(record["latency"]["seconds"])
        assert best["latency"]["seconds"] <= equal["latency"]["seconds"]
    if (uplink, participants) != ("aircomp", "2"):  # there, whole slots leave nothing to gain
        assert records["optimised"][-1]["simulated_seconds"] < records["uniform"][-1]["simulated_seconds"]
    plan = make_plan(PlanRequest("quickstart", settings=(*SETTINGS, *shared), draws=2)).plan
    link = "aircomp" if uplink == "aircomp" else "oma"
    for sizes, each in records.items():  # a plan foretells the run's rounds
        seconds = np.mean([record["latency"]["seconds"] for record in each])
        assert plan.seconds_per_round[f"{link}.{sizes}"] == pytest.approx(seconds)


def test_sizes_follow_the_channels_of_each_round() -> None:
    first, second = (record["units"] for record in run("method.sizes=optimised", "model.hidden=400"))
    assert first != second
