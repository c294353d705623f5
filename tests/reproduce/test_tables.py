"""The rows of Tables I and II, from results written by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from histfl.reproduce.artefact import Artefact, Row, Scale
from histfl.reproduce.files import kept_results
from histfl.reproduce.results import COLUMNS, Result, Results
from histfl.reproduce.table1_table2 import table1, table1_scale, table2

SETTING = "fully non-i.i.d., N = 4"


def result(
    method: str,
    reached: dict[str, float],
    megabytes_a_round: float,
    *,
    accuracy: tuple[float, ...] = (0.0,),
    finished: bool = True,
    **labels: Any,
) -> Result:
    """A run that came to each target after so many rounds; math.inf: never."""
    targets = {
        target: {"round": rounds, "megabytes_per_client": rounds * megabytes_a_round}
        if np.isfinite(rounds)
        else None
        for target, rounds in reached.items()
    }
    labels = {"method": method, "split": "shards", "cells": 4, "seed": 1, **labels}
    columns = {name: np.zeros(len(accuracy)) for name in COLUMNS} | {"accuracy": np.array(accuracy)}
    return Result(method, labels, columns, targets, finished, {})


def answered(artefact: Artefact, *results: Result) -> dict[str, Row]:
    found = artefact.rows(Results(results, tuple(arm.labels for arm in artefact.arms)))
    return {row.what: row for row in found}


def test_the_last_cells_clients_send_what_the_mean_over_all_cells_hides() -> None:
    rows = answered(
        table1(Scale(seeds=(1,))),
        result("hist", {"0.7": 10, "0.8": 100}, 1.0),
        result("hfedavg", {"0.7": 5, "0.8": 50}, 4.0),
        result("hfedavg", {"0.7": 20, "0.8": 90}, 1.0, active_cells=[3]),  # 4 MB of the senders, in a quarter
    )
    whole = rows[f"{SETTING}: cost of HFedAvg over HIST's to 80%"]
    assert whole.values["80%"] == pytest.approx(2.0)
    assert (whole.paper, whole.verdict) == ("3.24", "no")
    assert "HIST takes 2.00 times the rounds of HFedAvg, in the paper 1.10 times" in whole.why
    last = rows[f"{SETTING}: cost of HFedAvg of the last cell alone over HIST's to 80%"]
    assert last.values["80%"] == pytest.approx(3.6)
    assert (last.paper, last.verdict) == ("3.24", "yes")
    rounds = rows[f"{SETTING}: HFedAvg of the last cell alone, global rounds to 70% and 80%"]
    assert (rounds.paper, rounds.ours) == ("12 and 146", "20 and 90")


def test_where_a_target_is_out_of_reach_the_highest_common_one_is_told() -> None:
    never = float("inf")
    rows = answered(
        table2(Scale(seeds=(1,))),
        result("hist", {"0.5": 10, "0.55": 16, "0.6": 30, "0.75": never, "0.8": never}, 1.0),
        result(
            "hfedavg",
            {"0.5": 6, "0.55": 10, "0.6": never, "0.75": never, "0.8": never},
            4.0,
            accuracy=(0.5, 0.58, 0.56),
        ),
    )
    highest = rows[f"{SETTING}: highest accuracy in the rounds that were run"]
    assert highest.values == {"HIST": 0.0, "HFedAvg": 0.58}
    last = rows[f"{SETTING}: accuracy at the end, the mean of the last 3 rounds"]
    assert last.values == {"HIST": 0.0, "HFedAvg": pytest.approx((0.5 + 0.58 + 0.56) / 3)}
    told = rows[f"{SETTING}: cost of HFedAvg over HIST's to the highest accuracy that both reach"]
    assert (told.paper, told.ours, told.verdict) == ("2.83 to 80%", "2.500 to 55%", "")
    assert rows[f"{SETTING}: HIST, global rounds to 75% and 80%"].ours == "not reached and not reached"
    lost = rows[f"{SETTING}: cost of HFedAvg over HIST's to 80%"]
    assert (lost.ours, lost.verdict) == ("not reached", "no")
    assert lost.why.startswith("Not every run of both comes to 80%. A client has two labels")


def test_an_advantage_needs_an_end_of_both() -> None:
    what = "fully non-i.i.d.: HIST's advantage to 80% as N grows"
    reached, never = {"0.7": 10, "0.8": 100}, {"0.7": 10, "0.8": float("inf")}
    for lost in ("hist", "hfedavg"):
        rows = answered(
            table1(Scale(seeds=(1,))),
            *(result(method, reached, 1.0, cells=2) for method in ("hist", "hfedavg")),
            *(result(method, never if method == lost else reached, 1.0) for method in ("hist", "hfedavg")),
        )
        assert (rows[what].verdict, rows[what].why) == ("no", "Not every run of both comes to 80%.")


def test_what_the_paper_does_not_have_stands_beside_it() -> None:
    rows = answered(table1(Scale(seeds=(1,))))
    assert {row.beside for what, row in rows.items() if "last cell alone" in what} == {True}
    assert {row.beside for what, row in rows.items() if "last cell alone" not in what} == {False}


def test_a_run_that_goes_on_is_not_judged() -> None:
    rows = answered(
        table1(Scale(seeds=(1,))),
        result("hist", {"0.7": 10, "0.8": 100}, 1.0),
        result("hfedavg", {"0.7": 5, "0.8": float("inf")}, 4.0, finished=False),
    )
    open_ = rows[f"{SETTING}: cost of HFedAvg over HIST's to 80%"]
    assert (open_.ours, open_.verdict) == ("unfinished", "not yet run")


def test_scaled_activations_stand_beside_the_papers_ratios() -> None:
    results = [
        result("hist", {"0.7": 10, "0.8": 100}, 1.0),
        result("hist", {"0.7": 10, "0.8": 80}, 1.0, scale=0.5),
        result("hist", {"0.7": 10, "0.8": 40}, 1.0, scale=1.0),
        result("hfedavg", {"0.7": 5, "0.8": 50}, 4.0),
    ]
    rows = answered(table1_scale(Scale(seeds=(1,))), *results)
    for name, ratio, verdict in (
        ("HIST", 2.0, "no"),
        ("HIST at power 0.5", 2.5, "yes"),
        ("HIST at power 1", 5.0, "no"),
    ):
        row = rows[f"{SETTING}: cost of HFedAvg over {name}'s to 80%"]
        assert (row.values["80%"], row.paper, row.verdict) == (pytest.approx(ratio), "3.24", verdict)
    assert all(row.beside for row in rows.values())


def test_the_results_of_table_one_serve_the_scaled_one(tmp_path: Path) -> None:
    kept = Path(__file__).parents[2] / "results" / "reproduction"
    scaled, table = table1_scale(Scale()), table1(Scale())
    found, stale = kept_results(scaled, kept)
    assert {each.arm for each in found.all} >= {
        arm.name for arm in table.arms if "active_cells" not in arm.labels
    }
    assert stale == []
    assert kept_results(replace(scaled, shares=""), tmp_path)[0].all == ()
