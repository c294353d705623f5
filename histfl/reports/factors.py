"""What varies over the groups of a comparison, and how lines show it: one factor by colour, another by dash."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from histfl.reports.gather import Group
from histfl.reports.style import DASHES, LINE_COLOURS, line_style, many_colours

FEW_LINES = 6  # that a legend tells apart, each in a colour of its own
MOST_VALUES = 24  # of a factor that a reader chooses from
LONGEST_VALUE = 32
NO_FACTORS = {"training.seed", "training.targets"}
METHOD = "method.name"  # comes first


@dataclass(frozen=True)
class Factor:
    """A setting that varies: its `values` in order, and which of them each group has."""

    title: str
    values: tuple[str, ...]
    of: tuple[int, ...]

    @cached_property
    def colours(self) -> tuple[str, ...]:
        few = len(self.values) <= len(LINE_COLOURS)
        return LINE_COLOURS[: len(self.values)] if few else tuple(many_colours(len(self.values)))

    @cached_property
    def dashes(self) -> tuple[str, ...]:
        return tuple(DASHES[place % len(DASHES)] for place in range(len(self.values)))


@dataclass(frozen=True)
class Looks:
    """How the groups of a comparison are drawn. `colour` and `dash` are places in `factors`; without factors every
    group has a look of its own."""

    groups: int
    factors: tuple[Factor, ...] = ()
    colour: int = 0
    dash: int | None = None

    def style(self, group: int) -> dict[str, Any]:
        if not self.factors:
            return line_style(group)
        by = self.factors[self.colour]
        dash = "solid"
        if self.dash is not None:
            dashed = self.factors[self.dash]
            dash = dashed.dashes[dashed.of[group]]
        return {"colour": by.colours[by.of[group]], "dash": dash}

    def as_json(self) -> str:
        """For the page, which changes the looks and filters."""
        factors = [
            {"title": f.title, "values": f.values, "of": f.of, "colours": f.colours, "dashes": f.dashes}
            for f in self.factors
        ]
        return json.dumps(
            {"groups": self.groups, "factors": factors, "colour": self.colour, "dash": self.dash}
        )


def looks_of(groups: Sequence[Group]) -> Looks:
    """A colour each where a legend can tell them; of many, the factor of most values by colour and the next by dash."""
    factors = factors_of(groups) if len(groups) > FEW_LINES else []
    if not factors:
        return Looks(len(groups))
    fit = [place for place, factor in enumerate(factors) if len(factor.values) <= len(LINE_COLOURS)]
    ranked = sorted(fit, key=lambda place: -len(factors[place].values)) or [0]
    return Looks(len(groups), tuple(factors), ranked[0], ranked[1] if len(ranked) > 1 else None)


def factors_of(groups: Sequence[Group]) -> list[Factor]:
    """The settings that differ, the method first. One that goes with another tells nothing more and is left out; where
    all of them do not tell the groups apart, their names are a factor too."""
    flat = [dict(_flat(group.runs[0].tables)) for group in groups]
    every = dict.fromkeys(key for table in flat for key in table if key not in NO_FACTORS)
    varied = [key for key in every if len({table.get(key) for table in flat}) > 1]
    keys = sorted(varied, key=lambda key: key != METHOD)  # the others as the configuration has them
    titles = _titles(keys)
    found: dict[tuple[int, ...], Factor] = {}
    for key in keys:
        column = [table.get(key) for table in flat]
        values = sorted(set(column), key=_order)
        of = tuple(values.index(value) for value in column)
        first = list(dict.fromkeys(of))
        alike = tuple(first.index(place) for place in of)  # the same for settings that go with each other
        if len(values) <= MOST_VALUES:
            found.setdefault(alike, Factor(titles[key], tuple(map(_text, values)), of))
    factors = list(found.values())
    if len(set(zip(*(factor.of for factor in factors), strict=True))) < len(groups) <= MOST_VALUES:
        factors.append(Factor("run", tuple(group.name for group in groups), tuple(range(len(groups)))))
    return factors


Value = str | float | None


def _flat(tables: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{place}{key}.")
        else:
            known = isinstance(value, str | int | float) and not isinstance(value, bool)
            yield place + key, value if known else json.dumps(value)


def _order(value: Value) -> tuple[int, float, str]:
    """Numbers by size, then words as they are; nothing comes first."""
    if isinstance(value, str) or value is None:
        return (0 if value is None else 2, 0.0, value or "")
    return (1, value, "")


def _text(value: Value) -> str:
    text = "none" if value is None else value if isinstance(value, str) else f"{value:.6g}"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _titles(keys: Sequence[str]) -> dict[str, str]:
    """The last word of each key, or of a name what is named, where no other has the same; else the whole key."""
    words = {key: key.split(".")[-2 if key.endswith(".name") else -1] for key in keys}
    return {key: word if list(words.values()).count(word) == 1 else key for key, word in words.items()}
