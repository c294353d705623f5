"""Sections that choose one thing by its name: what the registry has is what the file may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from histfl.choices import OneOf, made
from histfl.settings import Named, Settings
from histfl.training.cloud import CLOUD_STEPS, CloudStep
from histfl.training.codecs import CODECS, Codec
from histfl.training.objective import METRICS, OBJECTIVES, Objective


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
