"""A run in TensorBoard: every number of its records, its summary and the picture of its last partition."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from plotly.colors import hex_to_rgb, unlabel_rgb

from histfl.errors import missing_extra
from histfl.reports.style import GREY, cell_colours
from histfl.runs.pictures import NOBODY
from histfl.runs.records import Record, scalars
from histfl.runs.run import Run

STRIPE, GAP, WIDTH = 24, 4, 1024


class TensorBoard:
    """Writes `folder` anew from the first round on, so that a resumed run has every round once."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing_extra("--tensorboard", "tensorboard", error) from None
        self._folder, self._make = folder, SummaryWriter

    @cached_property
    def _writer(self) -> Any:
        """Opened by the first round: until then the folder may still turn out to be another run's."""
        for old in self._folder.glob("events.out.tfevents.*"):
            old.unlink()
        return self._make(self._folder)

    def on_round(self, record: Record) -> None:
        for name, value in scalars(record).items():
            self._scalar(name, value, record["round"])
        self._writer.flush()

    def on_end(self, run: Run) -> None:
        last = run.records[-1]["round"]
        for name, value in scalars(run.summary, "summary/").items():
            self._scalar(name, value, last)
        self._writer.add_text("summary", f"```json\n{json.dumps(run.summary, indent=2)}\n```", last)
        self._writer.add_text("config", f"```toml\n{run.config.to_toml()}\n```", last)
        partition = run.pictures["partition"]
        if partition["layers"]:
            self._writer.add_image("partition", partition_image(partition), last, dataformats="HWC")

    def close(self, *, finished: bool) -> None:
        if "_writer" in vars(self):
            self._writer.close()

    def _scalar(self, name: str, value: float, step: int) -> None:
        # Double precision: what TensorBoard shows equals summary.json to the last digit.
        self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)


def partition_image(partition: Record) -> npt.NDArray[np.uint8]:
    """[height, width, 3]: a band a layer, a stripe a unit in the colour of its cell, grey of several, white of none."""
    colours = np.array(
        [(255, 255, 255), _rgb(GREY), *map(_rgb, cell_colours(partition["cells"]))], dtype=np.uint8
    )
    layers = partition["layers"]
    image = np.full((len(layers) * (STRIPE + GAP) - GAP, WIDTH, 3), 255, dtype=np.uint8)
    for row, layer in enumerate(layers):
        owner = np.array(layer["owner"], dtype=int)
        units = owner[np.arange(WIDTH) * len(owner) // WIDTH]
        top = row * (STRIPE + GAP)
        image[top : top + STRIPE] = colours[units - NOBODY]
    return image


def _rgb(colour: str) -> tuple[int, ...]:
    parts = hex_to_rgb(colour) if colour.startswith("#") else unlabel_rgb(colour)
    return tuple(round(part) for part in parts)
