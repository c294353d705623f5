"""Which layers scale their inputs, by what, and what is said where none can."""

import logging

import pytest
import torch
import torch.nn.functional as F
from small_training import train
from torch import nn
from torch.func import functional_call

import histfl
from histfl.errors import UsageError
from histfl.partition import Submodel, extract, plan, training_copy
from histfl.training.scaling import Scaling, scale_inputs

CPU = torch.device("cpu")


class Branches(nn.Module):
    """A concatenation, whose reader has inputs of two groups and some that nothing cuts; a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(2, 6, 1)
        self.middle = nn.Conv2d(2, 2, 1)
        self.join = nn.Conv2d(16, 10, 3, padding=1)
        self.up = nn.ConvTranspose2d(10, 4, 2, stride=2)
        self.last = nn.Linear(4 * 36, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        left, right = torch.relu(self.left(images)), torch.tanh(self.right(images))
        joined = self.join(torch.cat((left, self.middle(images), right), dim=1))
        return self.last(torch.relu(self.up(torch.relu(joined))).flatten(1))


def test_inputs_of_several_groups_have_a_factor_each() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model, images = Branches().double(), torch.randn(4, 2, 3, 3, dtype=torch.float64)
    cut = plan(model, images, scheme="every", exclude=["middle"])
    assert [group.name for group in cut.groups] == ["left", "right", "join", "up"]
    kept = ([0, 3], [1, 2, 5], [0, 1, 2, 6, 9], [3])
    submodel = Submodel(cut, tuple(map(torch.tensor, kept)))
    left, right, join, up = (2.0, 2**0.5, 2**0.5, 2.0)  # (1 / share)^0.5
    copy = training_copy(model)
    scaling = scale_inputs(copy, cut, 0.5)
    own = extract({name: value.detach() for name, value in model.named_parameters()}, submodel)
    found = functional_call(copy, own | scaling.constants(submodel, CPU), (images,))
    one = left * torch.relu(F.conv2d(images, own["left.weight"], own["left.bias"], padding=1))
    two = right * torch.tanh(F.conv2d(images, own["right.weight"], own["right.bias"]))
    three = torch.cat((one, model.middle(images), two), dim=1)
    joined = F.conv2d(three, own["join.weight"], own["join.bias"], padding=1)
    larger = F.conv_transpose2d(join * torch.relu(joined), own["up.weight"], own["up.bias"], stride=2)
    expected = F.linear(up * torch.relu(larger).flatten(1), own["last.weight"], own["last.bias"])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    whole = {name: value.detach() for name, value in model.named_parameters()}
    torch.testing.assert_close(functional_call(copy, whole, (images,)), model(images), rtol=0, atol=0)


def test_power_0_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    copy = training_copy(model)
    assert scale_inputs(copy, plan(model, torch.randn(3, 4)), 0.0) == Scaling()
    assert not list(copy.named_buffers())
    assert all(not layer._forward_pre_hooks for layer in copy.modules())


class OwnProduct(nn.Module):
    """Names its units, which no layer reads that is known to be one."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(3, 6))

    def unit_axes(self) -> dict[str, tuple[tuple[str, int], ...]]:
        return {"hidden": (("down", 0), ("up", 1))}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(inputs @ self.down.T) @ self.up.T


def test_units_that_no_known_layer_reads_are_named() -> None:
    with pytest.raises(
        UsageError, match=r"method.scale = 1: no linear .* the units of 'hidden'; set it to 0"
    ):
        train(OwnProduct(), scale=1.0)


@pytest.mark.parametrize("power", [-0.5, float("nan"), float("inf"), 11.0, "much"])
def test_powers_that_cannot_be_are_refused(power: object) -> None:
    with pytest.raises(UsageError, match="scale") as refused:
        train(scale=power)
    assert "\n" not in str(refused.value)


def test_scaling_is_for_training_alone() -> None:
    """The loss of the first batch is that of scaled submodels, the accuracy that of the whole model as it is."""
    plain, scaled = (train(scale=power, rounds=1) for power in (0.0, 1.0))
    assert plain.records[0]["training_loss"] != scaled.records[0]["training_loss"]
    for run in (plain, scaled):
        assert not any("scale" in name for name in run.model.state_dict())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"method": "nested", "sizes": [0.5, 0.25]}, "no cell holds 3 of the 6 units of layer '0'"),
        ({"method": "rolling", "roll": 1}, "in 2 rounds no cell holds 2 of the 6 units"),
        ({"method": "rolling", "roll": 3}, ""),
        ({"method": "rolling", "apart": True}, ""),
        ({"method": "nested", "sizes": [0.5, 1.0]}, ""),
        ({"method": "hist"}, ""),
    ],
    ids=str,
)
def test_units_that_nobody_will_hold_are_told(
    settings: dict[str, object], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        train(rounds=2, **settings)
    assert told in caplog.text
    assert bool(told) == ("no cell holds" in caplog.text)


def test_sampled_cells_keep_their_own_widths() -> None:
    network = histfl.Network.uniform(cells=4, clients_per_cell=1)
    shares = (0.34, 0.5, 0.67, 1.0)
    run = train(network=network, method="nested", sizes=list(shares), active_cells=2, rounds=4)
    widths = {0: 3, 1: 3, 2: 5, 3: 6}  # of six units, rounded up
    for record in run.records:
        assert [units for (units,) in record["units"]] == [widths[cell] for cell in record["active_cells"]]
