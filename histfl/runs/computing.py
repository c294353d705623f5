"""The clients' computing, by the configuration: the cycles of a step as given, or counted on the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from histfl.data.inputs import Inputs
from histfl.errors import UsageError
from histfl.partition import Plan
from histfl.runs.config import Config
from histfl.training.operations import Operations, count_operations
from histfl.wireless.clock import CYCLES_PER_STEP, Computing, StepCycles

NAMED_OPERATIONS = 3


@dataclass(frozen=True)
class CountedStep:
    """What torch counts in a local step of a model: the operations, or why there are none."""

    operations: Operations | None = None
    obstacle: str = ""

    @classmethod
    def of(cls, model: nn.Module, plan: Plan, inputs: Inputs, batch_size: int) -> CountedStep:
        """Of `model`, which takes compact tensors, on `batch_size` samples like `inputs`."""
        try:
            return cls(count_operations(model, plan, inputs, batch_size))
        except UsageError as error:
            return cls(obstacle=str(error))


def is_counted(config: Config) -> bool:
    """Whether the cycles of a step are to follow from the model."""
    return config.network.cycles_per_step == "auto"


def build_computing(config: Config, full_parameters: int, step: CountedStep) -> Computing:
    """The clients' computing for a model of `full_parameters`; the paper's where nothing could be counted."""
    settings, counted = config.network, None
    cycles = CYCLES_PER_STEP if settings.cycles_per_step == "auto" else settings.cycles_per_step
    if settings.cycles_per_step == "auto" and step.operations is not None:
        each = tuple(number / settings.operations_per_cycle for number in step.operations.operations)
        counted = StepCycles(step.operations.parameters, each)
        cycles = each[-1]
    return Computing(
        local_steps=config.training.local_steps,
        full_parameters=full_parameters,
        cycles_per_step=cycles,
        energy_coefficient=settings.energy_coefficient,
        counted=counted,
    )


def computing_json(config: Config, step: CountedStep) -> dict[str, Any]:
    """The cycles and operations of a step on the full model, and where they come from, for a plan or a summary."""
    computing = build_computing(config, 1, step)
    return {
        "cycles_per_step": computing.cycles_per_step,
        "operations_per_step": step.operations and step.operations.full,
        "computing": computing_sentence(config, step),
    }


def computing_sentence(config: Config, step: CountedStep) -> str:
    """Where the seconds and joules of computing come from."""
    settings, counted, own = config.network, step.operations, ""
    if counted is not None:
        cycles = counted.full / settings.operations_per_cycle
        per_cycle = f"{settings.operations_per_cycle:g} a cycle"
        own = f"{counted.full:.3g} operations, {cycles:.3g} cycles at {per_cycle}"
    batch = f"{config.training.batch_size} samples"
    if settings.cycles_per_step != "auto":
        papers = settings.cycles_per_step == CYCLES_PER_STEP
        number = "the paper's 10^6" if papers else f"the given {settings.cycles_per_step:g}"
        beside = f"; a step of this model, of {batch}, has {own}" if own else ""
        takes = "takes those" if own else "counts the model's own"
        return f"computing: {number} cycles a step, whatever the model{beside} (--set network.cycles_per_step=auto {takes})"
    if counted is None:
        return f"computing: the paper's 10^6 cycles a step, since {step.obstacle}; give network.cycles_per_step a number"
    missed = ", ".join(counted.missed[:NAMED_OPERATIONS])
    less = f", without {missed}, which torch does not count" if missed else ""
    return f"computing: a step of {batch} has {own}{less}"
