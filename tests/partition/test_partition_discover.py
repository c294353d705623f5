"""Which unit groups are found, and which of them a plan cuts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import models_for_tests as models
import numpy as np
import pytest
import torch
from torch import nn

from histfl.errors import PartitionError
from histfl.partition import draw, even_counts, num_parameters, plan
from histfl.partition.discover import discover
from histfl.partition.plan import CutAxis, UnitGroup


def axes(group: UnitGroup) -> list[tuple[str, int]]:
    return [(cut.parameter, cut.axis) for cut in group.axes]


def by_name(groups: tuple[UnitGroup, ...]) -> dict[str, UnitGroup]:
    return {group.name: group for group in groups}


def test_lenet5_groups_follow_the_flattening_of_16_channels_to_400_features() -> None:
    groups = by_name(discover(models.LeNet5(), models.images(1, 28)))
    assert {name: group.num_units for name, group in groups.items()} == {
        "conv1": 6,
        "conv2": 16,
        "fc1": 120,
        "fc2": 84,
        "fc3": 10,
    }
    assert axes(groups["conv2"]) == [("conv2.weight", 0), ("conv2.bias", 0), ("fc1.weight", 1)]
    assert groups["conv2"].axes[2].unit.tolist() == [position // 25 for position in range(400)]
    assert "output" in groups["fc3"].obstacle


def test_a_deep_mlp_is_cut_in_every_other_layer_and_by_ist_in_all() -> None:
    model, inputs = models.mlp(12, 30, 40, 50, 5), torch.randn(4, 12)
    assert [group.name for group in plan(model, inputs).groups] == ["0", "4"]
    assert [group.name for group in plan(model, inputs, scheme="every").groups] == ["0", "2", "4"]


def test_no_scheme_needs_no_trace() -> None:
    class Untraceable(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("must not run")

    whole = plan(Untraceable(3, 4), torch.randn(2, 3), scheme="none")
    assert whole.groups == ()
    assert whole.num_parameters == whole.replicated_parameters == 16


def test_concatenated_branches_own_their_positions_of_the_next_layer() -> None:
    groups = by_name(discover(models.UNet(), models.images(1, 8)))
    up, down = (next(c for c in groups[n].axes if c.parameter == "join.weight") for n in ("up", "down1"))
    assert up.unit.tolist() == [*range(12), *[-1] * 8]
    assert down.unit.tolist() == [*[-1] * 12, *range(8)]
    assert ("up.weight", 1) in axes(groups["up"])  # a transposed convolution has its outputs on axis 1


def test_both_branches_of_a_concatenation_can_be_cut_together() -> None:
    cut = plan(models.UNet(), models.images(1, 8), include=["up", "down1"])
    assert [group.name for group in cut.groups] == ["down1", "up"]


def test_a_unit_of_a_grouped_convolution_is_a_whole_group_of_channels() -> None:
    groups = by_name(discover(models.ResNeXtBlock(), models.images(3, 8)))
    group = groups["conv1"]
    assert group.num_units == 8
    units = {cut.parameter: cut.unit.tolist() for cut in group.axes}
    assert units["conv1.weight"] == [channel // 2 for channel in range(16)]
    assert units["conv2.weight"] == units["conv3.weight"] == [channel // 3 for channel in range(24)]


def test_depthwise_channels_go_with_the_expansion() -> None:
    cut = plan(models.MobileNet(), models.images(3, 16))
    assert [group.name for group in cut.groups] == [f"blocks.{k}.body.0" for k in range(3)]
    assert ("blocks.0.body.3.weight", 0) in axes(cut.groups[0])
    assert cut.groups[0].num_units == 24


def test_a_unit_of_a_groupnorm_network_is_a_whole_norm_group() -> None:
    model = models.ResNet((8, 16), 1, lambda width: nn.GroupNorm(4, width))
    groups = by_name(plan(model, models.images(3, 8)).groups)
    assert groups["stages.1.0.conv1"].num_units == 4
    assert groups["stages.1.0.conv1"].axes[0].unit.tolist() == [channel // 4 for channel in range(16)]


def test_the_halves_of_a_gated_unit_are_one_unit() -> None:
    (group,) = plan(models.GatedUnit(), torch.randn(4, 5, 6)).groups
    assert group.num_units == 16
    assert group.axes[0].unit.tolist() == [*range(16), *range(16)]


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Sequential(nn.Linear(6, 32), nn.GLU(), nn.Linear(16, 3)), torch.randn(4, 6)),
        (nn.Sequential(nn.Linear(6, 32), nn.GLU(), nn.Linear(16, 3)), torch.randn(4, 5, 6)),
        (nn.Sequential(nn.Conv2d(2, 32, 3), nn.GLU(dim=1), nn.Conv2d(16, 3, 3)), torch.randn(4, 2, 8, 8)),
    ],
)
def test_a_layer_of_gated_units_is_cut_in_pairs(model: nn.Module, inputs: torch.Tensor) -> None:
    (group,) = plan(model, inputs).groups
    assert group.axes[0].unit.tolist() == [*range(16), *range(16)]


def test_lora_cuts_the_rank_alone_and_leaves_the_frozen_base_whole() -> None:
    cut = plan(models.lora(), torch.randn(4, 12))
    assert [group.name for group in cut.groups] == ["0.lora_A", "2.lora_A"]
    assert axes(cut.groups[0]) == [("0.lora_A.weight", 0), ("0.lora_B.weight", 1)]
    assert cut.num_parameters == 4 * (12 + 20 + 20 + 5)
    assert cut.replicated_parameters == 0


def test_units_of_frozen_parameters_alone_are_not_cut() -> None:
    model = models.mlp(4, 60, 5, 2)
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    cut = plan(model, torch.randn(3, 4))
    assert [group.name for group in cut.groups] == ["2"]
    assert cut.uncut["0"] == "it holds no trainable parameter"


@pytest.mark.parametrize("own", [True, False])
def test_of_a_transformer_the_mlps_are_cut_and_attention_is_left_whole(own: bool) -> None:
    cut = plan(models.Transformer(own), models.tokens())
    assert [group.name for group in cut.groups] == ["blocks.0.mlp.0", "blocks.1.mlp.0"]
    assert any("normalises over" in reason for reason in cut.uncut.values())
    if own:
        assert "does not run" in cut.uncut["blocks.0.attention.q"]


def test_resnet18_keeps_its_residual_streams_and_cuts_the_inner_channels() -> None:
    cut = plan(models.ResNet(), models.images(3, 16))
    assert cut.num_parameters == 11_173_962
    assert [group.name for group in cut.groups] == [
        f"stages.{stage}.{block}.conv1" for stage in range(4) for block in range(2)
    ]
    cells = draw(cut, even_counts(cut, 4), np.random.default_rng(0))
    assert [num_parameters(cell) for cell in cells] == [2_931_978] * 4
    assert 2_931_978 < 0.3 * 11_173_962


def test_dict_inputs_and_dict_outputs_with_nothing_in_some_of_them() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = models.mlp(4, 6, 2)

        def forward(self, features: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor | None]:
            return {"logits": scale * self.body(features), "loss": None}

    (group,) = plan(Named(), {"features": torch.randn(3, 4), "scale": 2.0}).groups
    assert group.name == "body.0"


@dataclass
class Answer:
    logits: torch.Tensor
    note: str = ""


class Answering(nn.Module):
    def __init__(self, answer: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.body, self.answer = models.mlp(4, 6, 2), answer

    def forward(self, inputs: torch.Tensor) -> object:
        return self.answer(self.body(inputs))


def test_outputs_may_be_a_dataclass() -> None:
    (group,) = plan(Answering(lambda scores: [Answer(scores)]), torch.randn(3, 4)).groups
    assert group.name == "body.0"


def test_outputs_in_another_object_are_refused_with_what_would_do() -> None:
    with pytest.raises(
        PartitionError, match=r"Answering returns no tensor .*dataclass.*return one, or .*'hfedavg'"
    ):
        plan(Answering(lambda scores: torch.distributions.Categorical(logits=scores)), torch.randn(3, 4))


def test_a_single_example_is_enough_for_batch_normalisation() -> None:
    assert plan(models.MobileNet(), models.images(3, 16, batch=1)).groups


def test_planning_leaves_the_users_model_alone(kind: tuple[nn.Module, torch.Tensor]) -> None:
    model, inputs = kind
    model.train()
    next(model.children()).eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    before = copy.deepcopy(model)
    plan(model, inputs)
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert [type(m) for m in model.modules()] == [type(m) for m in before.modules()]
    for (name, value), old in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(value, old), name
    for value, old in zip(model.parameters(), before.parameters(), strict=True):
        assert value.requires_grad == old.requires_grad
        assert (value.grad is None) == (not value.requires_grad)
        assert value.grad is None or torch.equal(value.grad, torch.ones_like(value))


def test_planning_uses_up_none_of_the_users_random_numbers() -> None:
    class Noisy(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 0.0 * torch.randn(1)

    model, inputs = Noisy(*models.mlp(4, 6, 2)), torch.randn(3, 4)
    before = torch.get_rng_state()
    assert plan(model, inputs).groups
    assert torch.equal(torch.get_rng_state(), before)


def test_planning_works_inside_no_grad() -> None:
    with torch.no_grad():
        assert plan(models.mlp(4, 6, 2), torch.randn(3, 4)).groups


def test_nothing_to_cut_says_what_was_tried() -> None:
    with pytest.raises(PartitionError, match=r"no layer of Linear can be cut .*the model's output.*hfedavg"):
        plan(nn.Linear(3, 4), torch.randn(2, 3))
    with pytest.raises(PartitionError, match=r"fc1: it would cut fc2.weight along two axes"):
        plan(models.SquareResidual(), torch.randn(2, 6))


def test_inputs_that_the_model_does_not_take_are_named() -> None:
    with pytest.raises(PartitionError, match="does not run on the example inputs"):
        plan(models.mlp(4, 6, 2), torch.randn(3, 5))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(PartitionError, match="no trainable parameter"):
        plan(models.mlp(4, 6, 2).requires_grad_(False), torch.randn(3, 4))


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(PartitionError, match="'alternating', 'every' and 'none'"):
        plan(models.mlp(4, 6, 2), torch.randn(3, 4), scheme="half")  # type: ignore[arg-type]


class Recurrent(nn.Module):
    """Of a layer that torch-pruning does not know, it follows every step in time."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.enter, self.recurrent = nn.Conv1d(2, 6, 1), layer
        self.fc, self.output = nn.Linear(8, 12), nn.Linear(12, 2)

    def states(self, inputs: torch.Tensor) -> torch.Tensor:
        if isinstance(self.recurrent, nn.RNNBase):
            last: torch.Tensor = self.recurrent(inputs)[0][:, -1]
            return last
        kept: Any = None
        for step in inputs.unbind(1):
            kept = self.recurrent(step, kept)
        return kept[0] if isinstance(kept, tuple) else kept

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        entered = torch.relu(self.enter(inputs)).transpose(1, 2)
        found: torch.Tensor = self.output(torch.relu(self.fc(self.states(entered))))
        return found


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.GRU(6, 8, batch_first=True),
        lambda: nn.RNN(6, 8, batch_first=True),
        lambda: nn.LSTM(6, 8, batch_first=True, proj_size=0).double(),
        lambda: nn.LSTM(6, 4, batch_first=True, bidirectional=True),
        lambda: nn.GRUCell(6, 8),
        lambda: nn.RNNCell(6, 8),
        lambda: nn.LSTMCell(6, 8),
    ],
)
def test_a_recurrent_layer_is_left_whole_and_what_follows_is_cut(layer: Callable[[], nn.Module]) -> None:
    made = layer()
    kind = next(made.parameters()).dtype
    planned = plan(Recurrent(made).to(kind), torch.randn(4, 2, 30, dtype=kind))
    assert [group.name for group in planned.groups] == ["fc"]
    assert planned.uncut["enter"] == "the recurrent layer recurrent needs all of these units"


