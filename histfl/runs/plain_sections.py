"""The sections of a configuration that are numbers and choices alone: model, data, network, training, method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from histfl.data import SPLITS
from histfl.data.splits import DEFAULT_CONCENTRATION
from histfl.devices import Precision
from histfl.errors import did_you_mean
from histfl.factories import SPLIT, plugins
from histfl.network import DEFAULT_CPU_HZ, DEFAULT_SNR_DB, DEFAULT_TRANSMIT_POWER_W, MAX_CLIENTS
from histfl.settings import (
    GIVEN,
    Count,
    Decibels,
    Extensible,
    Fraction,
    Named,
    NonNegative,
    OneOf,
    Positive,
    Seed,
    Settings,
    Switch,
    Whole,
)
from histfl.sizing.policies import POLICIES, UNIFORM
from histfl.sizing.problem import DEFAULT_CAP_RATIO
from histfl.training.corrections import CORRECTIONS, NO_CORRECTION
from histfl.training.methods import DEFAULT_METHOD, METHODS
from histfl.training.optimisers import OPTIMISERS
from histfl.training.schedules import SCHEDULES, SMALLEST_FACTOR, keys_of
from histfl.wireless.clock import CYCLES_PER_STEP, OPERATIONS_PER_CYCLE, SWITCHED_CAPACITANCE

DEFAULT_MODEL = "mlp"
Share = Annotated[float, Field(strict=True, ge=SMALLEST_FACTOR, le=1)]
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
    dropout: Fraction = Field(
        default=0.0,
        description="chance that a sampled client's update is lost (dropout layers are the model's own: `model.dropout`)",
    )
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


class TrainingSettings(Extensible):
    """Training: the rounds, the local steps and when to end."""

    rounds: Count = Field(default=60, description="global rounds")
    edge_rounds: Count = Field(default=5, description="edge rounds of a global round (E)")
    local_steps: Count = Field(default=20, description="SGD steps of a client in an edge round (H)")
    batch_size: Annotated[int, Field(strict=True, ge=1, le=10**6)] = Field(
        default=50, description="samples of a local step"
    )
    optimiser: Annotated[str, OneOf(OPTIMISERS, also=(GIVEN,))] = Field(
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
    proximal: NonNegative = Field(
        default=0.0,
        description="FedProx: how strongly a client's steps are pulled back to the model with which its edge round began "
        "(mu of mu/2 ||x - x_0||^2)",
    )
    correction: Annotated[str, OneOf(CORRECTIONS, also=(NO_CORRECTION, GIVEN))] = Field(
        default=NO_CORRECTION,
        description="of the clients' gradients, against their drift: `mtgc`, between client, cell and cloud",
    )
    schedule: Annotated[str, OneOf(SCHEDULES, also=(GIVEN,))] = Field(
        default="constant",
        description="of the learning rate over global rounds: as it is, divided now and then, or half a cosine down",
    )
    warmup_rounds: Annotated[int, Field(strict=True, ge=0, le=10**9)] = Field(
        default=0, description="the first rounds, over which the learning rate rises by equal steps"
    )
    schedule_rounds: Count | None = Field(
        default=None,
        description="cosine: the rounds until its end, warm-up included (unset: `rounds`, as the run begins)",
    )
    schedule_floor: Share = Field(
        default=0.01, description="cosine: the share of the learning rate at its end"
    )
    schedule_every: Count = Field(
        default=20, description="step: the rounds between two changes, after the warm-up"
    )
    schedule_factor: Share = Field(default=0.1, description="step: what the learning rate is multiplied by")
    weights: Literal["uniform", "samples"] = Field(
        default="uniform",
        description="of clients in an edge's mean and of cells in the cloud's: all alike, or by their samples",
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
    patience: Count | None = Field(
        default=None, description="end after so many rounds without a better value of the goal (unset: never)"
    )

    @classmethod
    def makers(cls) -> Iterable[Callable[..., Any]]:
        return SCHEDULES.values()

    @model_validator(mode="before")
    @classmethod
    def _a_schedule_has_its_length(cls, given: Any) -> Any:
        """That of the run as it begins, so that one that goes on for longer has the same rates so far."""
        reads = isinstance(given, dict) and "schedule_rounds" in keys_of(given.get("schedule"))
        if not reads or given.get("schedule_rounds") is not None:
            return given
        return {**given, "schedule_rounds": given.get("rounds", cls.model_fields["rounds"].default)}

    @model_validator(mode="after")
    def _warm_up_leaves_rounds(self) -> TrainingSettings:
        if "schedule_rounds" in keys_of(self.schedule) and self.warmup_rounds >= (self.schedule_rounds or 0):
            raise ValueError(
                f"warmup_rounds = {self.warmup_rounds} leaves nothing of schedule_rounds = {self.schedule_rounds}; "
                "lower the one or raise the other"
            )
        return self


class MethodSettings(Extensible):
    """The method: how the model is cut into the cells' submodels."""

    name: Annotated[str, OneOf(METHODS, also=(GIVEN,))] = Field(
        default=DEFAULT_METHOD,
        description="`hfedavg` cuts nothing, `ist` every hidden layer; `overlap` shares units; of `rolling` and "
        "`nested` a cell holds neighbouring ones",
    )
    sizes: Annotated[str, OneOf(POLICIES, also=(GIVEN,))] | tuple[Positive, ...] = Field(
        default=UNIFORM,
        description="of the submodels: equal, of least latency, by speed, in Python by a function (`given`), or a list of "
        "shares (of rolling and nested: the part of every layer that a cell holds)",
    )
    cap: Annotated[float, Field(strict=True, ge=1)] = Field(
        default=DEFAULT_CAP_RATIO,
        description="optimised, proportional: no cell above cap / cells of a layer",
    )
    shared: Fraction = Field(
        default=0.25, description="of overlap: the fraction of units that every cell holds"
    )
    roll: Count = Field(default=1, description="of rolling: the units by which windows move on in a round")
    apart: Switch = Field(
        default=False,
        description="of rolling: a cell's window begins where that of the cell before ends, not all at one unit",
    )
    scale: Annotated[float, Field(strict=True, ge=0, le=10)] | None = Field(
        default=None,
        description="submodels multiply what cut units give by (1 / share held)^scale in training (unset: 0, which is "
        "the paper's; of model `lora` 1)",
    )
    include: tuple[str, ...] = Field(
        default=(), description="patterns of the layers that may be cut (none: all)"
    )
    exclude: tuple[str, ...] = Field(default=(), description="patterns of the layers that stay whole")

    @classmethod
    def makers(cls) -> Iterable[Callable[..., Any]]:
        return (method.dealer for method in METHODS.values())


class TheorySettings(Settings):
    """The constants of the convergence theorems, for `histfl bound`."""

    every: Annotated[int, Field(strict=True, ge=0, le=10**9)] = Field(
        default=0, description="estimate them every so many rounds; 0: never"
    )


class EvaluateSettings(Settings):
    """The evaluation of the merged model on the data that its clients train on."""

    per: Literal["cell", "client"] | None = Field(
        default=None,
        description="on the training data of each client or each cell, after every round: records get the mean, the "
        "worst decile and the spread (unset: on the test set alone)",
    )
