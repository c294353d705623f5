"""Writes docs/configuration.md and the keywords in docs/reference.md from the settings' own fields:
python docs/write_configuration.py"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from histfl.api import _HOMES
from histfl.models import MODELS
from histfl.runs.config import Config, OptimiserSettings
from histfl.runs.loading import preset_names
from histfl.settings import SMALLEST, OneOf
from histfl.training.cloud import CLOUD_STEPS
from histfl.training.codecs import CODECS
from histfl.training.methods import METHODS
from histfl.training.objectives import OBJECTIVES
from histfl.training.optimisers import OPTIMISERS, SHARED
from histfl.training.schedules import SCHEDULES
from histfl.wireless.uplinks import UPLINKS

PAGE = Path(__file__).parent / "configuration.md"
REFERENCE = Path(__file__).parent / "reference.md"
KEYWORDS = "## Keywords of `histfl.train`\n"  # a section that ends with the next one
OFFERED = (
    "input_shape",
    "num_classes",
    "sample_inputs",
    "data_dir",
)  # what a model is given, not an option of it
NO_LIMIT = 10**9  # bounds from here on only keep slips out
INTRODUCTION = """\
# Settings

A run is decided by these settings. They come from a TOML file with a table for each section, or from a
preset: {presets}. `--set section.key=value` changes one of them; in Python most are
keywords of `histfl.train`. A key that is left out has its default; where that is unset, leaving the key out is
the only way to have it so. A run's folder keeps every setting in `config.toml`. [Concepts](concepts.md)
explains methods and splits.

```toml
# mine.toml
[data]
name = "fashion-mnist-mini"
split = "dirichlet"

[training]
rounds = 20
targets = [0.6, 0.7]
```

```sh
histfl run mine.toml --set training.rounds=2 --set method.sizes=optimised --out runs/mine
```

## What a configuration may do

A configuration is data, also one that somebody sent: a TOML file, or the `config.toml` in a run's folder. Four keys
name what is called, `model.name`, `data.name`, `data.split` and `uplink.channel`; there

- the names in the tables below, and those of plugins, mean the same from everywhere. A plugin is an entry point of an
  installed package, in the group `histfl.models`, `histfl.datasets`, `histfl.splits` or `histfl.channels`;
- `package.module:factory` runs code. Typed after `--set`, `--vary` or `--model`, or given in Python, it is your own
  word. In a file it is refused before anything is imported, until you add `--trust package.module`, for each such
  module, to each such command: nothing remembers it. To trust a module is to let the file call whatever is defined in
  it, with any options;
- functions and classes of Python's library, of the packages that histfl builds on (torch, numpy, ...) and histfl's own
  other than the models and channels below are never called, under whatever name they are found. Call them from a
  function of your own.

Beyond these, a configuration can have files read: a network file (`network.profile`), and a pretrained model or
tokenizer (`model.base`, `data.tokenizer`) from a folder or the hub, of which a model that brings its own code is
refused. `histfl report` and `histfl bound` call nothing that a run's folder names.
"""


def page() -> str:
    sections = [_section(name, field) for name, field in Config.model_fields.items()]
    return "\n".join(
        [INTRODUCTION.format(presets=", ".join(f"`{name}`" for name in preset_names())), *sections]
    )


def with_keywords(reference: str) -> str:
    """The page with the table of train's keywords that are keys of a configuration."""
    before, heading, after = reference.partition(KEYWORDS)
    _, following, rest = after.partition("\n## ")
    rows = []
    for keyword, (section, key) in sorted(_HOMES.items()):
        field = Config.model_fields[section].annotation.model_fields[key]
        kind, default = _kind(field.annotation, field.metadata), _default(field.default)
        rows.append((f"`{keyword}`", f"`{section}.{key}`", kind, default, str(field.description)))
    said = "Beside its own parameters above, `histfl.train` takes these keys of [the configuration](configuration.md)."
    table = _table(("keyword", "key", "value", "default", "meaning"), rows)
    return f"{before}{heading}\n{said}\n\n{table}{following}{rest}"


