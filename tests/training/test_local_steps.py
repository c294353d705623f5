from typing import Any

import pytest
import torch
from torch import nn

from histfl.errors import UsageError
from histfl.training import LocalTraining, client_steps
from histfl.training.optimisers import SGD, Adam, AdamW, Optimiser
from histfl.training.schedules import Cosine, Schedule, Step


def in_torch(optimiser: Optimiser, parameters: Any) -> torch.optim.Optimizer:
    """The same optimiser as torch has it."""
    if isinstance(optimiser, SGD):
        return torch.optim.SGD(
            parameters,
            lr=optimiser.learning_rate,
            momentum=optimiser.momentum,
            weight_decay=optimiser.weight_decay,
        )
    assert isinstance(optimiser, Adam)
    make = torch.optim.AdamW if isinstance(optimiser, AdamW) else torch.optim.Adam
    return make(
        parameters,
        lr=optimiser.learning_rate,
        betas=(optimiser.beta1, optimiser.beta2),
        eps=optimiser.eps,
        weight_decay=optimiser.weight_decay,
    )


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(optimiser=SGD(0.1)),
        LocalTraining(optimiser=SGD(0.1, momentum=0.9)),
        LocalTraining(optimiser=SGD(0.1, momentum=0.9, weight_decay=0.01)),
        LocalTraining(optimiser=SGD(0.1, momentum=0.5, weight_decay=0.1), clip_norm=0.2),
        LocalTraining(optimiser=SGD(0.1), proximal=0.7),
        LocalTraining(optimiser=SGD(0.1, momentum=0.9), proximal=0.7),
        LocalTraining(optimiser=Adam(0.1)),
        LocalTraining(optimiser=Adam(0.1, beta1=0.5, beta2=0.9, eps=1e-3, weight_decay=0.3), clip_norm=0.2),
        LocalTraining(optimiser=AdamW(0.1, weight_decay=0.3), proximal=0.7),
    ],
)
def test_client_steps_equal_torchs(training: LocalTraining) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    batches = [(torch.randn(5, 6, dtype=torch.float64), torch.randint(3, (5,))) for _ in range(7)]
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    final, loss = client_steps(model, start, {}, batches, loss=nn.functional.cross_entropy, training=training)

    optimiser = in_torch(training.optimiser, model.parameters())
    total = 0.0
    for inputs, targets in batches:
        optimiser.zero_grad()
        value = nn.functional.cross_entropy(model(inputs), targets)
        pull = sum((x - start[name]).square().sum() for name, x in model.named_parameters())
        (value + training.proximal / 2 * pull).backward()
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimiser.step()
        total += value.item()
    assert loss.item() == pytest.approx(total, rel=1e-6)
    for name, value in model.named_parameters():
        torch.testing.assert_close(final[name], value.detach(), rtol=1e-12, atol=1e-14, msg=name)
        if type(training.optimiser) is SGD and not training.proximal:
            assert torch.equal(final[name], value.detach()), name
        assert not torch.equal(final[name], start[name])


def test_start_and_constants_stay_as_they_were() -> None:
    model = nn.Linear(2, 2)
    start = {"weight": torch.ones(2, 2)}
    constants = {"bias": torch.full((2,), 5.0)}
    batch = (torch.ones(3, 2), torch.tensor([0, 1, 1]))
    final, _ = client_steps(
        model, start, constants, [batch], loss=nn.functional.cross_entropy, training=LocalTraining()
    )
    assert torch.equal(start["weight"], torch.ones(2, 2))
    assert list(final) == ["weight"]


@pytest.mark.parametrize("optimiser", [Adam(0.1, weight_decay=0.2), AdamW(0.1, weight_decay=0.2)])
def test_adams_pass_over_memory_is_its_formula(optimiser: Adam) -> None:
    """Also for the rows of tensors that belong to clients, and for a parameter that is one number."""
    torch.manual_seed(1)
    start = [torch.randn(shape, dtype=torch.float64) for shape in ((2, 3, 4), (5,), ())]
    ends = []
    for contiguous in (True, False):
        tensors = [tensor.clone() for tensor in start]
        slots = optimiser.slots(tensors)
        for number in range(6):
            gradients = [(tensor * (number + 1)).sin() for tensor in start]
            if not contiguous:
                gradients[0] = gradients[0].transpose(1, 2).contiguous().transpose(1, 2)
            optimiser.step(tensors, gradients, slots)
        ends.append(tensors)
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("schedule", "warmup", "factors"),
    [
        (Step(schedule_every=2, schedule_factor=0.5), 0, [1, 1, 0.5, 0.5, 0.25]),
        (Step(schedule_every=2, schedule_factor=0.5), 1, [0.5, 1, 1, 0.5, 0.5]),
        (
            Cosine(schedule_rounds=4, schedule_floor=0.2),
            0,
            [1, 0.6 + 0.4 * 0.5**0.5, 0.6, 0.6 - 0.4 * 0.5**0.5, 0.2, 0.2],
        ),
        (Cosine(schedule_rounds=4, schedule_floor=0.2), 2, [1 / 3, 2 / 3, 1, 0.6, 0.2, 0.2]),
    ],
)
def test_rates_by_hand(schedule: Schedule, warmup: int, factors: list[float]) -> None:
    local = LocalTraining(optimiser=AdamW(0.1, weight_decay=0.3), schedule=schedule, warmup_rounds=warmup)
    for round, factor in enumerate(factors):
        there = local.at(round)
        assert there.learning_rate == pytest.approx(0.1 * factor, rel=1e-14)
        assert there.optimiser == AdamW(there.learning_rate, weight_decay=0.3)
        assert there.at(7) is there
    assert LocalTraining(optimiser=SGD(0.1)).at(3).optimiser == SGD(0.1)
    assert local.at(10**6).learning_rate > 0


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="local_steps = 0"):
        LocalTraining(local_steps=0)
    with pytest.raises(UsageError, match="learning_rate = nan"):
        SGD(learning_rate=float("nan"))
    with pytest.raises(UsageError, match=r"optimiser\.beta2 = 1\.0; it must be at least 0 and below 1"):
        Adam(beta2=1.0)
    with pytest.raises(UsageError, match=r"optimiser\.eps = 0"):
        AdamW(eps=0)
    with pytest.raises(UsageError, match="proximal = -1"):
        LocalTraining(proximal=-1)
