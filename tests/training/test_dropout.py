"""Dropout by keys: what it does to entries, and on what its masks depend."""

import pytest
import torch
from torch import nn

from histfl.training.dropout import (
    KeyedDropout,
    dropout_scales,
    key_dropout,
    key_names,
    keyed_dropout,
    step_keys,
)

ONES = torch.ones(40, 50)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_and_the_scale_are_those_of_torch(p: float) -> None:
    dropped = keyed_dropout(torch.ones(200, 1001), torch.tensor(7), 0, p, False)
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 1 / (1 - p)]))
    assert float((dropped == 0).double().mean()) == pytest.approx(p, abs=0.005)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.02)


def test_a_mask_depends_on_client_step_and_layer() -> None:
    keys = step_keys(3, torch.tensor([0, 1, 2**40]), first_step=5, steps=4)
    masks = [dropout_scales(ONES, key, layer, 0.5, False) for key in keys.flatten() for layer in (0, 1)]
    for place, mask in enumerate(masks):
        for other in masks[:place]:
            assert float((mask == other).double().mean()) == pytest.approx(0.5, abs=0.06)


def test_keys_of_later_steps_need_no_earlier_ones() -> None:
    clients = torch.tensor([4, 9])
    whole = step_keys(3, clients, first_step=0, steps=7)
    assert torch.equal(whole[5:], step_keys(3, clients, first_step=5, steps=2))


@pytest.mark.parametrize("whole_channels", [False, True])
def test_clients_side_by_side_have_the_masks_of_each(whole_channels: bool) -> None:
    inputs, keys = torch.randn(3, 4, 5, 6, 7), torch.tensor([3, -8, 11])
    together = keyed_dropout(inputs, keys, 2, 0.4, whole_channels)
    vmapped = torch.func.vmap(lambda own, key: keyed_dropout(own, key, 2, 0.4, whole_channels))(inputs, keys)
    for client in range(3):
        alone = keyed_dropout(inputs[client], keys[client], 2, 0.4, whole_channels)
        assert torch.equal(alone, together[client])
        assert torch.equal(alone, vmapped[client])


def test_whole_channels_are_dropped_together() -> None:
    dropped = keyed_dropout(torch.ones(8, 20, 3, 3), torch.tensor(1), 0, 0.5, True)
    kept = dropped.flatten(start_dim=2) > 0
    assert torch.equal(kept.any(dim=2), kept.all(dim=2))
    assert 0 < int(kept.any(dim=2).sum()) < 160


def test_everything_and_nothing() -> None:
    assert torch.equal(keyed_dropout(ONES, torch.tensor(1), 0, 1.0, False), torch.zeros_like(ONES))
    assert torch.equal(keyed_dropout(ONES, torch.tensor(1), 0, 0.0, False), ONES)
    assert torch.equal(KeyedDropout(0.5, whole_channels=False, layer=0).eval()(ONES), ONES)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.1)).eval()
        self.once = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.2))
        self.twice, self.never = nn.Dropout(0.3), nn.Dropout(0.0)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.never(self.twice(self.once(self.twice(self.frozen(inputs)))))
        return hidden


def test_layers_that_are_called_once_in_training_are_keyed() -> None:
    model = Model()
    before = torch.random.get_rng_state()
    key_dropout(model, torch.zeros(2, 5))
    assert torch.equal(before, torch.random.get_rng_state())
    assert key_names(model) == ("once.1.key",)
    assert [type(model.frozen[1]), type(model.once[1]), type(model.twice)] == [
        nn.Dropout,
        KeyedDropout,
        nn.Dropout,
    ]
    assert type(model.never) is nn.Identity
    assert [model.training, model.frozen.training, model.once[1].training] == [True, False, True]
    assert "once.1.key" not in model.state_dict()