def _section(name: str, section: FieldInfo) -> str:
    if name == "optimiser":
        rows = _table(("optimiser", "what it is", "options"), map(_optimiser, OPTIMISERS))
        return f"## `[{name}]`\n\n{OptimiserSettings.__doc__}\n\n{rows}"
    fields = section.annotation.model_fields
    rows = [
        (f"`{key}`", _kind(field.annotation, field.metadata), _default(field.default), str(field.description))
        for key, field in fields.items()
    ]
    choices = {
        "model": lambda: _table(("model", "what it is", "options"), map(_model, MODELS)),
        "training": lambda: _table(
            ("schedule", "what it is", "keys of its own"),
            (_choice(each, make, tuple(fields)) for each, make in SCHEDULES.items()),
        ),
        "method": lambda: _table(
            ("method", "what it is", "keys of its own"),
            (
                (f"`{each}`", m.about, _choice(each, m.dealer, tuple(fields))[2])
                for each, m in METHODS.items()
            ),
        ),
        "uplink": lambda: _table(
            ("uplink", "what it is", "keys of its own"),
            ((f"`{each}`", k.about, _choice(each, k.make, tuple(fields))[2]) for each, k in UPLINKS.items()),
        ),
        "codec": lambda: _table(
            ("codec", "what it is", "options"), (_choice(each, make, ()) for each, make in CODECS.items())
        ),
        "cloud": lambda: _table(
            ("cloud step", "what it is", "options"),
            (_choice(each, make, ()) for each, make in CLOUD_STEPS.items()),
        ),
    }
    choices["objective"] = lambda: _table(
        ("objective", "what it learns", "options"),
        (_choice(each, make, ()) for each, make in OBJECTIVES.items()),
    )
    further = [choices[name]()] if name in choices else []
    text = _table(("key", "value", "default", "meaning"), rows)
    return "\n".join([f"## `[{name}]`\n", f"{section.annotation.__doc__}\n", text, *further])


def _table(heads: tuple[str, ...], rows: Any) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return (
        "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        + "\n"
    )


def _model(name: str) -> tuple[str, ...]:
    return _choice(name, MODELS[name], OFFERED)


def _optimiser(name: str) -> tuple[str, ...]:
    return _choice(name, OPTIMISERS[name], SHARED)


def _choice(name: str, maker: Any, offered: tuple[str, ...]) -> tuple[str, ...]:
    """A row of the table of what may be chosen by name."""
    parameters = inspect.signature(maker).parameters.values()
    options = [f"`{each.name} = {_toml(each.default)}`" for each in parameters if each.name not in offered]
    first = (inspect.getdoc(maker) or "").partition("\n")[0]
    if first.startswith(f"{maker.__name__}("):  # a dataclass without a word of its own
        first = ""
    return f"`{name}`", first, ", ".join(options) or "none"


def _kind(annotation: Any, metadata: Any = ()) -> str:
    """A type in a user's words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if names := _names(arguments[1:]):
            return names
        return _kind(arguments[0], [bound for field in arguments[1:] for bound in field.metadata])
    if origin in (Union, UnionType):
        return " or ".join(_kind(each) for each in arguments if each is not NoneType)
    if names := _names(metadata):
        return names
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is dict:
        return f"table of: {_kind(arguments[1])}"
    if origin is tuple:
        return f"list of: {_kind(arguments[0])}"
    return {str: "text", bool: "`true`, `false`", int: "whole number", float: "number"}[annotation] + _bounds(
        metadata
    )


def _names(metadata: Any) -> str:
    """The names of a registry."""
    return ", ".join(f"`{name}`" for each in metadata if isinstance(each, OneOf) for name in each.names)


def _bounds(metadata: Any) -> str:
    found = {
        name: getattr(each, name) for each in metadata for name in ("ge", "le", "lt") if hasattr(each, name)
    }
    low, high, below = found.get("ge"), found.get("le", NO_LIMIT), found.get("lt", NO_LIMIT)
    if low is None:
        return ""
    if low == SMALLEST:
        return ", positive"
    if high < NO_LIMIT:
        return f", {low} to {high}"
    return f", at least {low}" + (f" and below {below}" if below < NO_LIMIT else "")


def _default(value: Any) -> str:
    return "unset" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(each)}' for key, each in value.items())}}}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    REFERENCE.write_text(with_keywords(REFERENCE.read_text("utf-8")), "utf-8")
