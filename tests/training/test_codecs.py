"""Codecs: given by name, the same on every engine, counted in bytes and seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from commands import SMALL, Answer

from histfl.arrays import Ints
from histfl.partition import State
from histfl.seeds import random_uniform
from histfl.training.codecs import CODECS, Plain


@dataclass(frozen=True)
class Dithered:
    """Updates rounded to whole multiples of `step`, up or down by a client's own chance; a quarter of the bits."""

    step: float = 0.01

    def update_bits(self, sizes: Sequence[int], plain: float) -> float:
        return sum(sizes) * plain / 4

    keeps: ClassVar[bool] = False

    def decoded(
        self, start: State, finals: State, clients: Ints, key: int, kept: State
    ) -> tuple[State, State]:
        chance = random_uniform(key, torch.from_numpy(np.asarray(clients)))
        found = {}
        for name, final in finals.items():
            shift = chance.to(final.dtype).view(-1, *(1,) * (final.dim() - 1))
            found[name] = start[name] + torch.floor((final - start[name]) / self.step + shift) * self.step
        return found, kept


@pytest.fixture(autouse=True)
def dithered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODECS, "dithered", Dithered)


def records(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text("utf-8").splitlines()]


def test_plain_updates_arrive_as_they_are() -> None:
    finals = {"x": torch.ones(2, 3)}
    assert Plain().decoded({"x": torch.zeros(3)}, finals, np.array([4, 7]), 1, {}) == (finals, {})
    assert Plain().update_bits([2, 3], 32.0) == 160.0


@pytest.mark.parametrize("uplink", ["fdma", "ideal"])
def test_a_registered_codec_runs_from_the_command_line_alike_on_all_engines(
    histfl_command: Callable[..., Answer], tmp_path: Path, uplink: str
) -> None:
    chosen = ("--set", "codec.name=dithered", "--set", "codec.step=0.003", "--set", f"uplink.name={uplink}")
    lines = {}
    for name, options in {
        "plain": (),
        "vectorised": (*chosen, "--engine", "vectorised"),
        "reference": (*chosen, "--engine", "reference"),
    }.items():
        settings = () if name != "plain" else ("--set", f"uplink.name={uplink}")
        answer = histfl_command("run", *SMALL, *options, *settings, "--json", "--out", tmp_path / name)
        assert answer.code == 0, answer.err
        lines[name] = records(tmp_path / name)
    for mine, theirs in zip(lines["vectorised"], lines["reference"], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    first, plain = lines["vectorised"][0], lines["plain"][0]
    assert first["loss"] != plain["loss"]
    assert first["megabytes_per_client"] == pytest.approx(plain["megabytes_per_client"] / 4)
    if uplink == "fdma":
        mine, theirs = (record["latency"]["uplink_seconds"] for record in (first, plain))
        assert mine == pytest.approx(theirs / 4)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("codec.name=dithred", "dithered"),
        ("codec.stepp=0.1", "unknown key codec.stepp"),
        ("codec.name=3", "codec.name"),
    ],
)
def test_a_bad_choice_is_one_line(
    histfl_command: Callable[..., Answer], tmp_path: Path, setting: str, said: str
) -> None:
    answer = histfl_command("run", *SMALL, "--set", setting, "--out", tmp_path / "run")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert said in answer.err
