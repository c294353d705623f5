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

MOST_VALUES = 10_000  # of a range, which is more arms than a sweep carries out


@dataclass(frozen=True)
class Arm:
    """A run's name, its configuration, and by `labels` what tells it from the other arms."""

    name: str
    config: Config
    labels: Mapping[str, Any] = field(default_factory=dict)


def arms(
    source: str, settings: Sequence[str], varied: Sequence[str], trusted: Collection[str] = ()
) -> Iterator[Arm]:
    """Every combination of `section.key=a,b,c` variations over the base configuration; `1..10` is every whole number
    from 1 to 10."""
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
    values = [each for value in values for each in _counted(value, variation)]
    if not equals or not values or "." not in path:
        raise UsageError(
            f"--vary {variation!r}: write it as section.key=a,b,c, for example network.cells=2,4,6"
        )
    return [f"{path.strip()}={value}" for value in values]


def _counted(value: str, variation: str) -> list[str]:
    """The whole numbers of a range such as 1..10; another value by itself."""
    ends = re.fullmatch(r"(-?\d{1,18})\.\.(-?\d{1,18})", value)
    if ends is None:
        return [value]
    first, last = map(int, ends.groups())
    if not 0 <= last - first < MOST_VALUES:
        raise UsageError(
            f"--vary {variation!r}: {value} is a range of {last - first + 1:,} values; use one of 1 to {MOST_VALUES:,}, the "
            "lowest first, such as 1..10"
        )
    return [str(number) for number in range(first, last + 1)]


def settings_in_words(name: str) -> str:
    """A sweep's `method.name=hist+network.cells=4` as `hist, cells=4`, also in a folder; other names as they are."""
    place, arm = placed(name)
    words = ", ".join(s[2] if s[1] == "name" else f"{s[1]}={s[2]}" for s in settings_of(arm))
    return place + words if words else name


def placed(name: str) -> tuple[str, str]:
    """The folders of a name, and what it is called in them."""
    folders, slash, arm = name.rpartition("/")
    return folders + slash, arm


def settings_of(arm: str) -> list[re.Match[str]]:
    """The settings that a sweep's name is made of, each with its key and value; none of another name."""
    found = [re.fullmatch(r"[\w.]+\.(\w+)=(.+)", part) for part in arm.split("+")]
    return [setting for setting in found if setting] if all(found) else []
