"""Configurations from presets and TOML files, changed by `section.key=value` settings."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from histfl.errors import UsageError
from histfl.factories import check_trust
from histfl.runs.config import Config
from histfl.runs.plain_sections import DEFAULT_MODEL, DEFAULT_PROFILE
from histfl.settings import checked, parse_toml, read_toml
from histfl.wireless.clock import CYCLES_PER_STEP


def preset_names() -> list[str]:
    """The configurations that come with the package."""
    folder = resources.files("histfl.runs") / "presets"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_config(source: str, settings: Sequence[str] = (), trusted: Collection[str] = ()) -> Config:
    """A preset's or a file's configuration, changed by `section.key=value` settings.

    A relative network file lies beside the file that names it, one in a setting below the working folder. A
    `package.module:factory` of the file is called where the module is `trusted`; one in a setting is the user's word.
    """
    check_trust(trusted)
    if source in preset_names():
        text = (resources.files("histfl.runs") / "presets" / f"{source}.toml").read_text("utf-8")
        tables, place = tomllib.loads(text), f"preset {source}"
    elif Path(source).is_file():
        tables, place = read_toml(Path(source)), source
        _locate_profile(tables, Path(source).parent)
    else:
        raise UsageError(
            f"{source!r} is neither a file nor a preset; the presets are: {', '.join(preset_names())}"
        )
    typed = apply_settings(tables, settings)
    _locate_profile(tables, Path())
    config = checked(Config, tables, f"{place} with --set" if settings else place)
    return config.read_from(place, typed=typed, trusted=trusted)


def _locate_profile(tables: Mapping[str, Any], folder: Path) -> None:
    """A network file by its absolute path, so that the configuration means the same wherever it is read."""
    network = tables.get("network")
    if not isinstance(network, dict):
        return
    profile = network.get("profile")
    if isinstance(profile, str) and profile.endswith(".toml"):
        network["profile"] = os.path.abspath(folder / profile)


def apply_settings(tables: dict[str, Any], settings: Sequence[str]) -> set[str]:
    """Put `section.key=value` settings into `tables`, in their order, and return their keys; a value is TOML, or
    else plain text.

    Another model than the tables' own takes none of their options, and another network file none of their
    numbers of cells and clients. Neither takes the paper's cycles of a step. What the settings give stays.
    """
    parsed = [_parsed(setting) for setting in settings]
    given = {(section, key): value for section, key, value in parsed}
    model, network = tables.get("model"), tables.get("network")
    name, profile = given.get(("model", "name")), given.get(("network", "profile"))
    if file := str(profile).endswith(".toml"):
        profile = os.path.abspath(str(profile))
    other_model = isinstance(model, dict) and name not in (None, model.get("name", DEFAULT_MODEL))
    if other_model:
        tables["model"] = {}
    if isinstance(network, dict):
        other_network = profile not in (None, network.get("profile", DEFAULT_PROFILE))
        dropped = {"cells", "clients"} if other_network and file else set()
        if (other_model or other_network) and network.get("cycles_per_step") == CYCLES_PER_STEP:
            dropped.add("cycles_per_step")
        tables["network"] = {key: value for key, value in network.items() if key not in dropped}
    for setting, (section, key, value) in zip(settings, parsed, strict=True):
        table = tables.setdefault(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {setting!r}: {section!r} is not a section")
        table[key] = value
    return {f"{section}.{key}" for section, key in given}


def _parsed(setting: str) -> tuple[str, str, Any]:
    """Section, key and value."""
    path, equals, text = setting.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and key):
        raise UsageError(f"--set {setting!r}: write it as section.key=value, for example training.rounds=20")
    try:
        return section, key, parse_toml(f"value = {text}")["value"]
    except ValueError:
        return section, key, text.strip()
