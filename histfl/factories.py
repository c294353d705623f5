"""What a configuration may call: a user's `package.module:factory`, or a plugin of an installed package.

Importing a module runs its code, and a factory does what it likes with its options. So a name is judged before
anything is imported, one that stands in a file needs the user's word for its module, and Python's library, the
packages that histfl depends on and histfl itself are no factories, under whatever name they are found.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from histfl.errors import HistflError, UsageError, did_you_mean, in_one_line

OWN_FUNCTION = "name a function of your own"


@dataclass(frozen=True)
class Kind:
    """What a factory makes: in a `word`, the setting `key` that names it, and the `group` of entry points."""

    word: str
    key: str
    group: str


MODEL = Kind("model", "model.name", "histfl.models")
DATA = Kind("data set", "data.name", "histfl.datasets")
SPLIT = Kind("split", "data.split", "histfl.splits")
CHANNEL = Kind("channel", "uplink.channel", "histfl.channels")
KINDS = {kind.key: kind for kind in (MODEL, DATA, SPLIT, CHANNEL)}


def check_trust(modules: Collection[str]) -> None:
    """A UsageError where one of the `modules` that a user trusts is no module's name."""
    for name in modules:
        if not _is_module(name):
            raise UsageError(f"--trust {name!r}: name a module, such as --trust {_suggested(name)}")


def _suggested(name: str) -> str:
    module = name.partition(":")[0].removesuffix(".py").replace("/", ".")
    return module if _is_module(module) else "package.module"


def _is_module(name: str) -> bool:
    """Whether a module can be imported by that name: a file `my-net.py` can, though no statement names it."""
    return re.fullmatch(r"[^\s.:/\\]+(\.[^\s.:/\\]+)*", name) is not None


def module_of(name: str) -> str | None:
    """The module that a `package.module:factory` is imported from; None for a name alone."""
    module, colon, _ = name.partition(":")
    return module if colon else None


def check_callable(kind: Kind, name: str, *, file: str | None = None) -> None:
    """A UsageError where a configuration must not call `name`; nothing is imported.

    `file` is the one that names it, where the user has not: neither typed the name nor trusted the module.
    """
    module, attribute = module_of(name), name.partition(":")[2]
    if module is None:
        return
    place = f"{file}: " if file else ""
    if of := _not_callable(module):
        raise UsageError(
            f"{place}{kind.key} = {name!r} would call {of}, which a configuration never does; {OWN_FUNCTION}"
        )
    if file and not (_is_module(module) and attribute):
        raise UsageError(
            f"{place}{kind.key} = {name!r} names no function; write it as package.module:factory"
        )
    if file and not _is_ours(module):
        raise UsageError(
            f"{place}{kind.key} = {name!r} would import {module} and call its {attribute}; if you know what that "
            f"does, add --trust {module}"
        )


def find_factory(
    kind: Kind, name: str, known: Mapping[str, object], *, ours: Collection[object] = ()
) -> Callable[..., Any]:
    """The callable that a plugin's name or `package.module:factory` means.

    `known` are histfl's own of this kind by name; they and `ours` may also be named by their place in histfl.
    """
    allowed = (*known.values(), *ours)
    module = module_of(name)
    if module is None:
        factory = _load_plugin(kind, name, known)
    else:
        check_callable(kind, name)
        factory = _imported(kind, name, module)
    if not callable(factory):
        raise UsageError(
            f"{kind.word} {name!r} is not callable; name a function that returns the {kind.word}"
        )
    meant = _beneath(factory)
    home = _home(meant)
    if _is_ours(home) and any(meant is each for each in allowed):
        return factory
    if of := _part_of_histfl(kind) if _is_ours(home) else _not_callable(home):
        called = f"{home}.{getattr(meant, '__qualname__', type(meant).__qualname__)}"
        raise UsageError(f"{kind.key} = {name!r} would call {called}, {of}; {OWN_FUNCTION}")
    return factory


