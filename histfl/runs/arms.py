"""An arm of an experiment: one run to carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from histfl.runs.config import Config


@dataclass(frozen=True)
class Arm:
    """A run's name, its configuration, and by `labels` what tells it from the other arms."""

    name: str
    config: Config
    labels: Mapping[str, Any] = field(default_factory=dict)
