"""What a reproduction is made of: arms to run and, from their results, rows, verdicts and curves; what several share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from histfl.devices import Precision
from histfl.errors import UsageError
from histfl.reports.plots import Axis, Line, Plot
from histfl.reports.style import LINE_COLOURS, line_style
from histfl.reproduce import TITLES
from histfl.reproduce.results import Repeats, Results, Spread
from histfl.runs.arms import Arm
from histfl.runs.config import Config
from histfl.settings import checked
from histfl.training import methods
from histfl.wireless.clock import CYCLES_PER_STEP

Verdict = Literal["yes", "no", "not yet run", ""]
SEEDS = (1, 2, 3)

# Labels of an arm: the setting that each one is, and how it reads in the arm's name.
LABELS = {
    "method": ("method.name", "{}"),
    "sizes": ("method.sizes", "{}"),
    "uplink": ("uplink.name", "{}"),
    "cells": ("network.cells", "N{}"),
    "active_cells": ("network.active_cells", "cell{0[0]}-alone"),
    "alpha": ("model.alpha", "alpha{:g}"),
    "clients": ("network.clients", "clients{}"),
    "participants": ("network.participants", "participants-{}"),
    "edge_rounds": ("training.edge_rounds", "E{}"),
    "local_steps": ("training.local_steps", "H{}"),
    "snr_db": ("network.snr_db", "snr{:g}dB"),
    "split": ("data.split", "{}"),
    "seed": ("training.seed", "seed{}"),
}


@dataclass(frozen=True)
class Scale:
    """At which size an artefact is run: the paper's, or a `quick` one that fits two cores and two minutes.

    `here` names the data sets and pretrained models that this machine has; quick arms fall back on the embedded images. `precision`
    is that of products on a GPU, for all arms alike.
    """

    quick: bool = False
    seeds: tuple[int, ...] = SEEDS
    here: frozenset[str] = frozenset()
    precision: Precision = "float32"


@dataclass(frozen=True)
class Choice:
    """A setting that the paper leaves open, or that we set otherwise, with the reason.

    `finding` names what trials of it showed, which stands beside the kept results.
    """

    what: str
    reason: str = ""
    finding: str = ""

    def in_words(self, findings: Mapping[str, str]) -> str:
        why = "; ".join(filter(None, (self.reason, findings.get(self.finding))))
        return f"{self.what}: {why}" if why else self.what


@dataclass(frozen=True)
class Row:
    """One line of the answer: what the paper says of `what`, what came out, and whether they agree.

    A row without a claim has the verdict "". `why` tells of a claim that does not hold what was measured, and of
    one that holds what to be wary of; `values` has the numbers behind the words, unrounded. `beside` marks what
    the paper does not have: it is judged by the paper's words or number, but not counted among its claims.
    """

    what: str
    paper: str
    ours: str
    verdict: Verdict = ""
    why: str = ""
    values: Mapping[str, float | None] = field(default_factory=dict)
    beside: bool = False


@dataclass(frozen=True)
class Artefact:
    """A figure or table of the paper at one scale.

    `paper` is what the paper says of it; `smaller` what the quick scale changes ("" at the paper's size);
    `rows` and `panels` read the results that are there, whatever is missing.
    """

    name: str
    paper: str
    choices: tuple[Choice, ...]
    arms: tuple[Arm, ...]
    rows: Callable[[Results], Sequence[Row]]
    panels: Callable[[Results], Sequence[Plot]]
    smaller: str = ""

    @property
    def title(self) -> str:
        return TITLES[self.name]

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise UsageError(f"{self.name} has two arms of one name; give the seeds and settings once each")


def arm(settings: Mapping[str, Any], **labels: Any) -> Arm:
    """The arm with `settings` (by `section.key`) and `labels` (of LABELS), which are settings too; computing is the
    paper's."""
    keyed = {
        "network.cycles_per_step": CYCLES_PER_STEP,
        **settings,
        **{LABELS[label][0]: value for label, value in labels.items()},
    }
    tables: dict[str, dict[str, Any]] = {}
    for path, value in keyed.items():
        section, _, key = path.partition(".")
        tables.setdefault(section, {})[key] = list(value) if isinstance(value, tuple) else value
    name = "-".join(LABELS[label][1].format(value) for label, value in labels.items())
    return Arm(name, checked(Config, tables, f"arm {name}"), labels)


def panel(title: str, x: str, y: str, lines: Iterable[Line | None], *, log_y: bool = False) -> Plot:
    """One plot of a figure, of the lines that there are."""
    scale: Literal["log", "linear"] = "log" if log_y else "linear"
    return Plot(title, f"{y} against {x}.", Axis(x), Axis(y, scale=scale), tuple(filter(None, lines)))


def learning_curve(
    repeats: Repeats, name: str, across: str, *, colour: int, dashed: bool = False
) -> Line | None:
    """Test accuracy against the column `across`, the mean over the seeds; nothing before the first run."""
    if not repeats.common_rounds:
        return None
    x, accuracy = repeats.column(across).mean(axis=0), repeats.column("accuracy")
    band = accuracy.min(axis=0), accuracy.max(axis=0)
    return Line(name, x, accuracy.mean(axis=0), width=2, band=band, **_look(colour, dashed))


def curve_of(
    x: Sequence[float], spreads: Iterable[Spread], name: str, *, colour: int, dashed: bool = False
) -> Line | None:
    """A spread at each x; points that no seed reached are left out."""
    pairs = ((at, spread) for at, spread in zip(x, spreads, strict=True) if spread.number is not None)
    known = {at: [value for value in spread.values if value is not None] for at, spread in pairs}
    if not known:
        return None
    values = list(known.values())
    mean, low, high = (np.array([read(each) for each in values], float) for read in (np.mean, np.min, np.max))
    places, look = np.array(list(known), dtype=np.float64), _look(colour, dashed)
    return Line(name, places, mean, width=2, band=(low, high), markers=True, **look)


def _look(colour: int, dashed: bool) -> dict[str, Any]:
    return line_style(colour % len(LINE_COLOURS) + len(LINE_COLOURS) * dashed)


# What several artefacts share.
LOAD, LOAD_LABEL = "megabytes_per_client", "MB sent by a client"
Setting = tuple[str, int]  # split, cells

METHODS = {name: methods.METHODS[name].title for name in ("hist", "hfedavg")}  # those of the paper
SPLITS = {"shards": "fully non-i.i.d.", "cell-iid": "cell i.i.d., client non-i.i.d."}

# HIST Sec. VI-B: the two-layer network on Fashion-MNIST, 60 clients.
MLP: dict[str, Any] = {
    "model.name": "mlp",
    "model.hidden": 300,
    "data.name": "fashion-mnist",
    "network.clients": 60,
    "training.edge_rounds": 5,
    "training.local_steps": 20,
    "training.batch_size": 50,
    "training.learning_rate": 0.01,
}
OPTIMISER = Choice(
    "plain SGD, batch 50, learning rate 0.01, no momentum, inputs normalised by (0.5, 0.5), no dropout",
    "the paper names none of them; these are the settings of the authors' public code, less its dropout, which "
    "the paper does not mention",
)
HFEDAVG_LAST = "HFedAvg of the last cell alone"
LAST_CELL = Choice(
    f"{HFEDAVG_LAST} is run beside HFedAvg, a client's load counted as if all cells sent",
    "the first version of the authors' public code empties the list of the edges' models for every cell, so that the "
    "cloud takes over the last cell's model alone; a later version has that mended. Whether the paper's numbers come from "
    "the first cannot be known, but they can be compared",
)
BYTES = Choice(
    "a megabyte is 2^20 bytes, 4 bytes a parameter, client to edge alone",
    "the paper says parameters transmitted per client and gives the model as 0.91 MB, which is 238,510 x 4 / 2^20",
)


def of(results: Results, method: str, setting: Setting, **more: Any) -> Repeats:
    """The runs of a method, with all cells and the artefact's own alpha but where `more` labels say otherwise."""
    labels = {"active_cells": None, "alpha": None, **more}
    return results.of(method=method, split=setting[0], cells=setting[1], **labels)


def quick_images(scale: Scale) -> str:
    """Fashion-MNIST where this machine has it, else the images inside the package."""
    return "fashion-mnist" if "fashion-mnist" in scale.here else "fashion-mnist-mini"


def quick_mlp(scale: Scale) -> dict[str, Any]:
    """The quick scale's network: 20 clients and a larger step, so that few rounds tell the methods apart."""
    return {**MLP, "data.name": quick_images(scale), "network.clients": 20, "training.learning_rate": 0.05}


def quick_words(scale: Scale, *further: str) -> str:
    """What the quick scale makes smaller, in a sentence."""
    images = "Fashion-MNIST" if quick_images(scale) == "fashion-mnist" else "14,000 embedded images"
    return ", ".join((images, "20 clients in place of 60", "learning rate 0.05", *further)) + "."
