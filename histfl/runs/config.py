"""A run's settings: the TOML file, `--set` and Python share these keys and defaults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, PrivateAttr, field_validator, model_validator

from histfl.data import GIVEN, SPLITS
from histfl.data.splits import DEFAULT_CONCENTRATION
from histfl.devices import Precision
from histfl.errors import article, did_you_mean
from histfl.factories import KINDS, SPLIT, check_callable, module_of, plugins
from histfl.network import DEFAULT_CPU_HZ, DEFAULT_SNR_DB, DEFAULT_TRANSMIT_POWER_W, MAX_CLIENTS
from histfl.runs.sections import (
    CloudSettings,
    CodecSettings,
    ObjectiveSettings,
    OptimiserSettings,
    UplinkSettings,
)
from histfl.settings import (
    Count,
    Decibels,
    Fraction,
    Named,
    NonNegative,
    OneOf,
    Positive,
    Seed,
    Settings,
    Switch,
    Whole,
    check_choice,
)
from histfl.sizing.policies import POLICIES, UNIFORM
from histfl.sizing.problem import DEFAULT_CAP_RATIO
from histfl.training.methods import DEFAULT_METHOD, METHODS
from histfl.training.objective import OBJECTIVES
from histfl.training.optimisers import GIVEN as OWN_OPTIMISER
from histfl.training.optimisers import OPTIMISERS
from histfl.wireless.clock import CYCLES_PER_STEP, OPERATIONS_PER_CYCLE, SWITCHED_CAPACITANCE

DEFAULT_MODEL = "mlp"
Target = Annotated[float, Field(strict=True, ge=-1e30, le=1e30)]
DEFAULT_PROFILE, PAPER = "uniform", "paper"  # the latter of HIST Sec. VI-C


class ModelSettings(Named):
    """The model: `name` and, beside it, the options of that model."""

    name: str = Field(
        default=DEFAULT_MODEL,
        description="one of the models below, a plugin's, or `package.module:factory` of your own",
    )


class DataSettings(Settings):
    """The data, and how the samples are spread over cells and clients."""

    name: str = Field(
        default="fashion-mnist",
        description="one that `histfl data list` names, or `package.module:factory` that returns (train, test)",
    )
    split: Annotated[str, OneOf(SPLITS, also=(GIVEN,))] | str = Field(
        default="shards",
        description="how samples are spread over cells and clients: by labels, `given` in Python, or by a "
        "`package.module:function` of your own",
    )
    augment: Literal["none", "crop-flip"] = Field(
        default="none", description="of images: pad by 4, crop at random, mirror half"
    )
    cell_concentration: Positive = Field(
        default=DEFAULT_CONCENTRATION, description="of the Dirichlet split, across cells"
    )
    client_concentration: Positive = Field(
        default=DEFAULT_CONCENTRATION, description="of the Dirichlet split, within a cell"
    )
    test_samples: Count | None = Field(
        default=None, description="evaluate on so many, drawn once (unset: on all)"
    )
    strip: tuple[Literal["headers", "footers", "quotes"], ...] = Field(
        default=(), description="of texts: parts that are left out"
    )
    max_length: Annotated[int, Field(strict=True, ge=1, le=10**6)] = Field(
        default=128, description="of texts: tokens, the first ones"
    )
    tokenizer: str | None = Field(
        default=None, description="of texts: a pretrained model's (unset: that of `model.base`)"
    )

    @field_validator("split")
    @classmethod
    def _known_split(cls, name: str) -> str:
        if name not in (*SPLITS, GIVEN) and ":" not in name and name not in (others := plugins(SPLIT)):
            known = [*SPLITS, *others]
            hint = did_you_mean(name, known, f"known splits: {', '.join(known)}")
            raise ValueError(f"{hint} (or package.module:function)")
        return name


class NetworkSettings(Settings):
    """The network: its cells and clients, who takes part, their CPUs and radios."""

    cells: Count = Field(
        default=4, description="a network file has its own; another number regroups its clients"
    )
    clients: Annotated[int, Field(strict=True, ge=1, le=MAX_CLIENTS)] = Field(
        default=60, description="in all cells together, spread evenly; a network file has its own"
    )
    active_cells: Literal["all"] | Count | tuple[Whole, ...] = Field(
        default="all", description="all, a number sampled in each global round, or a list of cells (from 0)"
    )
    participants: Literal["all"] | Count = Field(
        default="all", description="all clients, or a number sampled per active cell and edge round"
    )
    dropout: Fraction = Field(default=0.0, description="chance that a sampled client's update is lost")
    profile: str = Field(
        default=DEFAULT_PROFILE, description="`uniform`, `paper` (Sec. VI-C), or a NETWORK.toml"
    )
    cpu_hz: Positive = Field(default=DEFAULT_CPU_HZ, description="a client's CPU, of the uniform profile")
    snr_db: Decibels = Field(
        default=DEFAULT_SNR_DB, description="transmit power to noise power, of the uniform profile"
    )
    transmit_power_w: Positive = Field(
        default=DEFAULT_TRANSMIT_POWER_W, description="a client's, of the uniform profile"
    )
    cycles_per_step: Literal["auto"] | Positive = Field(
        default="auto",
        description="CPU cycles of one local step on the full model: `auto` counts the model's own operations, whole and "
        'cut; a number is of any model, the paper\'s being 1e6 (the default of `profile = "paper"`)',
    )
    operations_per_cycle: Positive = Field(
        default=OPERATIONS_PER_CYCLE,
        description='that a client\'s CPU carries out, of `cycles_per_step = "auto"`',
    )
    energy_coefficient: NonNegative = Field(
        default=SWITCHED_CAPACITANCE, description="joules = coefficient * cycles * cpu_hz^2"
    )

    @model_validator(mode="before")
    @classmethod
    def _paper_has_its_cycles(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("profile") == PAPER:
            return {"cycles_per_step": CYCLES_PER_STEP, **given}
        return given

    @model_validator(mode="after")
    def _cells_can_be_filled(self) -> NetworkSettings:
        if self.clients < self.cells:
            raise ValueError(
                f"{self.clients} clients cannot fill {self.cells} cells; use at most {self.clients} cells"
            )
        return self

    @model_validator(mode="after")
    def _clients_have_one_description(self) -> NetworkSettings:
        if self.profile == "uniform":
            return self
        for key in ("cpu_hz", "snr_db", "transmit_power_w"):
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key} = {value:g} is of the uniform profile, and profile = {self.profile!r} has its own; "
                    "leave out one of the two"
                )
        return self


class TrainingSettings(Settings):
    """Training: the rounds, the local steps and when to end."""

    rounds: Count = Field(default=60, description="global rounds")
    edge_rounds: Count = Field(default=5, description="edge rounds of a global round (E)")
    local_steps: Count = Field(default=20, description="SGD steps of a client in an edge round (H)")
    batch_size: Annotated[int, Field(strict=True, ge=1, le=10**6)] = Field(
        default=50, description="samples of a local step"
    )
    optimiser: str = Field(
        default="sgd",
        description="of the clients: one of the optimisers below, or `given` in Python",
    )
    learning_rate: Positive = Field(default=0.01, description="of the clients' optimiser")
    momentum: Annotated[float, Field(strict=True, ge=0, lt=1)] = Field(
        default=0.0, description="of the clients' optimiser, from zero in every edge round"
    )
    weight_decay: NonNegative = Field(default=0.0, description="of the clients' optimiser")
    clip_norm: Positive | None = Field(
        default=None,
        description="longest gradient of a local step; longer ones are scaled down (unset: none are)",
    )
    precision: Precision = Field(
        default="float32", description="of products on a GPU; tf32 and bf16 are faster"
    )
    seed: Seed = Field(default=1, description="of all randomness: split, model, batches, cuts, channels")
    targets: tuple[Target, ...] = Field(
        default=(0.7, 0.8),
        description="values of the objective's goal, as test accuracies, whose cost the summary and the report give",
    )
    stop_at_targets: Switch = Field(
        default=False, description="end after the round in which the last target is reached"
    )

    @field_validator("optimiser")
    @classmethod
    def _known_optimiser(cls, name: str) -> str:
        if name != OWN_OPTIMISER:
            check_choice("optimiser", OPTIMISERS, name)
        return name


class MethodSettings(Settings):
    """The method: how the model is cut into the cells' submodels."""

    name: Annotated[str, OneOf(METHODS)] = Field(
        default=DEFAULT_METHOD,
        description="`hfedavg` cuts nothing, `ist` every hidden layer; `overlap` shares units",
    )
    sizes: Annotated[str, OneOf(POLICIES)] | tuple[Positive, ...] = Field(
        default=UNIFORM,
        description="of the submodels: equal, of least latency, by speed, or a list of shares",
    )
    cap: Annotated[float, Field(strict=True, ge=1)] = Field(
        default=DEFAULT_CAP_RATIO,
        description="optimised, proportional: no cell above cap / cells of a layer",
    )
    shared: Fraction = Field(
        default=0.25, description="of overlap: the fraction of units that every cell holds"
    )
    include: tuple[str, ...] = Field(
        default=(), description="patterns of the layers that may be cut (none: all)"
    )
    exclude: tuple[str, ...] = Field(default=(), description="patterns of the layers that stay whole")


