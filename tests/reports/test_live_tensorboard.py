"""`--tensorboard`, read back with TensorBoard's own reader."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import SMALL
from runs_for_tests import made_up_rounds

from histfl.reports.live import Telling
from histfl.reports.tensorboard import TensorBoard, partition_image
from histfl.runs.loading import load_config
from histfl.runs.records import Record, scalars
from histfl.runs.store import RunFolder


@pytest.fixture
def events() -> Callable[[Path], Any]:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(folder: Path) -> Any:
        return EventAccumulator(str(folder), size_guidance={"tensors": 0, "images": 0}).Reload()

    return read


def history(accumulator: Any, tag: str) -> list[tuple[int, float]]:
    from tensorboard.util import tensor_util

    return [(e.step, tensor_util.make_ndarray(e.tensor_proto).item()) for e in accumulator.Tensors(tag)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_every_number_of_the_records_and_the_summary(
    tmp_path: Path, histfl_command: Callable[..., Any], events: Callable[[Path], Any]
) -> None:
    out = tmp_path / "run"
    first = histfl_command("run", *SMALL, "--set", "training.rounds=2", "--out", out)  # not followed
    again = histfl_command("run", *SMALL, "--out", out, "--resume", "--tensorboard", "--json")
    assert (first.code, again.code) == (0, 0)
    read = events(out / "tensorboard")
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    for tag in scalars(records[0]):
        assert history(read, tag) == [(record["round"], scalars(record)[tag]) for record in records]
    summary = scalars(json.loads((out / "summary.json").read_text()), "summary/")
    assert {tag: history(read, tag) for tag in summary} == {
        tag: [(3, value)] for tag, value in summary.items()
    }
    from PIL import Image

    (picture,) = read.Images("partition") if "partition" in read.Tags()["images"] else [None]
    assert picture is not None
    assert Image.open(io.BytesIO(picture.encoded_image_string)).size == (1024, 24)


def test_a_tracker_that_fails_is_warned_of_once_and_the_run_goes_on(
    tmp_path: Path, histfl_command: Callable[..., Any]
) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    out = tmp_path / "run"
    out.mkdir()
    (out / "tensorboard").write_text("a file where the folder should be")
    answer = histfl_command("run", *SMALL, "--out", out, "--tensorboard", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["rounds"] == 3
    assert answer.err.count("histfl: TensorBoard failed (FileExistsError: ") == 1
    assert "--resume tells it what it missed" in answer.err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_followers_beside_a_failing_one_hear_everything(
    tmp_path: Path, events: Callable[[Path], Any]
) -> None:
    records = made_up_rounds(load_config("quickstart"), rounds=3)
    warned: list[str] = []
    (tmp_path / "file").write_text("")
    broken, whole = TensorBoard(tmp_path / "file"), TensorBoard(tmp_path / "tensorboard")
    told = Telling([broken, whole], RunFolder(tmp_path), warned.append)
    for record in records:
        told.on_round(record)
    told.close(finished=True)
    assert len(warned) == 1
    assert [step for step, _ in history(events(tmp_path / "tensorboard"), "accuracy")] == [1, 2, 3]


class Interrupting(TensorBoard):
    def on_round(self, record: Record) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_while_a_follower_is_told_ends_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    warned: list[str] = []
    told = Telling([Interrupting(tmp_path)], RunFolder(tmp_path), warned.append)
    with pytest.raises(KeyboardInterrupt):
        told.on_round({"round": 1})
    assert warned == []


def test_the_picture_has_a_stripe_of_its_cells_colour_for_each_unit() -> None:
    layer = {"name": "fc", "units": 4, "owner": [0, 1, -1, 1]}
    image = partition_image({"round": 1, "cells": 2, "groups": 1, "layers": [layer]})
    shown = ["#{:02X}{:02X}{:02X}".format(*image[0, column]) for column in (0, 300, 600, 1000)]
    assert shown == ["#404286", "#FDE725", "#8A8A8A", "#FDE725"]
    assert image.shape == (24, 1024, 3)
    assert image.dtype == np.uint8


def test_without_the_extra_the_install_line_is_given(
    tmp_path: Path, histfl_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    answer = histfl_command("run", *SMALL, "--out", tmp_path / "run", "--tensorboard")
    assert answer.code == 2
    assert "pip install 'histfl[tensorboard]'" in answer.err
    assert not (tmp_path / "run").exists()
