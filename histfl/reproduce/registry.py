"""All artefacts by name; a new one is a function of the scale, a line here and a title in TITLES."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path

from histfl.data import locate
from histfl.data.text import folder_of
from histfl.devices import PRECISIONS, Precision
from histfl.errors import DataError, UsageError
from histfl.reproduce.artefact import SEEDS, Artefact, Scale
from histfl.reproduce.fig4_fig5 import fig4, fig5
from histfl.reproduce.fig6_fig7 import fig6, fig7
from histfl.reproduce.fig8 import fig8
from histfl.reproduce.fig9 import fig9
from histfl.reproduce.table1_table2 import table1, table1_code, table1_scale, table1_scale_mlp, table2
from histfl.reproduce.table3 import QUICK_BASE, table3
from histfl.runs.arms import Arm

ARTEFACTS: dict[str, Callable[[Scale], Artefact]] = {
    "fig4": fig4,
    "fig5": fig5,
    "fig6": fig6,
    "fig7": fig7,
    "fig8": fig8,
    "fig9": fig9,
    "table1": table1,
    "table1-code": table1_code,
    "table1-scale": table1_scale,
    "table1-scale-mlp": table1_scale_mlp,
    "table2": table2,
    "table3": table3,
}
QUICK_DATA = ("fashion-mnist", "20newsgroups")  # else the quick scale takes embedded images, or no texts


def artefacts(names: Iterable[str], scale: Scale) -> list[Artefact]:
    """The named artefacts, their arms in the scale's precision."""
    return [_in_precision(ARTEFACTS[name](scale), scale.precision) for name in names]


def _in_precision(artefact: Artefact, precision: Precision) -> Artefact:
    def changed(arm: Arm) -> Arm:
        training = arm.config.training.model_copy(update={"precision": precision})
        return dataclasses.replace(arm, config=arm.config.model_copy(update={"training": training}))

    return dataclasses.replace(artefact, arms=tuple(changed(arm) for arm in artefact.arms))


def chosen_arms(found: Iterable[Artefact], only: str | None) -> list[Arm]:
    """The arms of the artefacts; with `only`, those whose name or artefact/name matches the pattern."""
    named = [(f"{artefact.name}/{arm.name}", arm) for artefact in found for arm in artefact.arms]
    if only is None:
        return [arm for _, arm in named]
    chosen = [arm for name, arm in named if fnmatch(name, only) or fnmatch(arm.name, only)]
    if not chosen:
        names = ", ".join(name for name, _ in named[:3])
        raise UsageError(f"--only {only!r} matches none of {len(named)} arms, such as {names}")
    return chosen


def scale_for(
    *,
    quick: bool = False,
    seeds: str | None = None,
    data_dir: Path | None = None,
    precision: str | None = None,
) -> Scale:
    """The scale that a command asks for; `seeds` is a list such as 1,2,3 (default: 1,2,3; quick: 1)."""
    if seeds is None:
        chosen: tuple[int, ...] = (1,) if quick else SEEDS
    else:
        try:
            chosen = tuple(dict.fromkeys(int(seed) for seed in seeds.split(",")))
        except ValueError:
            raise UsageError(f"--seeds {seeds!r}: write whole numbers with commas, such as 1,2,3") from None
    if precision not in (None, *PRECISIONS):
        raise UsageError(f"--precision {precision!r}: use {', '.join(PRECISIONS)}")
    here = {name for name in QUICK_DATA if _is_here(name, data_dir)}
    if folder_of(QUICK_BASE, data_dir) is not None:
        here.add(QUICK_BASE)
    return Scale(quick, chosen, frozenset(here), precision or "float32")


def _is_here(name: str, data_dir: Path | None) -> bool:
    try:
        locate(name, data_dir)
    except DataError:
        return False
    return True
