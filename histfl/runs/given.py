"""What is given in Python: objects of the user's own, and what a configuration says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, TypeVar

import numpy as np
import torch

from histfl.errors import UsageError, did_you_mean, shown
from histfl.runs.schema import Round
from histfl.runs.sections import UplinkSettings
from histfl.settings import GIVEN
from histfl.sizing import POLICIES, Policy
from histfl.sizing.policies import check_policy
from histfl.training.corrections import CORRECTIONS, MakeCorrection, check_correction
from histfl.training.dealers import Method
from histfl.training.methods import METHODS
from histfl.training.metrics import LONGEST_TITLE, METRICS, FunctionMetric, Metric, bounds_of, is_title
from histfl.training.objective import LOSS, Objective
from histfl.training.optimisers import OPTIMISERS, SHARED, Optimiser, check_optimiser
from histfl.training.schedules import SCHEDULES, Schedule, check_schedule
from histfl.wireless.channels import CHANNELS, Channel, check_channel
from histfl.wireless.clock import Radio
from histfl.wireless.uplinks import UPLINKS, check_uplink

FORMS = (
    "give a table such as {'f1': f}, {'distance': (f, 'min')} or {'top2': TopTwo()}, or a list of known names"
)
DIRECTIONS = {"max": True, "min": False}
Tables = dict[str, dict[str, Any]]
Chosen = TypeVar("Chosen")


def named(section: str, chosen: object) -> dict[str, Any]:
    """A section's table from a choice by name or by table."""
    return {"name": chosen} if isinstance(chosen, str) else table_of(section, chosen, "a name, or ")


def table_of(section: str, chosen: object, others: str = "") -> dict[str, Any]:
    if not isinstance(chosen, Mapping):
        raise UsageError(f"train({section}={shown(chosen)}): give {others}a table of the section [{section}]")
    return dict(chosen)


def named_or_own(
    section: str, chosen: object, registry: Mapping[str, object], check: Callable[[Any, str], Chosen]
) -> tuple[dict[str, Any], Chosen | None]:
    """A section's table from a choice by name, by table or as an object, and the object itself where it is one."""
    if isinstance(chosen, str | Mapping):
        return named(section, chosen), None
    own = check(_no_class(section, chosen), f"train({section}={shown(chosen)})")
    return _described(chosen, registry), own


def given_method(given: object, settings: Mapping[str, Any]) -> tuple[dict[str, Any], Method | None]:
    """The table [method], and the method itself where it is an object."""
    if isinstance(given, Method):
        known = [name for name, method in METHODS.items() if method == given]
        return {"name": known[0] if known else GIVEN}, given
    if not isinstance(given, str | Mapping):
        raise UsageError(
            f"train(method={shown(given)}): give a name, a table of the section [method], or a Method "
            "(histfl.training.dealers)"
        )
    table = named("method", given)
    _said_once("method", table, settings)
    return table, None


def given_optimiser(given: object, settings: Mapping[str, Any]) -> tuple[Tables, Optimiser | None]:
    """What the configuration says of an optimiser, and the optimiser itself where it is an object."""
    own, kind = None, given if isinstance(given, type) else type(given)
    if issubclass(kind, torch.optim.Optimizer):
        raise UsageError(
            f"train(optimiser={kind.__name__}): torch's optimisers step the parameters of one model, and here every client "
            f"has its own; give a name, {' or '.join(OPTIMISERS)}, or a table such as {{'name': 'adam', 'beta1': 0.8}}"
        )
    if isinstance(given, str):
        options: dict[str, Any] = {"name": given}
    elif isinstance(given, Mapping):
        options = {"name": "sgd"} | dict(given)
    else:
        own = check_optimiser(_no_class("optimiser", given), f"train(optimiser={shown(given)})")
        options = _described(given, OPTIMISERS)
    training = {"optimiser": options.pop("name")}
    training |= {key: options.pop(key) for key in SHARED if key in options}
    _said_once("optimiser", training, settings)
    return {"training": training} | ({"optimiser": options} if options else {}), own


def given_schedule(given: object, settings: Mapping[str, Any]) -> tuple[dict[str, Any], Schedule | None]:
    """The keys of [training] that a schedule's name or table has, and the schedule itself where it is an object."""
    own = None
    if isinstance(given, str | Mapping):
        table = named("schedule", given)
    else:
        own = check_schedule(_no_class("schedule", given), f"train(schedule={shown(given)})")
        table = _described(given, SCHEDULES)
        if table["name"] == GIVEN:
            table = {"name": GIVEN}
    training = {"schedule" if key == "name" else key: value for key, value in table.items()}
    _said_once("schedule", training, settings)
    return training, own


def given_correction(given: object) -> tuple[dict[str, Any], MakeCorrection | None]:
    """What [training] says of a correction, and what makes it where that is no name."""
    if isinstance(given, str):
        return {"correction": given}, None
    if not isinstance(given, type):
        raise UsageError(
            f"train(correction={shown(given)}): give a name, or a class like histfl.training.corrections.Mtgc"
        )
    make = check_correction(given, f"train(correction={given.__name__})")
    known = [name for name, registered in CORRECTIONS.items() if registered is make]
    return {"correction": known[0] if known else GIVEN}, make