def _imported(kind: Kind, name: str, module: str) -> object:
    """What the name means; of histfl nothing is imported, since what may be called of it is there already."""
    attribute = name.partition(":")[2]
    if _is_ours(module) and module not in sys.modules:
        raise UsageError(f"{kind.key} = {name!r} would call {_part_of_histfl(kind)}; {OWN_FUNCTION}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may fail in any way
        raise UsageError(
            f"{kind.word} {name!r} cannot be imported: {in_one_line(error)}; check the module and PYTHONPATH"
        ) from error


def _part_of_histfl(kind: Kind) -> str:
    return f"a part of histfl that makes no {kind.word}"


def _beneath(factory: object) -> object:
    """What is called in the end, where arguments were bound to it beforehand."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory


def _home(factory: object) -> str:
    """The module that a callable comes from, however it was found; a method of Python's own types has none."""
    home = getattr(factory, "__module__", None) or type(factory).__module__
    return str(home)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "histfl"


def _not_callable(module: str) -> str | None:
    """Whose module it is, where a configuration calls nothing of it."""
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names:
        return f"Python's own {package}"
    if package in _packages_of_dependencies():
        return f"{package}, which histfl builds on"
    return None


@functools.cache
def _packages_of_dependencies() -> frozenset[str]:
    """The packages of every distribution that histfl, with any of its extras, or one of these requires."""
    seen: set[str] = set()
    to_do = ["histfl"]
    while to_do:
        name = _normal(to_do.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            required = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:  # an extra that is not installed, or another system's
            continue
        wanted = (each for each in required if name == "histfl" or "extra ==" not in each)
        to_do += [found[0] for each in wanted if (found := re.match(r"[\w.-]+", each))]
    return frozenset(
        package
        for package, distributions in metadata.packages_distributions().items()
        if package != "histfl" and not seen.isdisjoint(map(_normal, distributions))
    )


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def plugins(kind: Kind) -> dict[str, metadata.EntryPoint]:
    """The plugins of installed packages, by name."""
    return {found.name: found for found in metadata.entry_points(group=kind.group)}


def _load_plugin(kind: Kind, name: str, known: Mapping[str, object]) -> object:
    found = list(metadata.entry_points(group=kind.group, name=name))
    if not found:
        names = [*known, *plugins(kind)]
        hint = did_you_mean(name, names, f"known: {', '.join(names)}")
        raise UsageError(f"unknown {kind.word} {name!r}; {hint} (or package.module:factory)")
    if len(found) > 1:
        packages = " and ".join(plugin.dist.name if plugin.dist else plugin.value for plugin in found)
        raise UsageError(
            f"{kind.word} {name!r} is a plugin of {packages}; write the one you mean as package.module:factory, "
            f"such as {found[0].value}"
        )
    try:
        return found[0].load()
    except Exception as error:  # somebody's package may fail in any way
        raise UsageError(
            f"{kind.word} {name!r} is the plugin {found[0].value}, which cannot be imported: {in_one_line(error)}; "
            "check its package"
        ) from error


def call_factory(
    factory: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any], *, place: str
) -> Any:
    """Call `factory` with the user's `options` and those of the `offered` values it asks for."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        raise UsageError(f"{place} has no readable signature; name a Python function") from None
    parameters = signature.parameters
    if own := sorted(options.keys() & offered.keys()):
        raise UsageError(f"{place}: {own[0]} = {options[own[0]]!r}: histfl gives it; leave it out")
    arguments = {key: value for key, value in offered.items() if key in parameters} | dict(options)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        takes = [key for key in parameters if key not in offered]
        given = f"; histfl itself gives {', '.join(offered)}" if offered else ""
        raise UsageError(f"{place}: {error}; its options are: {', '.join(takes) or 'none'}{given}") from None
    try:
        return factory(**arguments)
    except HistflError:
        raise
    except Exception as error:  # a user's function may fail in any way
        said = f" with {dict(options)}" if options else ""
        raise UsageError(f"{place}{said} failed: {in_one_line(error)}") from error
