"""What a reproduction is made of: arms to run and, from their results, rows, verdicts and curves; what several share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

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

# Of the means and of every seed's own numbers; of the means alone; at some of its points; not of the means, though of
# some seed; neither. A row without a claim has none.
Verdict = Literal["yes", "of the means alone", "in part", "no, but seeds differ", "no", "not yet run", ""]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)[:-1]
HOLDS: tuple[Verdict, ...] = ("yes", "of the means alone")
SEEDS = (1, 2, 3)

# Labels of an arm: the setting that each one is, and how it reads in the arm's name.
LABELS = {
    "method": ("method.name", "{}"),
    "sizes": ("method.sizes", "{}"),
    "uplink": ("uplink.name", "{}"),
    "cells": ("network.cells", "N{}"),
    "active_cells": ("network.active_cells", "cell{0[0]}-alone"),
    "alpha": ("model.alpha", "alpha{:g}"),
    "scale": ("method.scale", "scale{:g}"),
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

    A row without a claim has the verdict "". `note` tells how far a verdict goes: where a claim holds in part, or that
    one seed alone tells it. `why` tells of a claim that does not hold what was measured, and of one that holds what to
    be wary of; `values` has the numbers behind the words, unrounded. `point` is the paper's point that the claim is a
    case of, by the words in TOPICS. `beside` marks what the paper does not have: it is judged by the paper's words or
    number, but not counted among its claims.
    """

    what: str
    paper: str
    ours: str
    verdict: Verdict = ""
    why: str = ""
    values: Mapping[str, float | None] = field(default_factory=dict)
    point: str = ""
    note: str = ""
    beside: bool = False

    @property
    def holds(self) -> str:
        """The verdict in words, as far as it goes."""
        if self.verdict == "in part":
            return self.note
        return ", ".join(filter(None, (self.verdict, self.note)))


@dataclass(frozen=True)
class Artefact:
    """A figure or table of the paper at one scale.

    `paper` is what the paper says of it; `smaller` what the quick scale changes ("" at the paper's size);
    `rows` and `panels` read the results that are there, whatever is missing. One that puts claims of another to the
    test `again`, in other settings, is not counted a second time; `shares` names the artefact whose kept results serve
    here too.
    """

    name: str
    paper: str
    choices: tuple[Choice, ...]
    arms: tuple[Arm, ...]
    rows: Callable[[Results], Sequence[Row]]
    panels: Callable[[Results], Sequence[Plot]]
    smaller: str = ""
    again: bool = False
    shares: str = ""

    @property
    def title(self) -> str:
        return TITLES[self.name]

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise UsageError(f"{self.name} has two arms of one name; give the seeds and settings once each")


class Figure(Protocol):
    """A figure at one scale: what an artefact asks of it."""

    def arms(self, seed: int) -> Iterable[Arm]: ...

    def rows(self, results: Results) -> Iterable[Row]: ...

    def panels(self, results: Results) -> Sequence[Plot]: ...


def figure_artefact(
    name: str, figure: Figure, scale: Scale, smaller: str, *, paper: str, choices: tuple[Choice, ...]
) -> Artefact:
    """The artefact of a figure with all seeds of the scale."""
    arms = tuple(each for seed in scale.seeds for each in figure.arms(seed))
    return Artefact(
        name, paper, choices, arms, lambda results: list(figure.rows(results)), figure.panels, smaller
    )


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
    return Plot(
        title,
        f"{y} against {x}.",
        Axis(x),
        Axis(y, scale=scale, share=y == ACCURACY),
        tuple(filter(None, lines)),
    )


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


def learning_panel(
    title: str,
    curves: Iterable[tuple[str, Repeats, bool]],
    across: str = "round",
    label: str = "global rounds",
) -> Plot:
    """Test accuracy against the column `across`, a curve a name, dashed or not."""
    lines = (
        learning_curve(repeats, name, across, colour=colour, dashed=dashed)
        for colour, (name, repeats, dashed) in enumerate(curves)
    )
    return panel(title, label, ACCURACY, lines)


def curves_of(
    x: Sequence[float],
    named: Mapping[str, Mapping[str, Spread]],
    dashed: Callable[[str], bool] = lambda name: False,
) -> list[Line | None]:
    """A curve a name, of its spread at each x."""
    return [
        curve_of(x, spreads.values(), name, colour=colour, dashed=dashed(name))
        for colour, (name, spreads) in enumerate(named.items())
    ]


def _look(colour: int, dashed: bool) -> dict[str, Any]:
    return line_style(colour % len(LINE_COLOURS) + len(LINE_COLOURS) * dashed)


# What several artefacts share.
LOAD, LOAD_LABEL = "megabytes_per_client", "MB sent by a client"
ACCURACY = "test accuracy"
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
QUICK_RATE = 0.05


def optimiser(scale: Scale) -> Choice:
    """The clients' steps, as the arms of this scale take them."""
    paper = MLP["training.learning_rate"]
    rate = f"{QUICK_RATE:g} (at the full size {paper:g})" if scale.quick else f"{paper:g}"
    return Choice(
        f"plain SGD, batch 50, learning rate {rate}, no momentum, inputs normalised by (0.5, 0.5), no dropout",
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
    """The runs of a method, with all cells and the artefact's own alpha and scale but where `more` labels say otherwise."""
    labels = {"active_cells": None, "alpha": None, "scale": None, **more}
    return results.of(method=method, split=setting[0], cells=setting[1], **labels)


def quick_images(scale: Scale) -> str:
    """Fashion-MNIST where this machine has it, else the images inside the package."""
    return "fashion-mnist" if "fashion-mnist" in scale.here else "fashion-mnist-mini"


def quick_mlp(scale: Scale) -> dict[str, Any]:
    """The quick scale's network: 20 clients and a larger step, so that few rounds tell the methods apart."""
    return {
        **MLP,
        "data.name": quick_images(scale),
        "network.clients": 20,
        "training.learning_rate": QUICK_RATE,
    }


def quick_words(scale: Scale, *further: str) -> str:
    """What the quick scale makes smaller, in a sentence."""
    images = "Fashion-MNIST" if quick_images(scale) == "fashion-mnist" else "14,000 embedded images"
    return ", ".join((images, "20 clients in place of 60", f"learning rate {QUICK_RATE:g}", *further)) + "."
