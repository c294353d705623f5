"""Settings that a run does not read are told, and those that it reads are not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Answer
from small_training import train

from histfl.runs.build import prepare
from histfl.runs.execute import execute
from histfl.runs.loading import load_config
from histfl.runs.unread import read_with, unread
from histfl.settings import GIVEN

BASE = (
    *("model.hidden=12", "network.profile=uniform", "network.cells=2", "network.clients=4"),
    *("training.rounds=1", "training.edge_rounds=2", "training.local_steps=2", "training.batch_size=8"),
    *("training.learning_rate=0.1", "data.test_samples=50"),
)
ANOTHER = {
    "data.cell_concentration": "0.1",
    "data.client_concentration": "0.1",
    "data.strip": '["headers"]',
    "data.max_length": "64",
    "data.tokenizer": "gpt2",
    "method.shared": "0.5",
    "method.cap": "1.2",
    "method.roll": "5",
    "method.apart": "true",
    "method.scale": "0.5",
    "uplink.bandwidth_hz": "1e6",
    "uplink.antennas": "3",
    "uplink.channel": "path-loss",
    "uplink.k_factor_db": "0.0",
    "uplink.double_count_clients": "true",
    "uplink.noise_scales_with_band": "true",
    "uplink.paper_power": "true",
    "uplink.normalise": "false",
    "uplink.signal": "simulated",
    "network.snr_db": "5.0",
    "network.transmit_power_w": "0.7",
    "network.operations_per_cycle": "1.0",
}
WITHOUT = {"data.split": "iid", "data.name": "fashion-mnist-mini", "uplink.name": "ideal"}
WITHOUT |= {"method.name": "hist", "method.sizes": "uniform", "uplink.channel": "rayleigh"}
WITHOUT |= {"network.cycles_per_step": "1e6"}
BESIDE = {
    "method.cap": ("network.profile=paper",),  # uniform cells have equal sizes whatever the cap
    "method.roll": ("training.rounds=2",),  # windows move after the first
}
CASES = [
    (choice, values, key)
    for choice, values, keys in read_with()
    for key in keys
    # The registered optimisers read all of theirs, and of a schedule one round shows nothing: see tests/engines.
    if choice not in ("training.optimiser", "training.schedule")
]


@cache
def records(*settings: str) -> list[dict[str, Any]]:
    return execute(prepare(load_config("quickstart", settings), device="cpu")).records


def told(*settings: str) -> list[str]:
    return [reason.partition(" = ")[0] for reason in unread([load_config("quickstart", settings)])]


@pytest.mark.parametrize(("choice", "values", "key"), CASES)
def test_what_is_told_changes_nothing_and_the_rest_does(choice: str, values: list[str], key: str) -> None:
    change = f"{key}={ANOTHER[key]}"
    others = ["hfedavg" if key == "method.scale" else WITHOUT[choice]]
    if choice == "uplink.name":
        others += [name for name in ("fdma", "tdma", "aircomp") if name not in values]
    for value in others:
        base = (*BASE, *BESIDE.get(key, ()), f"{choice}={value}")
        assert told(*base, change) == [key]
        assert records(*base, change) == records(*base)
    if choice == "data.name":
        return  # the texts are large
    for value in (name for name in values if name != GIVEN):
        base = (*BASE, *BESIDE.get(key, ()), f"{choice}={value}")
        assert told(*base, change) == []
        assert records(*base, change) != records(*base)


def test_a_setting_that_one_of_the_runs_reads_is_fine() -> None:
    configs = [
        load_config("quickstart", ["method.shared=0.5", f"method.name={m}"]) for m in ("hist", "overlap")
    ]
    assert unread(configs) == []
    assert unread(configs[:1]) == ["method.shared = 0.5 is not read with method.name = 'hist'"]


def test_the_command_line_warns(histfl_command: Callable[..., Answer], tmp_path: Path) -> None:
    answer = histfl_command("run", *SMALL, "--set", "method.shared=0.5", "--out", tmp_path / "run", "--json")
    assert answer.code == 0
    assert "histfl: method.shared = 0.5 is not read with method.name = 'hist'" in answer.err


def test_python_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train(shared=0.5)
    assert "train(): method.shared = 0.5 is not read with method.name = 'hist'" in caplog.text
