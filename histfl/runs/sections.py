"""The sections of a configuration that choose one thing by its name: what the registry has is what the file may say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal, NoReturn

from pydantic import ConfigDict, Field, field_validator, model_validator

from histfl.errors import UsageError, did_you_mean, shown
from histfl.settings import (
    GIVEN,
    SMALLEST,
    Decibels,
    Extensible,
    Named,
    NonNegative,
    OneOf,
    Positive,
    Settings,
    Switch,
    check_given,
    made,
)
from histfl.training.cloud import CLOUD_STEPS, CloudStep
from histfl.training.codecs import CODECS, Codec
from histfl.training.metrics import METRICS, FunctionMetric, is_title
from histfl.training.objective import LOSS, Objective
from histfl.training.objectives import OBJECTIVES
from histfl.training.privacy import Privacy
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

    name: Annotated[str, OneOf(CLOUD_STEPS, also=(GIVEN,))] = Field(
        default="replace", description="one of the cloud steps below, or `given` in Python"
    )

    def made(self) -> CloudStep:
        check_given("cloud.name", "cloud", self.name, CLOUD_STEPS)
        return made("cloud", CLOUD_STEPS, self.name, self.options)


class CodecSettings(Named):
    """The codec: what clients turn their updates into before they send them, and its own options."""

    name: Annotated[str, OneOf(CODECS, also=(GIVEN,))] = Field(
        default="plain",
        description="one of the codecs below, or `given` in Python; over the air `plain` alone",
    )

    def made(self) -> Codec:
        check_given("codec.name", "codec", self.name, CODECS)
        return made("codec", CODECS, self.name, self.options)


class PrivacySettings(Settings):
    """Differential privacy of clients: what one of them sends is bounded, and noise hides what it was."""

    clip: Positive | None = Field(
        default=None,
        description="longest update of a client over an edge round; longer ones are scaled down (unset: no privacy)",
    )
    noise_multiplier: NonNegative = Field(
        default=0.0, description="standard deviation of the noise on the sum of a cell's updates, in clips"
    )
    where: Literal["edge", "client"] = Field(
        default="edge",
        description="who adds the noise: an edge that is trusted, or the clients, each its part",
    )
    delta: Annotated[float, Field(strict=True, ge=SMALLEST, lt=1)] = Field(
        default=1e-5, description="at which the summary states epsilon"
    )

    def made(self) -> Privacy | None:
        return None if self.clip is None else Privacy(self.clip, self.noise_multiplier, self.where)

    @model_validator(mode="after")
    def _noise_is_of_a_clip(self) -> PrivacySettings:
        if self.noise_multiplier and self.clip is None:
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier:g} without clip: noise is counted in clips, which bound what "
                "it has to hide; set clip, to the usual norm of an update"
            )
        return self


class ObjectiveSettings(Named):
    """The objective: what is learnt, and that objective's own options."""

    name: Annotated[str, OneOf(OBJECTIVES, also=(GIVEN,))] = Field(
        default="classification",
        description="what is learnt: a class, numbers, labels, a class a pixel or a token a place; or `given` in Python",
    )
    metrics: tuple[Annotated[str, OneOf(METRICS)], ...] = Field(
        default=(), description="of the test set, in every record beside the objective's own"
    )
    goal: str | None = Field(
        default=None,
        description="what targets are values of: one of the metrics, or `loss` (unset: the objective's own goal)",
    )
    maximised: tuple[str, ...] = Field(
        default=(), description="metrics given in Python of which the highest value is best"
    )
    minimised: tuple[str, ...] = Field(
        default=(), description="metrics given in Python of which the lowest value is best"
    )
    titles: dict[str, str] = Field(
        default={},
        description="of metrics given in Python: what they are called, where that is not their name",
    )

    @field_validator("titles")
    @classmethod
    def _in_words(cls, titles: dict[str, str]) -> dict[str, str]:
        for name, title in titles.items():
            if not is_title(title):
                raise ValueError(f"{shown(name)} = {shown(title)}: a title is a few words in one line")
        return titles

    @property
    def given(self) -> str:
        """A key whose values are objects of Python; empty where none is."""
        if self.name == GIVEN:
            return "name"
        return next((key for key in ("maximised", "minimised") if getattr(self, key)), "")

    def made(self) -> Objective:
        """The objective, with the further metrics; what was given in Python by name and direction alone."""
        if self.name == GIVEN:
            objective = Objective(_not_here, {}, LOSS)
        else:
            objective = made("objective", OBJECTIVES, self.name, self.options)
        further = {name: METRICS[name]() for name in self.metrics if name not in objective.metrics}
        told = {
            name: FunctionMetric(self.titles.get(name, name), _not_here, higher)
            for names, higher in ((self.maximised, True), (self.minimised, False))
            for name in names
        }
        metrics, goal = {**objective.metrics, **further, **told}, self.goal or objective.goal
        if goal != LOSS and goal not in metrics:
            hint = did_you_mean(goal, [LOSS, *metrics], f"use {', '.join([*metrics, LOSS])}")
            raise UsageError(
                f"objective.goal = {goal!r} is no metric of this run; {hint} (objective.metrics adds more)"
            )
        return replace(objective, metrics=metrics, goal=goal)


def _not_here(outputs: Any, targets: Any) -> NoReturn:
    raise UsageError(
        "an objective or metric given in Python is not in a configuration; give it to histfl.train"
    )


class UplinkSettings(Extensible):
    """The uplink: the radio from the clients to their edge."""

    name: Annotated[str, OneOf(UPLINKS, also=(GIVEN,))] = Field(
        default=next(iter(UPLINKS)),
        description="shared by frequency, by time, over the air, or free and instant; or `given` in Python",
    )
    bandwidth_hz: Positive = Field(default=DEFAULT_BANDWIDTH_HZ, description="of a cell")
    antennas: Annotated[int, Field(strict=True, ge=1, le=10_000)] = Field(
        default=DEFAULT_ANTENNAS, description="of an edge"
    )
    bits_per_parameter: Positive | None = Field(
        default=None,
        description="in megabytes, and in seconds over fdma and tdma (unset: as the model's numbers have, 32 for float32)",
    )
    channel: Annotated[str, OneOf(CHANNELS, also=(GIVEN,))] | str = Field(
        default="rayleigh",
        description="how channels are drawn, `given` in Python, or `package.module:factory` of your own",
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
    def makers(cls) -> Iterable[Callable[..., Any]]:
        return (kind.make for kind in UPLINKS.values())
