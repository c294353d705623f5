"""FedAvgM, FedAdam and FedYogi against plainly written loops, alone and in runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import experiment, outcomes, resumed, train

from histfl.engines import ReferenceEngine
from histfl.errors import UsageError
from histfl.partition import State
from histfl.training import hist
from histfl.training.cloud import CLOUD_STEPS, CloudStep, FedAdam, FedAvgM, FedYogi, Replace

STEPS: list[CloudStep] = [
    FedAvgM(0.7, 0.6),
    FedAdam(0.05, 0.8, 0.9, 0.01),
    FedYogi(0.05, 0.8, 0.9, 0.01),
]
ADAPTIVE = [name for name, make in CLOUD_STEPS.items() if make is not Replace]


class ByHand:
    """One number of the model, stepped as the papers write it."""

    def __init__(self, step: Any) -> None:
        self.step, self.m, self.v = step, 0.0, getattr(step, "tau", 0.0) ** 2

    def __call__(self, old: float, merged: float) -> float:
        step, change = self.step, merged - old
        if isinstance(step, FedAvgM):
            self.m = step.momentum * self.m + change
            return old + step.learning_rate * self.m
        self.m = step.beta1 * self.m + (1 - step.beta1) * change
        if isinstance(step, FedYogi):
            sign = (self.v > change**2) - (self.v < change**2)
            self.v = self.v - (1 - step.beta2) * change**2 * sign
        else:
            self.v = step.beta2 * self.v + (1 - step.beta2) * change**2
        return old + step.learning_rate * self.m / (math.sqrt(self.v) + step.tau)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_a_step_is_the_papers(step: CloudStep) -> None:
    """Eight rounds of four numbers; the last one is trained by nobody in every second round."""
    generator = torch.Generator().manual_seed(3)
    hands, memory = [ByHand(step) for _ in range(4)], State()
    state = {"w": torch.randn(4, generator=generator, dtype=torch.float64)}
    for t in range(8):
        merged = {"w": state["w"] + 0.1 * torch.randn(4, generator=generator, dtype=torch.float64)}
        if t % 2:
            merged["w"][3] = state["w"][3]
        expected = [hand(old, new) for hand, old, new in zip(hands, *_lists(state, merged), strict=True)]
        before = {name: tensor.clone() for name, tensor in memory.items()}
        kept = memory
        state, memory = step.step(state, merged, memory)
        torch.testing.assert_close(
            state["w"], torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0
        )
        assert all(torch.equal(kept[name], before[name]) for name in before)


def _lists(*states: State) -> list[list[float]]:
    return [state["w"].tolist() for state in states]


@pytest.mark.parametrize("method", ["hist", "ist", "overlap"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_a_run_steps_its_merged_models(step: CloudStep, method: str) -> None:
    """Rounds with `replace`, each from where the loop is, and the loop's own steps in between."""
    sections: dict[str, Any] = {
        "method": {"name": method},
        "network": {"cells": 3, "clients": 7, "active_cells": 2},
    }
    replaced = experiment(**sections)
    state = {name: tensor.detach().clone() for name, tensor in replaced.model.named_parameters()}
    hands = {name: [ByHand(step) for _ in range(tensor.numel())] for name, tensor in state.items()}
    for t in range(3):
        (outcome,) = hist(replaced.hist, state, ReferenceEngine(), first_round=t, rounds=t + 1)
        state = {name: _by_hand(hands[name], state[name], outcome.state[name]) for name in state}
    *_, last = outcomes(experiment(given={"cloud": step}, **sections), ReferenceEngine(), rounds=3)
    for name, tensor in state.items():
        torch.testing.assert_close(last.state[name], tensor, rtol=1e-9, atol=1e-11)


def _by_hand(hands: list[ByHand], old: torch.Tensor, merged: torch.Tensor) -> torch.Tensor:
    numbers = zip(hands, old.flatten().tolist(), merged.flatten().tolist(), strict=True)
    return torch.tensor([hand(a, b) for hand, a, b in numbers], dtype=old.dtype).view_as(old)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_frozen_parameters_stay_and_take_no_memory(step: CloudStep) -> None:
    old = {"w": torch.ones(2), "frozen": torch.ones(3)}
    new, memory = step.step(old, {"w": torch.zeros(2), "frozen": old["frozen"]}, {})
    assert new["frozen"] is old["frozen"]
    assert not any("frozen" in name for name in memory)


def test_moments_of_half_precision_are_single() -> None:
    old = {"w": torch.ones(2, dtype=torch.bfloat16)}
    new, memory = FedAdam().step(old, {"w": torch.zeros(2, dtype=torch.bfloat16)}, {})
    assert new["w"].dtype == torch.bfloat16
    assert {tensor.dtype for tensor in memory.values()} == {torch.float32}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_runs_resume_bit_by_bit(name: str, tmp_path: Path) -> None:
    whole, pieces = resumed(tmp_path, cloud={"name": name})
    assert whole == pieces


@dataclass(frozen=True)
class Half:
    """Half of the way."""

    share: float = 0.5

    def step(self, old: State, merged: State, memory: State) -> tuple[State, State]:
        return {name: old[name] + self.share * (merged[name] - old[name]) for name in old}, memory


def test_python_takes_a_name_a_table_or_an_object() -> None:
    table = train(rounds=2, cloud={"name": "fedadam", "tau": 0.1})
    given = train(rounds=2, cloud=FedAdam(tau=0.1))
    assert table.loss.tolist() == given.loss.tolist() != train(rounds=2, cloud="fedadam").loss.tolist()
    assert table.config.fingerprint() != given.config.fingerprint()  # which lists all fields
    assert given.config.cloud.name == "fedadam"
    own = train(rounds=2, cloud=Half(0.25))
    assert own.config.cloud.options == {"share": 0.25, "of": "test_cloud_steps.Half"}
    assert own.config.fingerprint() != train(rounds=2, cloud=Half(0.5)).config.fingerprint()
    assert own.loss[0] != train(rounds=2).loss[0]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (FedAdam, "give an object, such as FedAdam()"),
        (object(), "has no method step"),
        ({"name": "fedadam", "tau": 0.0}, "cloud.tau = 0.0; it must be positive"),
        ({"name": "fedadam", "tau": 1e-300}, "cloud.tau = 1e-300; it must be positive, at least 1e-30"),
        ({"name": "fedadam", "beta1": 1.0}, "cloud.beta1 = 1.0; it must be at least 0 and below 1"),
        ({"name": "fedyogi", "beta2": -0.1}, "cloud.beta2 = -0.1"),
        ({"name": "fedavgm", "learning_rate": -1.0}, "cloud.learning_rate = -1.0"),
        ({"name": "fedavgm", "momentum": 1.5}, "cloud.momentum = 1.5"),
        ({"name": "fedavgm", "beta1": 0.5}, "unknown key cloud.beta1"),
        ("given", "is for Python"),
        ("fedadm", "'fedadam'"),
    ],
)
def test_a_bad_choice_is_one_line(chosen: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        train(cloud=chosen)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