def given_uplink(given: object) -> tuple[dict[str, Any], Radio | None, Channel | None]:
    """The table [uplink], and the uplink itself, or else the channel in its table, where that is an object."""
    if isinstance(given, str | Mapping):
        table = named("uplink", given)
        channel = table.get("channel")
        if channel is None or isinstance(channel, str):
            return table, None, None
        own = check_channel(_no_class("uplink.channel", channel), f"train(uplink.channel={shown(channel)})")
        said = _channel_settings(own)
        _said_once("channel", {key: value for key, value in said.items() if key != "channel"}, table)
        return table | said, None, own
    uplink = check_uplink(_no_class("uplink", given), f"train(uplink={shown(given)})")
    for name, kind in UPLINKS.items():
        if type(given) is kind.of and (settings := _equal(given, kind.make)) is not None:
            if "channel" in settings:
                settings |= _channel_settings(settings["channel"])
            return {"name": name} | settings, uplink, None
    return _described(given, UPLINKS), uplink, None


def _channel_settings(channel: Any) -> dict[str, Any]:
    """The keys of [uplink] that say which channel it is."""
    for name, make in CHANNELS.items():
        if type(channel) is make and (settings := _equal(channel, make)) is not None:
            return {"channel": name} | settings
    return {"channel": GIVEN}


def _equal(given: Any, make: Callable[..., Any]) -> dict[str, Any] | None:
    """The settings of [uplink] of which `make` gives an object that equals the one that is given, if there are such."""
    known = [key for key in signature(make).parameters if key in UplinkSettings.known_keys()]
    if not all(hasattr(given, key) for key in known):
        return None
    settings = {key: plain(getattr(given, key)) for key in known}
    try:
        return settings if make(**settings) == given else None
    except TypeError:  # it needs more than settings
        return None


def given_sizes(table: dict[str, Any], settings: Mapping[str, Any]) -> tuple[dict[str, Any], Policy | None]:
    """The `table` [method] with what it says of sizes, in it or in a keyword, and the policy where that is a function."""
    given = table["sizes"] if "sizes" in table else settings.get("sizes")
    if not callable(given):
        return table, None
    policy = check_policy(_no_class("sizes", given), f"train(sizes={shown(given)})")
    known = [name for name, registered in POLICIES.items() if registered is policy]
    return table | {"sizes": known[0] if known else GIVEN}, policy


