"""Training a compact submodel is training the full model under its mask."""

from __future__ import annotations

import models_for_tests as models
import numpy as np
import pytest
import torch
from torch import nn

from histfl.partition import Scheme, State, draw, even_counts, extract, plan, training_copy
from histfl.partition.submodel import masks

STEPS, LEARNING_RATE, MOMENTUM = 3, 0.05, 0.9


def train(
    model: nn.Module, start: State, inputs: torch.Tensor, trainable: frozenset[str], mask=None
) -> State:
    """A few SGD steps with momentum on a fixed batch; gradients are masked where a mask is given."""
    state = dict(start)
    velocity = {name: torch.zeros_like(state[name]) for name in trainable}
    for _ in range(STEPS):
        leaves = {name: value.requires_grad_(name in trainable) for name, value in state.items()}
        outputs = torch.func.functional_call(model, leaves, (inputs,)).flatten(1)
        labels = torch.arange(len(inputs)) % outputs.shape[1]
        trained = [leaves[name] for name in velocity]
        gradients = torch.autograd.grad(nn.functional.cross_entropy(outputs, labels), trained)
        for name, gradient in zip(velocity, gradients, strict=True):
            gradient = gradient if mask is None else gradient * mask[name]
            velocity[name] = MOMENTUM * velocity[name] + gradient
            state[name] = state[name].detach() - LEARNING_RATE * velocity[name]
    return {name: value.detach() for name, value in state.items()}


@pytest.mark.parametrize("scheme", ["alternating", "every"])
def test_compact_training_equals_masked_training(kind, scheme) -> None:
    compare(*kind, scheme)


def test_compact_training_equals_masked_training_for_resnet18_at_full_width() -> None:
    torch.manual_seed(0)
    compare(models.ResNet(), models.images(3, 16, batch=2), "alternating")


def compare(model: nn.Module, inputs: torch.Tensor, scheme: Scheme) -> None:
    if inputs.is_floating_point():
        inputs = inputs.double()
    model = model.double()
    cut = plan(model, inputs, scheme=scheme)
    runner = training_copy(model)
    state = {name: value.detach() for name, value in model.named_parameters()}
    part = draw(cut, even_counts(cut, 2), np.random.default_rng(3))[0]
    mask = masks(part)
    compact = train(runner, extract(state, part), inputs, cut.trainable)
    masked = train(runner, {n: v * mask[n] for n, v in state.items()}, inputs, cut.trainable, mask)
    moved = 0.0
    for name, value in extract(masked, part).items():
        assert torch.allclose(compact[name], value, rtol=0, atol=1e-10), name
        moved += float((value - extract(state, part)[name]).abs().max())
    assert moved > 1e-4  # it did train


def test_the_training_copy_computes_what_the_model_does_in_training(kind) -> None:
    model, inputs = kind
    runner = training_copy(model)
    model.train()
    assert all(module.training for module in runner.modules())
    assert torch.equal(runner(inputs), model(inputs))


def test_the_training_copy_shares_nothing_with_the_model(kind) -> None:
    model, _ = kind
    runner = training_copy(model)
    mine = {value.data_ptr() for value in model.state_dict().values()}
    assert not mine & {value.data_ptr() for value in runner.state_dict().values()}
