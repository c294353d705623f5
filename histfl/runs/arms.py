"""Arms of an experiment: runs to carry out, and the cross product of varied settings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from histfl.errors import UsageError
from histfl.runs.config import Config
from histfl.runs.loading import load_config


@dataclass(frozen=True)
class Arm:
    """A run's name, its configuration, and by `labels` what tells it from the other arms."""

    name: str
    config: Config
    labels: Mapping[str, Any] = field(default_factory=dict)


def arms(
    source: str, settings: Sequence[str], varied: Sequence[str], trusted: Collection[str] = ()
) -> Iterator[Arm]:
    """Every combination of `section.key=a,b,c` variations over the base configuration."""
    choices = [_choices(variation) for variation in varied]
    paths = [values[0].partition("=")[0] for values in choices]
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise UsageError(
            f"--vary {min(twice)} is given twice; write all its values in one: {min(twice)}=a,b,c"
        )
    names: set[str] = set()
    for combination in itertools.product(*choices):
        plain = ",".join(combination).translate({ord("["): None, ord("]"): None}).replace(",", "+")
        name = re.sub(r"[^\w.=+-]+", "-", plain)[:150]
        if name in names:
            raise UsageError(f"--vary gives the arm {name!r} twice; remove the repeated value")
        names.add(name)
        yield Arm(name, load_config(source, [*settings, *combination], trusted))


def _choices(variation: str) -> list[str]:
    path, equals, text = variation.partition("=")
    values = [value.strip() for value in re.split(r",(?![^\[]*\])", text) if value.strip()]
    if not equals or not values or "." not in path:
        raise UsageError(
            f"--vary {variation!r}: write it as section.key=a,b,c, for example network.cells=2,4,6"
        )
    return [f"{path.strip()}={value}" for value in values]
