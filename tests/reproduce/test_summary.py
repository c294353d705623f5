"""The page's summary: every claim is counted once, and what matters most comes from the kept numbers."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_artefacts import small_artefact

from histfl.errors import CheckpointError
from histfl.reproduce import TITLES
from histfl.reproduce.artefact import Artefact, Row, Scale
from histfl.reproduce.claims import AS_MUCH, CHEAPER, TOPICS
from histfl.reproduce.commands import left
from histfl.reproduce.fig9 import fig9
from histfl.reproduce.registry import ARTEFACTS, artefacts, chosen_arms, scale_for
from histfl.reproduce.results import COLUMNS, Result, Results
from histfl.reproduce.summary import (
    Answered,
    air_in_words,
    compared,
    counts,
    in_total,
    ratios_in_words,
    rounds_in_words,
    scaling_in_words,
    summary,
)


def nothing_of(artefact: Artefact) -> Results:
    return Results((), tuple(arm.labels for arm in artefact.arms))


def result(arm: str, labels: dict[str, Any], accuracy: float = 0.5, *, finished: bool = True) -> Result:
    columns = {key: np.array([1.0]) for key in COLUMNS} | {"accuracy": np.array([accuracy])}
    return Result(arm, labels, columns, {}, finished, {})


@pytest.mark.parametrize("scale", [Scale(), Scale(quick=True, seeds=(1,))], ids=["paper", "quick"])
def test_every_claim_is_a_case_of_one_of_the_papers_points(scale: Scale) -> None:
    points = [point for some in TOPICS.values() for point in some]
    assert len(set(points)) == len(points)
    found = set()
    for artefact in artefacts(ARTEFACTS, scale):
        for claim in Answered(artefact, nothing_of(artefact), artefact.rows(nothing_of(artefact))).claims:
            assert claim.point in points, claim.what
            found.add(claim.point)
    assert found == set(points) or scale.quick


def test_claims_are_counted_once_by_topic(tmp_path: Path) -> None:
    artefact = small_artefact()
    rows = [
        Row("a", "lower", "1", "yes", point=CHEAPER),
        Row("b", "lower", "1", "in part", point=CHEAPER, note="from 0 dB on"),
        Row("c", "1.5", "1", "no", point=AS_MUCH, note="one seed"),
        Row("d", "1.5", "not yet run", "not yet run", point=AS_MUCH),
        Row("beside", "lower", "1", "yes", beside=True),
        Row("told", "no claim", "1"),
    ]
    again = replace(artefact, name="table1-code", again=True)
    nothing = nothing_of(artefact)
    answers = [Answered(artefact, nothing, rows), Answered(again, nothing, rows)]
    text = summary(answers, tmp_path)
    said = "Of 4 claims of the paper 1 hold, 1 in part; 1 does not hold; 1 not yet run."
    assert f"{said} Of the verdicts 1 rest on one seed." in text
    assert in_total(rows[2:3]).startswith("Of 1 claim of the paper 0 hold; 1 does not hold.")
    assert "public code puts 4 of them to the test again: 1 hold." in text
    assert "| HIST costs less than HFedAvg at equal accuracy | 1 | 0 | 1 | 0 | 1 | 1 |" in text
    assert f"{CHEAPER} in 1 of 2, in part in 1; {AS_MUCH} in 0 of 1 (1 not yet run)." in text
    assert sum(counts(answers[0].claims)) == 4


@pytest.mark.parametrize("name", TITLES)
def test_the_commands_of_what_is_left_run_that_alone(name: str) -> None:
    artefact = ARTEFACTS[name](Scale())
    for keep in (
        lambda i: i % 3 == 0,
        lambda i: i < 7,
        lambda i: "N4" in artefact.arms[i].name,
        lambda i: True,
    ):
        done = [arm for i, arm in enumerate(artefact.arms) if keep(i)]
        results = Results(tuple(result(arm.name, dict(arm.labels)) for arm in done), ())
        missing, commands = left(artefact, results)
        found = []
        for command in commands:
            first, second, asked, *options = shlex.split(command)
            assert (first, second, asked) == ("histfl", "reproduce", name)
            given = dict(zip(options[::2], options[1::2], strict=True))
            some = artefacts([name], scale_for(seeds=given["--seeds"]))
            found += [arm.name for arm in chosen_arms(some, given.get("--only"))]
        assert sorted(set(found)) == sorted({arm.name for arm in artefact.arms} - {arm.name for arm in done})
        assert missing == len(set(found))


def test_a_run_that_goes_on_is_left() -> None:
    artefact = small_artefact()
    runs = [result(arm.name, dict(arm.labels), finished=arm.name.startswith("hist")) for arm in artefact.arms]
    runs[0].about.update({"device": "cuda", "config": {"training": {"precision": "bf16"}}})  # type: ignore[attr-defined]
    only = "--only '*hfedavg*' --seeds 1 --device cuda --precision bf16"
    assert left(artefact, Results(tuple(runs), ())) == (1, [f"histfl reproduce fig4 {only}"])


def trials(folder: Path, rounds: dict[tuple[str, float], list[int | None]]) -> Path:
    """A file of learning rates beside the folder of a reproduction, which is returned."""
    runs = [
        {
            "learning_rate": rate,
            "summary": {
                "method": method,
                "seed": seed,
                "to_target": {
                    "0.8": taken
                    and {"round": taken, "megabytes_per_client": 2.0 * taken, "simulated_seconds": 0.0}
                },
            },
        }
        for (method, rate), several in rounds.items()
        for seed, taken in enumerate(several, 1)
    ]
    written = {"machine": "a machine", "commit": "abc", "runs": runs}
    (folder / "learning-rates.json").write_text(json.dumps(written))
    return folder / "reproduction"


def test_rounds_are_compared_at_the_best_rate_of_each(tmp_path: Path) -> None:
    kept = trials(
        tmp_path,
        {("hist", 0.1): [30, 20], ("hist", 0.2): [9, None]}
        | {("hfedavg", 0.1): [20, 20], ("hfedavg", 0.2): [10, 16]},
    )
    artefact = ARTEFACTS["fig5"](Scale())
    costs = {"hist": 60, "hfedavg": 40}
    runs = [
        replace(
            result(method, {"method": method, "split": "shards", "cells": 4, "seed": 1}),
            to_target={"0.8": {"round": rounds, "megabytes_per_client": float(rounds)}},
        )
        for method, rounds in costs.items()
    ]
    one, best = compared({artefact.name: Results(tuple(runs), ())}, kept)
    assert (one.rates, best.rates) == ({"hist": 0.01, "hfedavg": 0.01}, {"hist": 0.1, "hfedavg": 0.2})
    assert [spread.mean for spread in one.times] == [1.5, 1.5]
    assert best.times[0].mean == pytest.approx((30 / 10 + 20 / 16) / 2)
    assert "the best of 0.1, 0.2: `" in best.source
    assert best.source.endswith("learning-rates.json`, seeds 1, 2, commit abc, a machine")
    said = rounds_in_words([one, best])
    assert "HIST takes 1.5 times (MLP) HFedAvg's rounds at learning rate 0.01" in said
    assert "2.12 times (MLP) at the best rate of each" in said
    assert rounds_in_words([one]) == ""


def test_damaged_trials_are_named(tmp_path: Path) -> None:
    kept = trials(tmp_path, {("hist", 0.1): [1]})
    for text in ("[", "[]", '{"machine": 1}', '{"machine": "a", "commit": "b", "runs": [{}]}'):
        (tmp_path / "learning-rates.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"learning-rates\.json is damaged .*; remove it"):
            list(compared({}, kept))


def test_where_noise_breaks_training_is_told_from_the_accuracies() -> None:
    accuracy = {20.0: 0.80, 10.0: 0.80, 0.0: 0.79, -10.0: 0.75, -20.0: 0.5}
    artefact = fig9(Scale(seeds=(1,)))
    runs = tuple(
        result(arm.name, dict(arm.labels), accuracy.get(arm.labels.get("snr_db", 20.0), 0))
        if arm.labels["uplink"] == "aircomp"
        else result(arm.name, dict(arm.labels), 0.8)
        for arm in artefact.arms
    )
    asked = tuple(arm.labels for arm in artefact.arms)
    said = air_in_words(Results(runs, asked))
    assert "within 2 points of error-free aggregation's 80.0% from 0 dB on" in said
    assert "loses 5.0 points at -10 dB and 30.0 points at -20 dB" in said
    assert air_in_words(Results(runs[:5], asked)) == ""


def test_scaled_activations_are_told_once_they_have_run() -> None:
    artefact = ARTEFACTS["table1-scale-mlp"](Scale(seeds=(1,)))
    taken = {None: 65, 0.5: 40, 1.0: 16}
    runs = [
        replace(
            result(arm.name, dict(arm.labels)),
            to_target={
                "0.8": {"round": taken[arm.labels.get("scale")] if arm.labels["method"] == "hist" else 36}
            },
        )
        for arm in artefact.arms
    ]
    asked = tuple(arm.labels for arm in artefact.arms)
    said = scaling_in_words({artefact.name: Results(tuple(runs), asked)})
    assert said.startswith("the MLP takes 65 unscaled, 40 at power 0.5, 16 at power 1, 36 with HFedAvg")
    assert scaling_in_words({artefact.name: Results(tuple(runs[:2]), asked)}) == ""
    without_half = [run for run in runs if run.labels.get("scale") != 0.5]
    said = scaling_in_words({artefact.name: Results(tuple(without_half), asked)})
    assert said.startswith("the MLP takes 65 unscaled, 16 at power 1, 36 with HFedAvg")


def test_scaled_ratios_are_told_of_the_powers_that_have_run() -> None:
    artefact = ARTEFACTS["table1-scale"](Scale(seeds=(1,)))
    half, one = (f"cost of HFedAvg over HIST at power {power}'s to 80%" for power in ("0.5", "1"))
    rows = [
        Row(f"N = 4: {half}", "3.24", "2.8", "yes", point=AS_MUCH, beside=True),
        Row(f"N = 2: {half}", "1.79", "not yet run", "not yet run", point=AS_MUCH, beside=True),
        Row(f"N = 4: {one}", "3.24", "4.0 (3.9 to 4.2)", "of the means alone", point=AS_MUCH, beside=True),
        Row(f"N = 2: {one}", "1.79", "2.1 (2.0 to 2.2)", "yes", point=AS_MUCH, beside=True),
    ]
    (said,) = ratios_in_words([Answered(artefact, nothing_of(artefact), rows)])
    assert said == (
        f"LeNet-5's {one} is 4.0 (paper 3.24), 2.1 (paper 1.79): within 25 % of the paper's in 1 of 2, "
        "of the means alone in 1"
    )
