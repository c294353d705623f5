"""A user's TOML text into checked settings, and choices by name into what they name; the only place that explains
validation errors.

A choice has options of its own: `[cloud] name = "fedadam"` and, beside it, that step's keys. A registry maps names to
makers, whose keyword arguments are the options.
"""

from __future__ import annotations

import inspect
import json
import math
import tomllib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticKnownError, core_schema

from histfl.errors import LONGEST_VALUE, HistflError, UsageError, did_you_mean, in_one_line, shown
from histfl.files import read_text

# Strict, because `rounds = true` and `rounds = "5"` are slips, not numbers; bounded, because beyond these
# no quantity of a network is real and products of them overflow.
SMALLEST = 1e-30
Positive = Annotated[float, Field(strict=True, ge=SMALLEST, le=1e30)]
NonNegative = Annotated[float, Field(strict=True, ge=0, le=1e30)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
Decibels = Annotated[float, Field(strict=True, ge=-300, le=300)]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Whole = Annotated[int, Field(strict=True)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Switch = Annotated[bool, Field(strict=True)]


class Settings(BaseModel):
    """Base of every settings section: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def known_keys(cls) -> list[str]:
        """The keys that a section has."""
        return sorted(cls.model_fields)


class Named(Settings):
    """A section that chooses something by `name`; its other keys are that choice's own options."""

    model_config = ConfigDict(extra="allow")

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class _Options(Settings):
    model_config = ConfigDict(strict=True)


class Extensible(Settings):
    """A section that registries extend: what the makers of a choice by name take, and is no field here, is a key, too."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    @abstractmethod
    def makers(cls) -> Iterable[Callable[..., Any]]:
        """Of all that may be chosen."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The further keys, with the kinds of their values."""
        return {
            key: kind
            for maker in cls.makers()
            for key, kind in _kinds(maker).items()
            if key not in cls.model_fields
        }

    @classmethod
    def known_keys(cls) -> list[str]:
        return sorted([*cls.model_fields, *cls.options()])

    def values(self) -> dict[str, Any]:
        """All that is given or has a default here."""
        return {key: getattr(self, key) for key in type(self).model_fields} | dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _options_are_known(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not (own := given.keys() - cls.model_fields.keys()):
            return given
        if given.get("name") == GIVEN:  # they are what an object says of itself
            return given
        fields: dict[str, Any] = {key: (kind, None) for key, kind in cls.options().items()}
        options = create_model("Options", __base__=_Options, **fields)
        found = options.model_validate({key: given[key] for key in own})
        return {key: getattr(found, key) if key in own else value for key, value in given.items()}


def _kinds(maker: Callable[..., Any]) -> dict[str, Any]:
    """The kinds of what a maker takes, by name."""
    hints = get_type_hints(maker.__init__ if inspect.isclass(maker) else maker, include_extras=True)
    return {key: hints.get(key, Any) for key in inspect.signature(maker).parameters}


Checked = TypeVar("Checked", bound=BaseModel)
LARGEST_WHOLE = 2**63


def parse_json(text: str | bytes) -> Any:
    """JSON that may come from elsewhere: a ValueError also where a number is none, or larger than any of ours."""

    def whole(digits: str) -> int:
        if abs(value := int(digits)) > LARGEST_WHOLE:
            raise ValueError("a number is too large")
        return value

    def decimal(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"{digits} is not a finite number")
        return value

    try:
        return json.loads(text, parse_int=whole, parse_float=decimal, parse_constant=decimal)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """TOML that may come from elsewhere: a ValueError where it is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return parse_toml(read_text(path, "utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; check the path") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def checked(model: type[Checked], values: dict[str, Any], place: str) -> Checked:
    """`values` as `model`, or one line that names the first bad key, its value and what would be right."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UsageError(_explain(model, error, place)) from None


def _explain(model: type[BaseModel], error: ValidationError, place: str) -> str:
    found = [(_path(each["loc"]), each) for each in error.errors()]
    found.sort(key=lambda each: each[1]["type"] == "missing")  # last: it may be there by a wrong name
    path, first = found[0]
    if isinstance(first["input"], list | tuple):  # of a list, the item that is wrong says more than the whole
        inside = [
            (other, each) for other, each in found if other[: len(path)] == path and len(other) > len(path)
        ]
        path, first = inside[0] if inside else (path, first)
    key = ".".join(str(part) for part in path)
    # A section whose key is wrong is reported too, and each way that a union was tried: neither is one more.
    more = len({other for other, _ in found if other[: len(path)] != path and path[: len(other)] != other})
    others = f" (and {more} more)" if more else ""
    tried = [_said(each) for other, each in found if other == path]
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, path[:-1])
        hint = did_you_mean(str(path[-1]), known, f"known keys: {', '.join(known)}")
        return f"{place}: unknown key {key!r}; {hint}{others}"
    if first["type"] == "missing" and isinstance(path[-1], int):
        return f"{place}: {'.'.join(map(str, path[:-1]))}: the list is too short{others}"
    message = " or ".join(dict.fromkeys(tried)).removeprefix("Value error, ")
    message += _remedy(model, path, first, tried)
    of_a_section = isinstance(first["input"], dict)  # all of which is too much to show
    value = "" if first["type"] == "missing" or of_a_section else f" = {shown(first['input'])}"
    return f"{place}: {key}{value}: {message}{others}" if key else f"{place}: {message}{others}"


def _said(error: ErrorDetails) -> str:
    """What would be right, in a user's words and numbers."""
    if error["type"] == "tuple_type":
        return "Input should be a list"
    if error["type"] == "missing":
        return "this key is needed"
    if error["type"] == "too_short":
        return "Input should have one item at least"
    bounds = error.get("ctx", {})
    if bounds.get("ge") == SMALLEST:
        return f"Input should be positive, at least {SMALLEST:g}"
    if error["type"] == "less_than_equal" and isinstance(bounds["le"], float):
        return f"Input should be at most {bounds['le']:g}"
    return error["msg"]


def _remedy(
    model: type[BaseModel], path: tuple[int | str, ...], error: ErrorDetails, tried: list[str]
) -> str:
    value = error["input"]
    if error["type"] in ("tuple_type", "too_short") and _model_at(model, path) is not _model_at(
        model, path[:-1]
    ):
        return f": write a table [[{path[-1]}]] for each"
    if len(shown(value)) == LONGEST_VALUE or (isinstance(value, int) and abs(value) > LARGEST_WHOLE):
        return ""  # too long to be written as it should be
    a_list = error["type"] == "tuple_type"
    if a_list and isinstance(value, str) and value.startswith("["):  # a shell ate its quotes
        items = [item.strip().strip("'\"") for item in value.strip("[]").split(",")]
        return f": write {json.dumps(items)}, with quotes around the whole for the shell"
    if a_list and len(tried) == 1 and isinstance(value, int | float | str):
        return f": write [{json.dumps(value)}]"
    field = _model_at(model, path[:-1]).model_fields.get(str(path[-1])) if path else None
    unset = isinstance(value, str) and value.lower() in ("none", "null", "")
    if unset and field is not None and field.default is None:
        return "; to have none, leave the key out"
    return ""


def _is_union_tag(part: int | str) -> bool:
    """Pydantic adds the tried type ('float', 'literal[...]', 'list[float]') to a union's path."""
    return isinstance(part, str) and (
        part in {"int", "float", "str", "bool"} or part.startswith("constrained-") or "[" in part
    )


def _path(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    return tuple(part for part in location if not _is_union_tag(part))


def _known_keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    found = _model_at(model, path)
    return found.known_keys() if issubclass(found, Settings) else sorted(found.model_fields)


def _model_at(model: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel]:
    """The model of the table at `path`."""
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if inner:
            model = inner[0]
    return model


Made = TypeVar("Made")
GIVEN = "given"  # in place of a name: what is chosen is the user's own, given in Python


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
            *first, last = (repr(name) for name in self.names if name != GIVEN)
            expected = f"{', '.join(first)} or {last}" if first else last
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))


def check_given(key: str, keyword: str, name: str, names: Iterable[str]) -> None:
    """A UsageError where `name`, of the setting `key`, stands for an object that `histfl.train` was given."""
    if name == GIVEN:
        raise UsageError(
            f"{key} = {name!r} is for Python, histfl.train({keyword}=...); use {' or '.join(names)}"
        )


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