class TheorySettings(Settings):
    """The constants of the convergence theorems, for `histfl bound`."""

    every: Annotated[int, Field(strict=True, ge=0, le=10**9)] = Field(
        default=0, description="estimate them every so many rounds; 0: never"
    )


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
    objective: ObjectiveSettings = ObjectiveSettings()
    theory: TheorySettings = TheorySettings()

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

    @model_validator(mode="before")
    @classmethod
    def _only_shares_have_default_targets(cls, tables: Any) -> Any:
        chosen = tables.get("objective") if isinstance(tables, dict) else None
        maker = OBJECTIVES.get(str(chosen.get("name"))) if isinstance(chosen, dict) else None
        training = tables.get("training", {}) if maker is not None else None
        if maker is None or not isinstance(training, dict) or "targets" in training or maker().aim.is_share:
            return tables
        return {**tables, "training": {**training, "targets": ()}}

    @model_validator(mode="after")
    def _targets_are_of_the_goal(self) -> Config:
        objective = self.objective.made()
        for number, target in enumerate(self.training.targets):
            if objective.aim.is_share and not 0 <= target <= 1:
                raise ValueError(
                    f"training.targets.{number} = {target!r}: {article(objective.aim.title)} lies from 0 to 1"
                )
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
        """The settings that decide a round's numbers: all but when to end and which targets to report."""
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

REPORTING = (("training", "rounds"), ("training", "targets"), ("training", "stop_at_targets"))


def without(
    tables: Mapping[str, Mapping[str, Any]], dropped: Collection[tuple[str, str]]
) -> dict[str, dict[str, Any]]:
    """The tables of a configuration less the (section, key) pairs in `dropped`."""
    return {
        section: {key: value for key, value in keys.items() if (section, key) not in dropped}
        for section, keys in tables.items()
    }
