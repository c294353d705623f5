"""Choices by name, each with its own options: `[cloud] name = "fedadam"` and, beside it, that step's keys.

A registry maps names to makers, whose keyword arguments are the options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from histfl.errors import HistflError, UsageError, did_you_mean, in_one_line

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class OneOf:
    """The values of a setting: the names in a registry when it is checked, so that what was added later is known too,
    and those in `also`."""

    registry: Mapping[str, object]
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.registry, *self.also)

    def check(self, value: object) -> object:
        """`value`, known to be one of the names."""
        if not isinstance(value, str) or value not in self.names:
            *first, last = map(repr, self.names)
            expected = f"{', '.join(first)} or {last}" if first else last
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))


def check_choice(kind: str, registry: Mapping[str, Callable[..., Any]], name: str) -> None:
    """A ValueError where the registry has no such name."""
    if name not in registry:
        raise ValueError(did_you_mean(name, registry, f"known {kind}s: {', '.join(registry)}"))


def made(
    section: str,
    registry: Mapping[str, Callable[..., Made]],
    name: str,
    options: Mapping[str, Any],
    *,
    key: str | None = None,
) -> Made:
    """What the registry's maker of that name gives for the options of a configuration's section; the name stands
    under `key` (None: `name` of the section)."""
    maker = registry[name]
    check_options(section, maker, options)
    known = list(inspect.signature(maker).parameters)
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known, f"{name!r} takes {', '.join(known) or 'none'}")
            raise UsageError(
                f"unknown key {section}.{option} with {key or f'{section}.name'} = {name!r}; {hint}"
            )
    try:
        return maker(**options)
    except HistflError:
        raise
    except Exception as error:  # a plugin's maker may fail in any way
        raise UsageError(f"{section} {name!r} with {dict(options)} failed: {in_one_line(error)}") from error


def check_options(section: str, maker: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """A UsageError where an option has not the kind of value that the maker's annotations name."""
    hints = get_type_hints(maker.__init__ if inspect.isclass(maker) else maker)
    for key, value in options.items():
        if key in hints:
            kind = TypeAdapter(hints[key], config=ConfigDict(strict=True, allow_inf_nan=False))
            try:
                kind.validate_python(value)
            except ValidationError as error:
                said = " or ".join(dict.fromkeys(each["msg"] for each in error.errors()))
                said = said.replace("an instance of Sequence", "a list")
                raise UsageError(f"{section}.{key} = {value!r}: {said}") from None
