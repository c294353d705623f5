"""Operations of a local step: against hand counts, torch's own counter and models that are hard to count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from histfl.errors import UsageError
from histfl.models import build_model
from histfl.partition import Plan, plan, training_copy
from histfl.training.dropout import key_dropout
from histfl.training.operations import Operations, count_operations

BATCH = 50
IMAGES = {"mlp": (1, 28, 28), "lenet5": (1, 28, 28), "resnet18": (3, 32, 32)}


def counted(model: nn.Module, inputs: torch.Tensor, batch_size: int = BATCH) -> Operations:
    return count_operations(training_copy(model), plan(model, inputs), inputs, batch_size)


def by_hand(name: str, units: dict[str, int]) -> int:
    """2 x batch x products; three times those, with both gradients, and twice in the layer that reads the images.
    `units` are what the submodel keeps of the cut layers."""
    if name == "mlp":
        hidden = units["fc1"]
        first, others = 784 * hidden, hidden * 10
    elif name == "lenet5":
        conv1, conv2, fc1, fc2 = ({"conv1": 6, "conv2": 16, "fc1": 120, "fc2": 84} | units).values()
        first = 28 * 28 * 25 * conv1
        others = 10 * 10 * 25 * conv1 * conv2 + 25 * conv2 * fc1 + fc1 * fc2 + fc2 * 10
    else:
        first, others, inputs = 32 * 32 * 9 * 3 * 64, 512 * 10, 64
        for stage in range(4):
            outputs, pixels = 64 * 2**stage, (32 // 2**stage) ** 2
            inner = [units[f"stage{stage + 1}_block{block}.conv1"] for block in (1, 2)]
            others += pixels * 9 * (inputs * inner[0] + outputs * (inner[0] + 2 * inner[1]))
            others += pixels * inputs * outputs if stage else 0  # the shortcut
            inputs = outputs
    return 2 * BATCH * (2 * first + 3 * others)


@pytest.mark.parametrize("name", IMAGES)
def test_a_hand_count_of_the_full_model_and_of_a_quarter(name: str) -> None:
    model = build_model(name, {}, IMAGES[name], 10, seed=1)
    images = torch.zeros(3, *IMAGES[name])
    cut = plan(model, images)
    found = count_operations(training_copy(model), cut, images, BATCH)
    full = {group.name: group.num_units for group in cut.groups}
    quarter = {name: max(round(number / 4), 1) for name, number in full.items()}
    assert found.operations[-1] == pytest.approx(by_hand(name, full), rel=0.01)
    assert found.operations[2] == pytest.approx(by_hand(name, quarter), rel=0.01)
    assert found.parameters[-1] == cut.num_parameters
    assert found.parameters[2] == cut.sizes(np.array([list(quarter.values())]))[0]
    assert found.missed == ()


def test_torchs_own_counter_says_the_same() -> None:
    model = build_model("resnet18", {"width": 8}, (3, 32, 32), 10, seed=1)
    images = torch.randn(4, 3, 32, 32)
    counter = FlopCounterMode(display=False)
    with counter:
        model(images).sum().backward()
    assert counted(model, images, batch_size=4).operations[-1] == counter.get_total_flops()


def test_a_grouped_convolution_costs_its_groups_once() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Flatten(), nn.Linear(8 * 36, 4)
    )
    products = 36 * (2 * 3 * 8 + 3 * 8 * 9) + 3 * 8 * 36 * 4
    assert counted(model, torch.randn(3, 3, 6, 6)).operations[-1] == 2 * BATCH * products


class Attending(nn.Module):
    """`values`: asks for a number in a tensor, so that no shape alone goes through."""

    def __init__(self, values: bool) -> None:
        super().__init__()
        self.values = values
        self.first, self.last = nn.Linear(8, 16), nn.LSTM(16, 3, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.values and inputs.isnan().any().item():
            raise ValueError("no numbers")
        states = self.first(inputs)
        states = nn.functional.scaled_dot_product_attention(states, states, states)
        scores: torch.Tensor = self.last(states)[0][:, -1]
        return scores


@pytest.mark.parametrize("values", [False, True])
def test_attention_and_recurrence_are_counted_on_shapes_and_on_samples(values: bool) -> None:
    model = Attending(values)
    found = count_operations(training_copy(model), Plan.of(model), torch.randn(3, 5, 8), BATCH)
    attention = 2 * 5 * 8 * 16 + 3 * 2 * 5 * 5 * 16  # the linear layer reads the inputs
    recurrence = 3 * 5 * 16 * 12 + 3 * 4 * 3 * 12 + 3 * 12  # the first state is zero and has no gradient
    assert found.operations[0] == pytest.approx(2 * BATCH * (attention + recurrence), rel=0.02)


def test_nothing_of_the_model_or_the_random_numbers_moves() -> None:
    model = build_model("lenet5", {"dropout": 0.5}, (1, 28, 28), 10, seed=1)
    model.append(nn.BatchNorm1d(10))
    images = torch.rand(3, 1, 28, 28)
    cut, copy = plan(model, images), training_copy(model)
    key_dropout(copy, images)
    before = {name: value.clone() for name, value in copy.state_dict().items()}
    modes = [module.training for module in copy.modules()]
    random = torch.random.get_rng_state()
    count_operations(copy, cut, images, BATCH)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert [module.training for module in copy.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in copy.state_dict().items())
    assert all(value.grad is None and value.device.type == "cpu" for value in copy.parameters())


def test_a_model_without_a_product_cannot_be_counted() -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * self.weight

    with pytest.raises(UsageError, match="torch counts no operation in a step of Scaling"):
        count_operations(Scaling(), Plan.of(Scaling()), torch.randn(3, 4), BATCH)
