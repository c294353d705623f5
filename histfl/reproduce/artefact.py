"""What a reproduction is made of: arms to run and, from their results, rows, verdicts and curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from histfl.errors import UsageError
from histfl.network.network import Floats
from histfl.reproduce.names import TITLES
from histfl.reproduce.results import Results
from histfl.runs.arms import Arm
from histfl.runs.config import Config
from histfl.settings import checked
from histfl.training.precision import Precision
from histfl.wireless.latency import CYCLES_PER_STEP

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
    """A setting that the paper leaves open, or that we set otherwise, with the reason."""

    what: str
    reason: str


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
class Curve:
    """A line with its seeds' range: arrays of one length; `colour` and `dashed` choose its look."""

    name: str
    x: Floats
    y: Floats
    low: Floats
    high: Floats
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot of a figure; `points` marks every value (few of them), else the curves are plain lines."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    points: bool = False
    log_y: bool = False


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
    panels: Callable[[Results], Sequence[Panel]]
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
