import pytest
import torch
from torch import nn

from histfl.errors import UsageError
from histfl.training import LocalTraining, client_steps
from histfl.training.optimisers import SGD


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(optimiser=SGD(0.1)),
        LocalTraining(optimiser=SGD(0.1, momentum=0.9)),
        LocalTraining(optimiser=SGD(0.1, momentum=0.9, weight_decay=0.01)),
        LocalTraining(optimiser=SGD(0.1, momentum=0.5, weight_decay=0.1), clip_norm=0.2),
    ],
)
def test_client_steps_equal_torch_sgd(training: LocalTraining) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    batches = [(torch.randn(5, 6, dtype=torch.float64), torch.randint(3, (5,))) for _ in range(7)]
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    final, loss = client_steps(model, start, {}, batches, loss=nn.functional.cross_entropy, training=training)

    assert isinstance(training.optimiser, SGD)
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=training.optimiser.learning_rate,
        momentum=training.optimiser.momentum,
        weight_decay=training.optimiser.weight_decay,
    )
    total = 0.0
    for inputs, targets in batches:
        optimiser.zero_grad()
        value = nn.functional.cross_entropy(model(inputs), targets)
        value.backward()
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimiser.step()
        total += value.item()
    assert loss.item() == pytest.approx(total, rel=1e-6)
    for name, value in model.named_parameters():
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


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="local_steps = 0"):
        LocalTraining(local_steps=0)
    with pytest.raises(UsageError, match="learning_rate = nan"):
        SGD(learning_rate=float("nan"))