def plain(value: Any) -> Any:
    """A number of numpy's or a tuple as a TOML file would have it."""
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _said_once(keyword: str, table: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """A UsageError where the `table` of one keyword says what another keyword says as well."""
    for key, value in table.items():
        if key != "name" and settings.get(key) is not None:  # which is no setting
            raise UsageError(
                f"train({key}={shown(settings[key])}): the {keyword} has {key} = {value!r}; leave out one"
            )


def _no_class(keyword: str, given: object) -> object:
    if isinstance(given, type):
        raise UsageError(f"train({keyword}={given.__name__}): give an object, such as {given.__name__}()")
    return given


def _described(given: object, registry: Mapping[str, object]) -> dict[str, Any]:
    """What a configuration says of an object: its name in the registry or its class, and its plain fields."""
    kind = type(given)
    known = [name for name, make in registry.items() if make is kind]
    titled = {"name": known[0]} if known else {"name": GIVEN, "of": f"{kind.__module__}.{kind.__qualname__}"}
    fields = dataclasses.fields(given) if dataclasses.is_dataclass(given) else ()
    values = {field.name: getattr(given, field.name) for field in fields}
    return {
        key: value for key, value in values.items() if isinstance(value, bool | int | float | str)
    } | titled


@dataclass(frozen=True)
class Given:
    """What of an objective is objects; the rest is told by name."""

    objective: Objective | None = None
    metrics: Mapping[str, Metric | FunctionMetric] = field(default_factory=dict)

    def whole(self, told: Objective) -> Objective | None:
        """The objective with the objects in the places that `told`, made from the configuration, has for them; None
        where all was told."""
        if self.objective is None and not self.metrics:
            return None
        own = self.objective or told
        return dataclasses.replace(
            own, metrics={**told.metrics, **own.metrics, **self.metrics}, goal=told.goal
        )


def given_objective(objective: Any, metrics: Any, goal: object) -> tuple[dict[str, Any], Given]:
    """The table [objective] and the objects; `objective` is a name, a table or an Objective, `metrics` a table of
    metrics of the user's own or a list of known ones, `goal` what a keyword says of it."""
    own = objective if isinstance(objective, Objective) else None
    if own is not None:
        table: dict[str, Any] = {"name": GIVEN, "goal": own.goal}
        objects = {name: _metric(name, metric) for name, metric in _checked(own).items()}
    elif isinstance(objective, str | Mapping):
        table = {"name": objective} if isinstance(objective, str) else dict(objective)
        _said_once("objective", table, {"goal": goal})
        objects = {}
    else:
        raise UsageError(
            f"train(objective={shown(objective)}): give a name, a table of the section [objective], or an Objective "
            "(histfl.training.objective)"
        )
    goal = goal if isinstance(goal, str) else table.get("goal")
    named = list(table.get("metrics", ())) if isinstance(table.get("metrics", ()), list | tuple) else []
    if isinstance(metrics, Mapping):
        objects |= {name: _metric(name, value, goal) for name, value in metrics.items()}
    elif isinstance(metrics, list | tuple) and all(isinstance(name, str) for name in metrics):
        named += metrics
    elif metrics is not None:
        raise UsageError(f"train(metrics={shown(metrics)}): {FORMS}")
    known = {name for name, metric in objects.items() if name in METRICS and _is_known(name, metric)}
    if named or known:
        table["metrics"] = [*dict.fromkeys([*named, *(name for name in objects if name in known)])]
    for key, higher in (("maximised", True), ("minimised", False)):
        told = [name for name in objects if name not in known and objects[name].higher_is_better == higher]
        if told:
            table[key] = told
    titles = {
        name: metric.title for name, metric in objects.items() if name not in known and metric.title != name
    }
    if titles:
        table["titles"] = titles
    return table, Given(own, {name: metric for name, metric in objects.items() if name not in known})


def _is_known(name: str, metric: object) -> bool:
    """Whether it is what a configuration's name stands for."""
    ours = METRICS[name]()
    return type(metric) is type(ours) and metric == ours


def _checked(objective: Objective) -> Mapping[Any, Any]:
    """The metrics of an Objective that can be one."""
    for part in ("loss", "check_outputs", "check_targets", "counted"):
        if not callable(found := getattr(objective, part)):
            raise UsageError(f"the objective's {part} is {shown(found)}; give a function")
    metrics: object = objective.metrics
    if not isinstance(metrics, Mapping):
        raise UsageError(f"the objective's metrics are {shown(metrics)}; give a table of them by name")
    goal: object = objective.goal
    if not isinstance(goal, str) or (goal != LOSS and goal not in metrics):
        known = [LOSS, *(name for name in metrics if isinstance(name, str))]
        hint = did_you_mean(goal if isinstance(goal, str) else "", known, "name one of its metrics")
        raise UsageError(f"the objective's goal {shown(goal)} is no metric of it; {hint}, or 'loss'")
    return metrics


def _metric(name: object, given: Any, goal: object = None) -> Metric | FunctionMetric:
    """A metric of the user's own: an object, a function of all outputs and targets, or such a function with what is
    best, "max" or "min"."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"the name of a metric is {shown(name)}; give a text")
    if (name in Round.model_fields and name != "accuracy") or not name.replace("-", "_").isidentifier():
        raise UsageError(
            f"the metric {shown(name)}: records have something else by that name, or can have nothing; give it another, of "
            "letters, digits and underscores"
        )
    if isinstance(given, type):
        raise UsageError(f"the metric {name!r} is a class; give an object of it, such as {given.__name__}()")
    if isinstance(given, FunctionMetric) or (_part(given, "sums") and _part(given, "value")):
        for part, kind in (("title", str), ("higher_is_better", bool), ("is_share", bool)):
            if not isinstance(found := _part(given, part), kind):
                raise UsageError(
                    f"the metric {name!r} has {part} = {shown(found)}; an object needs sums, value, title (a text), "
                    "higher_is_better and is_share (True or False)"
                )
        if not is_title(given.title):
            raise UsageError(
                f"the metric {name!r} has title = {shown(given.title)}; give a few words in one line, of at most "
                f"{LONGEST_TITLE} letters"
            )
        try:
            lowest, highest = bounds_of(given)
        except Exception:  # a user's object may fail in any way
            lowest = highest = 0.0
        if not lowest < highest:
            raise UsageError(
                f"the metric {name!r} has bounds = {shown(_part(given, 'bounds'))}; they are its lowest and highest "
                "value, (0.0, 1.0) for one"
            )
        whole: Metric | FunctionMetric = given
        return whole
    function, best = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not callable(function) or not (best is None or (isinstance(best, str) and best in DIRECTIONS)):
        raise UsageError(f"the metric {name!r} is {shown(given)}; {FORMS}")
    return _of_function(name, function, best, goal)


def _part(given: Any, name: str) -> Any:
    """What a user's object has by that name, or None."""
    try:
        return getattr(given, name, None)
    except Exception:  # a user's object may fail in any way
        return None


def _of_function(name: str, function: Callable[..., Any], best: str | None, goal: object) -> FunctionMetric:
    higher = DIRECTIONS[best] if best else _part(function, "higher_is_better")
    if not isinstance(higher, bool):
        if name == goal:
            raise UsageError(
                f"the metric {name!r} is the goal, and whether its highest or lowest value is best is not said; give "
                f"{{{name!r}: (f, 'max')}} or {{{name!r}: (f, 'min')}}"
            )
        higher = True
    return FunctionMetric(name, function, higher)
