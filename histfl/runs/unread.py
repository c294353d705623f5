"""Settings that only some choices read, and those that nothing in a run does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from histfl.data import DATASETS, READ_CONCENTRATIONS
from histfl.runs.config import Config
from histfl.runs.sections import UplinkSettings
from histfl.settings import GIVEN
from histfl.sizing import POLICIES, UNIFORM
from histfl.training.methods import METHODS
from histfl.training.optimisers import OPTIMISERS, SHARED
from histfl.training.schedules import SCHEDULES, keys_of
from histfl.wireless.channels import CHANNELS
from histfl.wireless.uplinks import UPLINKS

Reading = tuple[str, Collection[str], tuple[str, ...]]


def read_with() -> list[Reading]:
    """Settings that only some choices read: the choice, its values that do, the settings."""
    texts = [name for name, source in DATASETS.items() if source.load_text]
    cutting = [*(name for name, method in METHODS.items() if method.scheme != "none"), GIVEN]
    capped = [*(name for name in POLICIES if name != UNIFORM), GIVEN]
    rician = [name for name, channel in CHANNELS.items() if "k_factor_db" in signature(channel).parameters]
    return [
        ("data.split", READ_CONCENTRATIONS, ("data.cell_concentration", "data.client_concentration")),
        ("data.name", texts, ("data.strip", "data.max_length", "data.tokenizer")),
        *_read_by_methods(),
        ("method.name", cutting, ("method.scale",)),
        ("method.sizes", capped, ("method.cap",)),
        ("network.cycles_per_step", ("auto",), ("network.operations_per_cycle",)),
        *_read_by_uplinks(),
        ("uplink.channel", rician, ("uplink.k_factor_db",)),
        *_read_by_optimisers(),
        *_read_by_schedules(),
    ]


def _read_by_methods() -> Iterator[Reading]:
    """What the dealers of units take."""
    for key in dict.fromkeys(key for method in METHODS.values() for key in method.reads):
        yield (
            "method.name",
            [*(name for name, method in METHODS.items() if key in method.reads), GIVEN],
            (f"method.{key}",),
        )


def _read_by_uplinks() -> Iterator[Reading]:
    """But for the bits of a parameter, which every run counts its megabytes by, and what the channel reads. An uplink of
    the user's own has fields by any of these names."""
    of_section = [
        key for key in UplinkSettings.known_keys() if key not in ("name", "bits_per_parameter", "k_factor_db")
    ]
    of_network = dict.fromkeys(key for kind in UPLINKS.values() for key in kind.network)
    for key in of_section:
        readers = [name for name, kind in UPLINKS.items() if key in kind.reads]
        yield "uplink.name", [*readers, GIVEN], (f"uplink.{key}",)
    for key in of_network:
        yield (
            "uplink.name",
            [*(name for name, kind in UPLINKS.items() if key in kind.network), GIVEN],
            (f"network.{key}",),
        )


def _read_by_optimisers() -> Iterator[Reading]:
    """Of the settings that optimisers share; an optimiser of the user's own may read any."""
    for key in SHARED:
        takers = [name for name, make in OPTIMISERS.items() if key in signature(make).parameters]
        yield "training.optimiser", [*takers, GIVEN], (f"training.{key}",)


def _read_by_schedules() -> Iterator[Reading]:
    for key in dict.fromkeys(key for name in SCHEDULES for key in keys_of(name)):
        yield "training.schedule", [name for name in SCHEDULES if key in keys_of(name)], (f"training.{key}",)


def unread(configs: Sequence[Config]) -> list[str]:
    """The settings that differ from their defaults and that none of the runs reads, each with the reason.

    They are no mistake where runs differ in the choice, as in a comparison; where none reads one, its user
    should be told.
    """
    reasons = [_unread(config) for config in configs]
    return [reason for key, reason in reasons[0].items() if all(key in others for others in reasons)]


def _unread(config: Config) -> dict[str, str]:
    """By the setting's key."""
    every, changed = (_flat(config.model_dump(mode="json", exclude_defaults=only)) for only in (False, True))
    return {
        key: f"{key} = {changed[key]!r} is not read with {choice} = {every[choice]!r}"
        for choice, values, keys in read_with()
        if every[choice] not in values
        for key in keys
        if key in changed
    }


def _flat(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, keys in tables.items() for key, value in keys.items()}
