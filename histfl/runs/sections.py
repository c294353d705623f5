"""The sections of a configuration that choose one thing by its name: what the registry has is what the file may say."""

from __future__ import annotations

from dataclasses import replace
from inspect import isclass, signature
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Field, create_model, model_validator

from histfl.settings import Decibels, Named, OneOf, Positive, Settings, Switch, made
from histfl.training.cloud import CLOUD_STEPS, CloudStep
from histfl.training.codecs import CODECS, Codec
from histfl.training.objective import METRICS, OBJECTIVES, Objective
from histfl.wireless.channels import CHANNELS
from histfl.wireless.rates import DEFAULT_ANTENNAS, DEFAULT_BANDWIDTH_HZ
from histfl.wireless.uplinks import UPLINKS


class OptimiserSettings(Settings):
    """The options of `training.optimiser`, but for those that have a key in `[training]`."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class CloudSettings(Named):
    """The cloud: what it makes of the merged model, and that step's own options."""

    name: Annotated[str, OneOf(CLOUD_STEPS)] = Field(
        default="replace", description="`replace`: the merged model is the new one"
    )

    def made(self) -> CloudStep:
        return made("cloud", CLOUD_STEPS, self.name, self.options)


class CodecSettings(Named):
    """The codec: what clients turn their updates into before they send them, and its own options."""

    name: Annotated[str, OneOf(CODECS)] = Field(default="plain", description="`plain`: numbers as they are")

    def made(self) -> Codec:
        return made("codec", CODECS, self.name, self.options)


class ObjectiveSettings(Named):
    """The objective: what is learnt, and that objective's own options."""

    name: Annotated[str, OneOf(OBJECTIVES)] = Field(
        default="classification", description="`classification`: one class a sample"
    )
    metrics: tuple[Annotated[str, OneOf(METRICS)], ...] = Field(
        default=(), description="of the test set, in every record beside the objective's own"
    )

    def made(self) -> Objective:
        """The objective, with the further metrics."""
        objective = made("objective", OBJECTIVES, self.name, self.options)
        further = {name: METRICS[name]() for name in self.metrics}
        return replace(objective, metrics={**objective.metrics, **further})


class _Options(Settings):
    model_config = ConfigDict(strict=True)


class UplinkSettings(Settings):
    """The uplink: the radio from the clients to their edge."""

    model_config = ConfigDict(extra="allow")  # the options of uplinks that have some of their own

    name: Annotated[str, OneOf(UPLINKS)] = Field(
        default=next(iter(UPLINKS)),
        description="shared by frequency, by time, over the air, or free and instant",
    )
    bandwidth_hz: Positive = Field(default=DEFAULT_BANDWIDTH_HZ, description="of a cell")
    antennas: Annotated[int, Field(strict=True, ge=1, le=10_000)] = Field(
        default=DEFAULT_ANTENNAS, description="of an edge"
    )
    bits_per_parameter: Positive | None = Field(
        default=None,
        description="in megabytes, and in seconds over fdma and tdma (unset: as the model's numbers have, 32 for float32)",
    )
    channel: Annotated[str, OneOf(CHANNELS)] | str = Field(
        default="rayleigh", description="how channels are drawn, or `package.module:factory` of your own"
    )
    k_factor_db: Decibels = Field(default=6.0, description="of the rician channel")
    double_count_clients: Switch = Field(
        default=False, description="fdma, tdma: the paper's literal latency, growing as clients^2"
    )
    noise_scales_with_band: Switch = Field(
        default=False, description="fdma: a share of the band has a share of the noise"
    )
    paper_power: Switch = Field(
        default=False, description="aircomp: the paper's power scaling, which leaves most of it unused"
    )
    normalise: Switch = Field(default=True, description="aircomp: send updates of unit RMS")
    signal: Literal["equivalent", "simulated"] = Field(
        default="equivalent", description="aircomp: noise on the mean, or every signal"
    )

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The further keys, of any uplink, with the kinds of their values."""
        makers = [kind.make for kind in UPLINKS.values()]
        hints = {
            make: get_type_hints(make.__init__ if isclass(make) else make, include_extras=True)
            for make in makers
        }
        return {
            key: hints[make].get(key, Any)
            for make in makers
            for key in signature(make).parameters
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
        fields: dict[str, Any] = {key: (kind, None) for key, kind in cls.options().items()}
        options = create_model("Options", __base__=_Options, **fields)
        found = options.model_validate({key: given[key] for key in own})
        return {key: getattr(found, key) if key in own else value for key, value in given.items()}
