"""Models that name their unit groups themselves."""

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn

from histfl.errors import PartitionError
from histfl.partition import plan

Axes = Mapping[str, Sequence[tuple[str, int]]]


class Named(nn.Module):
    """Ten hidden units between two layers; `axes` is what it says of them."""

    def __init__(self, axes: Axes) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 10), nn.Linear(10, 3)
        self.axes = axes

    def unit_axes(self) -> Axes:
        return self.axes

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.leave(torch.relu(self.enter(inputs)))


GOOD = {"hidden": (("enter.weight", 0), ("enter.bias", 0), ("leave.weight", 1))}


def test_named_groups_are_cut_as_traced_ones() -> None:
    traced = plan(nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3)), torch.randn(4, 4))
    named = plan(Named(GOOD), torch.randn(4, 4))
    assert [group.name for group in named.groups] == ["hidden"]  # a traced one is called after its layer
    assert named.units.tolist() == traced.units.tolist()
    assert named.unit_parameters.tolist() == traced.unit_parameters.tolist()
    assert named.replicated_parameters == traced.replicated_parameters


def test_a_group_that_forgets_an_axis_is_found_out() -> None:
    forgetful = {"hidden": (("enter.weight", 0), ("enter.bias", 0))}
    with pytest.raises(
        PartitionError, match=r"no layer of Named can be cut .*hidden: the cut layer does not run"
    ):
        plan(Named(forgetful), torch.randn(4, 4))


def test_a_group_in_another_order_is_found_out() -> None:
    """Unit k is read by column 9 - k: the axes fit, and their order does not."""

    class Doubled(Named):
        def __init__(self) -> None:
            super().__init__(GOOD)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = torch.relu(self.enter(inputs))
            return self.leave(hidden.flip(1))

    with pytest.raises(PartitionError, match="computes something else than the masked one"):
        plan(Doubled(), torch.randn(4, 4))


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"hidden": (("enter.weigth", 0),)}, "axis 0 of 'enter.weigth', which the model does not have"),
        ({"hidden": (("enter.weight", 2),)}, "axis 2 of 'enter.weight'"),
        ({"hidden": (("enter.weight", 0), ("leave.weight", 0))}, r"axes of \[3, 10\] entries"),
        ({"hidden": ()}, "axes of no entries"),
        ({}, "it has no hidden layer"),
    ],
)
def test_wrong_names_are_said(axes: Axes, said: str) -> None:
    with pytest.raises(PartitionError, match=said):
        plan(Named(axes), torch.randn(4, 4))