def test_packed_sequences_are_followed() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.recurrent = nn.Linear(5, 6), nn.GRU(6, 8, batch_first=True)
            self.fc, self.output = nn.Linear(8, 12), nn.Linear(12, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            lengths = torch.full((len(inputs),), 3)
            packed = nn.utils.rnn.pack_padded_sequence(self.enter(inputs), lengths, batch_first=True)
            states, _ = nn.utils.rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
            found: torch.Tensor = self.output(torch.relu(self.fc(states[:, -1])))
            return found

    planned = plan(Packed(), torch.randn(4, 3, 5))
    assert [group.name for group in planned.groups] == ["fc"]


def test_a_compiled_part_is_traced_as_it_is_written() -> None:
    inner = torch.compile(nn.Sequential(nn.Linear(5, 8), nn.ReLU()), backend="eager")
    assert isinstance(inner, nn.Module)
    (group,) = plan(nn.Sequential(inner, nn.Linear(8, 3)), torch.randn(4, 5)).groups
    assert group.num_units == 8


class HalfFollowed(nn.Module):
    """The first units of a layer feed one layer more than the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave, self.more = nn.Linear(4, 10), nn.Linear(10, 3), nn.Linear(5, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.enter(inputs))
        found: torch.Tensor = self.leave(hidden) + self.more(hidden[:, :5])
        return found


def test_units_that_a_later_layer_lacks_are_no_error_of_ours() -> None:
    with pytest.raises(PartitionError, match=r"enter: the cut layer does not run .* 'hfedavg'"):
        plan(HalfFollowed(), torch.randn(4, 4))


def test_units_of_different_sizes_are_counted_for_each() -> None:
    group = UnitGroup(
        "g", 4, (CutAxis("w", 0, torch.arange(4)), CutAxis("v", 1, torch.tensor([0, 0, 1, -1])))
    )
    assert group.unit_parameters({"w": (4, 2), "v": (5, 4)}, {"w", "v"}).tolist() == [12, 7, 2, 2]


class PartlyFlattened(nn.Module):
    """Some channels are flattened and the means of all stand beside them: torch-pruning's maps go round and round, each
    time to four times as many positions."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(1, 6, 1), nn.Linear(6 + 3 * 4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        channels = torch.relu(self.enter(inputs[:, None]))
        found: torch.Tensor = self.leave(torch.cat([channels[:, :3].flatten(1), channels.mean(2)], 1))
        return found


def test_a_walk_without_an_end_is_left() -> None:
    with pytest.raises(PartitionError, match="enter: its units could not be followed into enter"):
        plan(PartlyFlattened(), torch.randn(4, 4))
