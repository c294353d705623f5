"""What traces well and breaks when cut is found by trying, and left whole with a reason."""

from __future__ import annotations

import models_for_tests as models
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from histfl.errors import PartitionError
from histfl.partition import plan
from histfl.partition.check import Bench
from histfl.partition.discover import discover
from histfl.partition.plan import CutAxis, UnitGroup


def test_a_channel_shuffle_with_old_sizes_is_left_whole_and_the_rest_is_cut() -> None:
    cut = plan(models.Shuffle(), models.images(3, 6))
    assert [group.name for group in cut.groups] == ["fc1"]
    assert "something else" in cut.uncut["conv1"] or "does not run" in cut.uncut["conv1"]


def test_an_average_over_units_is_left_whole() -> None:
    cut = plan(models.UnitAverage(), torch.randn(4, 6))
    assert "fc1" not in [group.name for group in cut.groups]
    with pytest.raises(PartitionError, match="fc1: the cut layer computes something else"):
        plan(models.UnitAverage(), torch.randn(4, 6), include=["fc1"])


def test_a_wrong_axis_is_noticed() -> None:
    model = models.mlp(5, 8, 8, 3)
    bench = Bench.of(model, torch.randn(4, 5))
    right = next(group for group in discover(model, torch.randn(4, 5)) if group.name == "0")
    assert bench.failures([right]) == {}
    swapped = CutAxis("2.weight", 1, torch.arange(7, -1, -1))
    wrong = UnitGroup("0", 8, (*right.axes[:2], swapped))
    assert "something else" in bench.failures([wrong])["0"]
    missing = UnitGroup("0", 8, right.axes[:2])
    assert "does not run" in bench.failures([missing])["0"]


def test_a_cut_of_the_output_is_noticed_by_its_shape() -> None:
    model = models.mlp(5, 8, 3)
    output = UnitGroup(
        "2", 3, (CutAxis("2.weight", 0, torch.arange(3)), CutAxis("2.bias", 0, torch.arange(3)))
    )
    assert "shape" in Bench.of(model, torch.randn(4, 5)).failures([output])["2"]


def test_one_bad_group_among_many_is_the_one_that_is_named() -> None:
    model = nn.Sequential(*[layer for _ in range(4) for layer in (models.mlp(6, 9, 6), nn.Tanh())])
    groups = [group for group in discover(model, torch.randn(4, 6)) if group.name.endswith(".0")]
    assert len(groups) == 4
    axes = groups[2].axes
    groups[2] = UnitGroup("bad", 9, (*axes[:2], CutAxis(axes[2].parameter, 1, torch.arange(8, -1, -1))))
    assert set(Bench.of(model, torch.randn(4, 6)).failures(groups)) == {"bad"}


def test_a_wrong_gradient_is_noticed_where_the_outputs_agree() -> None:
    class Coupled(nn.Module):
        """The forward pass does not use the number of units, the backward pass does."""

        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.relu(self.fc1(x))
            scaled = hidden / hidden.shape[1]
            return self.fc2(hidden.detach() + scaled - scaled.detach())

    with pytest.raises(PartitionError, match=r"the gradient of fc1\.\w+ differs"):
        plan(Coupled(), torch.randn(4, 5))


def test_a_zero_initialised_layer_hides_nothing() -> None:
    model = models.UnitAverage()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert "fc1" not in [group.name for group in plan(model, torch.randn(4, 6)).groups]


def test_a_layer_that_passes_nothing_on_hides_nothing() -> None:
    model = models.UnitAverage()
    nn.init.constant_(model.fc3.bias, -100.0)
    assert "fc1" not in [group.name for group in plan(model, torch.randn(4, 6)).groups]


def test_a_model_that_casts_to_float32_is_checked_in_float32() -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(torch.relu(self.fc1(x.float())))

    model = Casting()
    assert Bench.of(model, torch.randn(4, 5)).dtype == torch.float32
    assert [group.name for group in plan(model, torch.randn(4, 5)).groups] == ["fc1"]


def test_a_float32_step_inside_a_float64_model_is_seen() -> None:
    """Norms of transformers do that; there a last bit may flip between the compact and the masked model."""

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(torch.relu(self.fc1(x)).float().to(x.dtype))

    assert Bench.of(Inside(), torch.randn(4, 5)).dtype == torch.float32
    assert Bench.of(nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)), torch.randn(4, 5)).dtype == torch.float64
    assert [group.name for group in plan(Inside(), torch.randn(4, 5)).groups] == ["fc1"]


def test_dropout_does_not_disturb_the_check() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(F.dropout(torch.relu(self.fc1(x)), 0.5, self.training))

    assert plan(Dropping(), torch.randn(4, 5)).groups


def test_a_wrong_order_in_a_new_norm_is_noticed_although_its_entries_are_all_equal() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    right = next(group for group in discover(model, torch.randn(4, 5)) if group.name == "0")
    axes = [
        CutAxis(cut.parameter, cut.axis, cut.unit.flip(0) if cut.parameter == "1.weight" else cut.unit)
        for cut in right.axes
    ]
    bench = Bench.of(model, torch.randn(4, 5))
    assert not bench.difference([right])
    assert bench.difference([UnitGroup("0", 8, tuple(axes))])


class Auxiliary(nn.Module):
    """A second head that is there in training alone, as in GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.leave = nn.Linear(5, 8), nn.Linear(8, 12), nn.Linear(12, 3)
        self.aside = nn.Linear(8, 3)

    def noise(self) -> torch.Tensor | float:
        return 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.enter(x))
        found: torch.Tensor = self.leave(torch.relu(self.inner(hidden)))
        return found + self.aside(hidden) + self.noise() if self.training else found


class NoisyAuxiliary(Auxiliary):
    def noise(self) -> torch.Tensor | float:
        return torch.randn(())


@pytest.mark.parametrize("kind", [Auxiliary, NoisyAuxiliary])
def test_what_a_model_does_in_training_alone_is_tried_too(kind: type[nn.Module]) -> None:
    assert [group.name for group in plan(kind(), torch.randn(4, 5)).groups] == ["inner"]
    with pytest.raises(PartitionError, match=r"enter: the cut layer does not run .*mat1"):
        plan(kind(), torch.randn(4, 5), include=["enter"])


def test_a_buffer_that_training_changes_is_the_same_for_cut_and_masked() -> None:
    class Counting(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layers = models.mlp(5, 8, 3)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            found: torch.Tensor = self.layers(x * self.seen)
            return found

    assert plan(Counting(), torch.randn(4, 5)).groups


def test_complex_buffers_keep_their_imaginary_part() -> None:
    """Rotations of positions are kept so."""

    class Rotating(nn.Module):
        turn: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layers = models.mlp(4, 8, 3)
            self.register_buffer("turn", torch.tensor([1j, 1j]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turned = torch.view_as_complex(x.unflatten(-1, (2, 2))) * self.turn
            found: torch.Tensor = self.layers(torch.view_as_real(turned).flatten(-2))
            return found

    assert plan(Rotating(), torch.randn(4, 4)).groups
    bench = Bench.of(Rotating(), torch.randn(4, 4))
    assert bench.model.get_buffer("turn").tolist() == [1j, 1j]


def test_inputs_that_are_changed_in_place_are_the_same_for_cut_and_masked() -> None:
    class Scaling(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = super().forward(x.mul_(2).add_(1))
            return found

    inputs = torch.randn(4, 5)
    before = inputs.clone()
    assert plan(Scaling(*models.mlp(5, 8, 3)), inputs).groups
    assert torch.equal(inputs, before)
