"""`histfl plan`: from what a user names to plans, for one network or along a varied setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histfl.errors import UsageError, did_you_mean
from histfl.factories import check_trust
from histfl.models import MODELS
from histfl.network import read_description
from histfl.planning.cut import cut_model
from histfl.planning.network import NetworkPlan, check_size, plan_network
from histfl.runs.config import Config
from histfl.runs.loading import apply_settings, load_config, preset_names
from histfl.settings import checked, read_toml

PROFILES = ("uniform", "paper")


@dataclass(frozen=True)
class PlanRequest:
    """What to plan. `source` is a network file, a profile, or a configuration (file or preset).

    A network file or a profile takes all other settings from the preset of the model's name, if there is
    one. `draws` None: 200, fewer with more than 200 cells. Of a file's own modules, `trusted` ones may be called.
    """

    source: str
    model: str | None = None
    settings: tuple[str, ...] = ()
    draws: int | None = None
    input_shape: tuple[int, ...] | None = None
    classes: int | None = None
    trusted: tuple[str, ...] = ()

    def config(self, *further: str) -> Config:
        """The configuration to plan, changed by `settings` and then by `further` ones."""
        check_trust(self.trusted)
        settings = [*self.settings, *further]
        tables, own = self._tables()
        typed = apply_settings(tables, [*own, *settings])
        network = tables.setdefault("network", {})
        if str(network.get("profile")).endswith(".toml"):
            described = read_description(Path(network["profile"]))
            network.setdefault("cells", described.num_cells)
            network.setdefault("clients", described.num_clients)
        config = checked(Config, tables, f"{self.source} with --set" if settings else self.source)
        return config.read_from(self.source, typed=typed, trusted=self.trusted)

    def _tables(self) -> tuple[dict[str, Any], list[str]]:
        """The configuration that the others start from, and what a network file or profile changes in it."""
        model = self.model or "mlp"
        if self.source in preset_names() or _is_configuration(self.source):
            base, own = load_config(self.source), []
        else:
            base = load_config(model) if model in MODELS and model in preset_names() else Config()
            own = [f"network.profile={self.source}"]
        tables: dict[str, Any] = base.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        if own:  # the preset's are the paper's
            tables.get("network", {}).pop("cycles_per_step", None)
        if self.model is not None and self.model != base.model.name:
            own.append(f"model.name={self.model}")
        return tables, own


@dataclass(frozen=True)
class Variation:
    """Plans along one setting: `values` and `plans` are of one length."""

    setting: str
    values: tuple[str, ...]
    plans: tuple[NetworkPlan, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "points": [
                {"value": float(value), **plan.answer_json()}
                for value, plan in zip(self.values, self.plans, strict=True)
            ],
        }


@dataclass(frozen=True)
class Planning:
    """The answer to a request: its plan, and the plans along a varied setting."""

    plan: NetworkPlan
    variation: Variation | None = None

    def as_json(self) -> dict[str, Any]:
        varied = {} if self.variation is None else {"vary": self.variation.as_json()}
        return {**self.plan.as_json(), **varied}


Told = Callable[[str], None]  # what is going on


def make_plan(request: PlanRequest, vary: str | None = None, at: Told = lambda doing: None) -> Planning:
    """The plan as requested and, with `vary` = `key=a,b,c`, one for each value.

    The key is `section.key`, or the key alone where one section has it. `at` is told what is going on.
    """
    if vary is None:
        return Planning(_plans(request, [request.config()], at)[0])
    setting, values = _variation(vary)
    configs = [request.config()]
    for value in values:
        at(f"reading the settings of value {len(configs):,} of {len(values):,}")
        configs.append(request.config(f"{setting}={value}"))
    first, *others = _plans(request, configs, at)
    return Planning(first, Variation(setting, values, tuple(others)))


def _plans(request: PlanRequest, configs: Sequence[Config], at: Told) -> list[NetworkPlan]:
    plans: list[NetworkPlan] = []
    before: object = None
    for number, config in enumerate(configs, start=1):
        place = f"plan {number:,} of {len(configs):,}: " if len(configs) > 1 else ""
        decisive = (config.model, config.method, config.data.name, config.training.batch_size)
        if decisive != before:  # tracing a model takes longer than planning it
            check_size(config, request.draws)  # before the model is cut, which may take long
            at(f"{place}cutting the model")
            cut = cut_model(config, input_shape=request.input_shape, classes=request.classes)
            before = decisive
        at(f"{place}drawing clients and channels")
        plans.append(plan_network(config, cut, request.draws, lambda doing: at(place + doing)))  # noqa: B023
    return plans


def _variation(text: str) -> tuple[str, tuple[str, ...]]:
    key, _, listed = text.partition("=")
    values = tuple(value.strip() for value in listed.split(",") if value.strip())
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = []
    if not numbers:
        raise UsageError(f"--vary {text!r}: write it as key=a,b,c with numbers, for example cells=2,4,6,8")
    return _full_key(key.strip()), values


def _is_configuration(source: str) -> bool:
    """Whether a file holds a configuration: sections alone, where a network file has a list of cells."""
    if source in PROFILES:
        return False
    if not Path(source).is_file():
        raise UsageError(
            f"{source!r} is no file; give a NETWORK.toml, a configuration, a profile ({', '.join(PROFILES)}) "
            f"or a preset ({', '.join(preset_names())})"
        )
    tables = read_toml(Path(source))
    return (
        bool(tables)
        and "cells" not in tables
        and all(isinstance(table, Mapping) for table in tables.values())
    )


def _full_key(key: str) -> str:
    if "." in key:
        return key
    keys = {
        name: getattr(field.annotation, "model_fields", {}) for name, field in Config.model_fields.items()
    }
    sections = [name for name, fields in keys.items() if key in fields]
    if len(sections) == 1:
        return f"{sections[0]}.{key}"
    if sections:
        raise UsageError(f"--vary {key}: write one of {', '.join(f'{each}.{key}' for each in sections)}")
    names = [name for fields in keys.values() for name in fields]
    hint = did_you_mean(key, names, "write it as section.key, for example network.cells")
    raise UsageError(f"--vary {key}: no setting has this name; {hint}")


def parse_shape(text: str) -> tuple[int, ...]:
    """`1,28,28` as a shape."""
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise UsageError(f"--input-shape {text!r}: write a sample's shape as whole numbers, such as 1,28,28")
    return shape
