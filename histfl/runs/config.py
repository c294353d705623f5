"""A run's settings: the TOML file, `--set` and Python share these keys and defaults."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Collection, Mapping
from typing import Any, Self

import tomli_w
from pydantic import PrivateAttr, field_validator, model_validator

from histfl.errors import HistflError
from histfl.factories import KINDS, check_callable, module_of
from histfl.runs.plain_sections import (
    DataSettings,
    EvaluateSettings,
    MethodSettings,
    ModelSettings,
    NetworkSettings,
    TheorySettings,
    TrainingSettings,
)
from histfl.runs.sections import (
    CloudSettings,
    CodecSettings,
    ObjectiveSettings,
    OptimiserSettings,
    PrivacySettings,
    UplinkSettings,
)
from histfl.settings import GIVEN, Settings
from histfl.wireless.clock import CYCLES_PER_STEP
from histfl.wireless.uplinks import UPLINKS, kind_of


class Config(Settings):
    """Everything that decides a run's numbers."""

    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    network: NetworkSettings = NetworkSettings()
    training: TrainingSettings = TrainingSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    method: MethodSettings = MethodSettings()
    uplink: UplinkSettings = UplinkSettings()
    codec: CodecSettings = CodecSettings()
    cloud: CloudSettings = CloudSettings()
    privacy: PrivacySettings = PrivacySettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    theory: TheorySettings = TheorySettings()
    evaluate: EvaluateSettings = EvaluateSettings()

    # By a key that names a callable: the file that does so, where the user has not. In no dump and no fingerprint.
    _from_file: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _theory_of_all_cells(self) -> Config:
        if self.theory.every and self.network.active_cells != "all":
            raise ValueError(
                f"theory.every = {self.theory.every} with network.active_cells = {self.network.active_cells}: the "
                "theorems are about networks in which every cell trains in every round; leave out one of the two"
            )
        return self

    @model_validator(mode="after")
    def _bits_are_sent(self) -> Config:
        if kind_of(self.uplink.name).analog and self.codec.name != CodecSettings().name:
            raise ValueError(
                f"codec.name = {self.codec.name!r} with uplink.name = {self.uplink.name!r}: what the air adds up are "
                "amplitudes, not bits; leave out the codec, or send over fdma or tdma"
            )
        return self

    @model_validator(mode="after")
    def _privacy_holds(self) -> Config:
        if (clip := self.privacy.clip) is None:
            return self
        reasons = {
            "training.weights = 'samples': a client of many samples would be hidden by no more noise; use uniform": (
                self.training.weights == "samples"
            ),
            "privacy.where = 'client' and network.dropout above 0: lost updates take their part of the noise along; "
            "use where = 'edge'": self.privacy.where == "client" and self.network.dropout > 0,
            f"privacy.where = 'client' and codec.name = {self.codec.name!r}: what the codec makes of single updates takes "
            "noise away that the sum is counted with; leave out the codec, or use where = 'edge'": (
                self.privacy.where == "client" and self.codec.name != CodecSettings().name
            ),
            f"uplink.name = {self.uplink.name!r} and normalised signals: how they are scaled tells of the updates "
            "without noise; set uplink.normalise = false": kind_of(self.uplink.name).analog
            and self.uplink.normalise,
            f"uplink.name = {GIVEN!r}: how much one client changes what an uplink of one's own gives is not known, and so not "
            f"hidden; use one of {', '.join(name for name, kind in UPLINKS.items() if not kind.analog)}": (
                self.uplink.name == GIVEN
            ),
            "theory.every above 0: its constants tell of the clients' data without noise; leave it out": (
                self.theory.every > 0
            ),
        }
        for reason, holds in reasons.items():
            if holds:
                raise ValueError(f"privacy.clip = {clip:g} with {reason}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _only_shares_have_default_targets(cls, tables: Any) -> Any:
        chosen = tables.get("objective") if isinstance(tables, dict) else None
        training = tables.get("training", {}) if isinstance(chosen, dict) else None
        if not isinstance(training, dict) or "targets" in training:
            return tables
        try:
            aim = ObjectiveSettings.model_validate(chosen).made().aim
        except (ValueError, HistflError):  # which is said where the section is checked
            return tables
        return tables if aim.is_share else {**tables, "training": {**training, "targets": ()}}

    @model_validator(mode="after")
    def _targets_are_of_the_goal(self) -> Config:
        if misfit := self.objective.made().misfit(self.training.targets):
            raise ValueError(misfit)
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _sections_are_tables(cls, value: Any) -> Any:
        if not isinstance(value, dict | Settings):
            raise ValueError("a section is a table of keys, as in [training]")
        return value

    def read_from(self, file: str, *, typed: Collection[str] = (), trusted: Collection[str] = ()) -> Self:
        """The same settings, of which the keys not in `typed` stand in `file`: these name callables of `trusted`
        modules alone."""
        config, needless = self.model_copy(), {None, *trusted}
        config._from_file = {
            key: file for key in KINDS if key not in typed and module_of(self._named(key)) not in needless
        }
        return config

    def to_call(self, key: str) -> str:
        """The name under `key`, such as "model.name", for the one who calls what it names; a UsageError where a
        configuration must not."""
        name = self._named(key)
        check_callable(KINDS[key], name, file=self._from_file.get(key))
        return name

    def _named(self, key: str) -> str:
        section, _, setting = key.partition(".")
        return str(getattr(getattr(self, section), setting))

    def identity(self) -> dict[str, dict[str, Any]]:
        """The settings that decide a round's numbers: all but when to end, which targets to report and what metrics are
        called."""
        return without(self.model_dump(mode="json", exclude_none=True), REPORTING)

    def fingerprint(self) -> str:
        """A checksum of the identity: runs that share it have the same rounds, as far as both go.

        It is of what differs from the defaults, so that a setting added later leaves older runs what they are;
        a default that changed later counts as what it first was.
        """
        chosen = without(self.model_dump(mode="json", exclude_defaults=True), REPORTING)
        for (section, key), first in FIRST_DEFAULTS.items():
            table = chosen.pop(section, {})
            value = table[key] = getattr(getattr(self, section), key)
            if value == first:
                del table[key]
            if table:
                chosen[section] = table
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    def to_toml(self) -> str:
        """The configuration as a TOML file, every key with its value; a key that is unset is left out."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


FIRST_DEFAULTS = {("network", "cycles_per_step"): CYCLES_PER_STEP}
"""Defaults, by section and key, that were others before."""

REPORTING = (
    *(("training", key) for key in ("rounds", "targets", "stop_at_targets", "patience")),
    ("objective", "titles"),
)


def without(
    tables: Mapping[str, Mapping[str, Any]], dropped: Collection[tuple[str, str]]
) -> dict[str, dict[str, Any]]:
    """The tables of a configuration less the (section, key) pairs in `dropped`."""
    return {
        section: {key: value for key, value in keys.items() if (section, key) not in dropped}
        for section, keys in tables.items()
    }


def rerun_note(config: Config) -> str:
    """A comment before the keys of a run of `histfl.train`; nothing before those of a run that a file describes."""
    if config.data.name != "custom":
        return ""
    given = [f"the model (a {config.model.name})", "the training and test data"]
    tables = config.model_dump(mode="json", exclude_none=True)
    for section, keys in tables.items():
        for key, value in keys.items():
            if value == GIVEN:
                what = {"profile": "network", "name": section}.get(key, key)
                kind = keys.get("of") or tables.get(key, {}).get("of")
                given.append(f"the {what} ({kind})" if kind else f"the {what}")
    said = (
        f"Made by histfl.train. Not in this file, and so not run again from it: {', '.join(given)}, and a loss where one "
        "was given. Repeat the run by the same call of histfl.train, or go on with it by that call with resume=True. For "
        "`histfl run` name factories in this file instead: model.name and data.name = 'package.module:function', and "
        "network.profile = 'NETWORK.toml'."
    )
    return "".join(f"# {line}\n" for line in textwrap.wrap(said, 108)) + "\n"
