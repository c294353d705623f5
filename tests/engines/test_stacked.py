"""Layers, losses and graphs of many clients, each against what torch computes for one."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from engine_cases import MODELS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from histfl.engines.kernels.cpu_pooling import pool_across_images
from histfl.engines.kernels.layout import padded
from histfl.engines.kernels.linear import LayerCall, stacked_linear
from histfl.engines.kernels.losses import stacked_loss
from histfl.engines.steps.chain import ChainSteps, chain_of, paddings
from histfl.engines.steps.graph import StackedGraph, Unstackable
from histfl.partition import plan
from histfl.training.optimisers import InPlaceSGD
from histfl.training.scaling import scale_inputs, scale_ones


@settings(deadline=None, max_examples=40)
@given(
    clients=st.integers(1, 4),
    between=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    width=st.integers(1, 9),
    out=st.integers(1, 40),
    bias=st.booleans(),
    in_place=st.booleans(),
)
def test_stacked_linear_is_each_clients_linear_and_its_step(
    clients: int, between: list[int], width: int, out: int, bias: bool, in_place: bool
) -> None:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    inputs = normal(clients, *between, width).requires_grad_()
    start = [normal(clients, out, width), *([normal(clients, out)] if bias else [])]
    tensors = [x.clone().requires_grad_() for x in start]
    grad = normal(clients, *between, out)
    calls: list[LayerCall] = []
    outputs = stacked_linear(inputs, tensors[0], tensors[1] if bias else None, calls if in_place else None)
    wanted = [inputs, *(call.outputs for call in calls), *([] if in_place else tensors)]
    with torch.no_grad():
        for_inputs, *gradients = torch.autograd.grad(outputs, wanted, grad)
        for call, gradient in zip(calls, gradients, strict=False):
            call.layer.step(call.inputs, gradient, InPlaceSGD(learning_rate=0.1, keep=0.9))

    leaves = [x.clone().requires_grad_() for x in start]
    again = inputs.detach().clone().requires_grad_()
    right = torch.stack([F.linear(again[i], *[x[i] for x in leaves]) for i in range(clients)])
    right.backward(grad)
    torch.testing.assert_close(outputs, right)
    torch.testing.assert_close(for_inputs, again.grad)
    assert len(calls) == in_place
    for i, (tensor, before, leaf) in enumerate(zip(tensors, start, leaves, strict=True)):
        if in_place:
            torch.testing.assert_close(tensor.detach(), 0.9 * before - 0.1 * leaf.grad)
        else:
            torch.testing.assert_close(gradients[i], leaf.grad)
            assert torch.equal(tensor, before)


class Functions(nn.Module):
    """A chain of every kind of link, some before the first trained layer, and widths that get room (30, 31)."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 6)
        self.first, self.second, self.third = (
            nn.Linear(6, 30),
            nn.Linear(30, 31),
            nn.Linear(31, 15, bias=False),
        )
        self.last = nn.Linear(45, 3)
        self.gelu, self.rectify = nn.GELU(), nn.ReLU()
        self.relu = nn.LeakyReLU(0.2)  # a name says nothing
        self.frozen.requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.rectify(self.frozen(0.5 * inputs))
        hidden = self.third(F.relu(self.second(torch.relu(self.first(hidden)).relu())))
        hidden = self.gelu(F.gelu(self.relu(hidden).square() - 1.0, approximate="tanh")).tanh()
        return self.last(torch.flatten(hidden * hidden, 1))


ROOMS = {
    "first.weight": (1,),
    "first.bias": (1,),
    "second.weight": (2, 1),
    "second.bias": (1,),
    "third.weight": (2,),
}


@pytest.mark.parametrize("keep", [1.0, 0.9])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("frozen", ["", "first.weight", "second.bias", "second", "last", "scaled"])
def test_a_chain_steps_as_autograd_does(frozen: str, clients: int, keep: float) -> None:
    """Also where layers scale their inputs, each client's by a number of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = Functions().double()
        inputs = torch.randn(clients, 7, 3, 4, dtype=torch.float64)
    targets = torch.arange(7 * clients).view(clients, 7) % 3
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and not (frozen and name.startswith(frozen)))
    own = dict(model.named_parameters())
    trained = {name for name in own if own[name].requires_grad}
    if frozen == "scaled":
        scale_inputs(model, plan(model, inputs[0]), 1.0)
        own |= scale_ones(model)
        assert own.keys() - trained > {"frozen.weight"}
    chain = chain_of(StackedGraph(model).module)
    assert chain is not None
    room = paddings(chain, trained)
    assert room == ROOMS or frozen not in ("", "last", "scaled")
    leaves = {
        name: torch.stack([(1 + i) * value.detach() for i in range(clients)]).requires_grad_(name in trained)
        for name, value in own.items()
    }
    stacked = {
        name: padded(leaf.detach().clone(), room.get(name, ())).requires_grad_(name in trained)
        for name, leaf in leaves.items()
    }
    outputs = [
        functional_call(model, {name: leaf[i] for name, leaf in leaves.items()}, (inputs[i],))
        for i in range(clients)
    ]
    values = torch.stack([F.cross_entropy(*pair) for pair in zip(outputs, targets, strict=True)])
    values.sum().backward()
    steps = ChainSteps(chain, stacked, stacked_loss(F.cross_entropy), InPlaceSGD(0.1, keep), room)
    torch.testing.assert_close(steps.step(inputs, targets), values.detach())
    for name, leaf in leaves.items():
        right = leaf.detach() if leaf.grad is None else keep * leaf.detach() - 0.1 * leaf.grad
        torch.testing.assert_close(stacked[name].detach(), right, msg=name)


def test_what_is_more_than_a_chain_is_left_to_autograd() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.leave = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.leave(inputs + self.inner(inputs))

    for model in (Residual(), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), MODELS["tied"][0]()):
        assert chain_of(StackedGraph(model).module) is None


def test_a_graph_knows_what_it_cannot_stack() -> None:
    class Branching(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs if inputs.sum() > 0 else -inputs

    class Mixing(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs - inputs.mean(0)

    for model in (Branching(), Mixing(), nn.Conv2d(1, 1, 1), nn.Softmax(dim=0), nn.Flatten(0)):
        with pytest.raises(Unstackable):
            StackedGraph(nn.Sequential(model))


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - F.one_hot(targets, outputs.shape[-1])).square().sum(dim=-1).mean()


@pytest.mark.parametrize("loss", [F.cross_entropy, squared])
def test_stacked_losses_are_each_clients(loss: Callable[..., torch.Tensor]) -> None:
    outputs = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(15).view(3, 5) % 4
    values, grad = stacked_loss(loss)(outputs, targets)
    leaf = outputs.clone().requires_grad_()
    right = torch.stack([loss(leaf[i], targets[i]) for i in range(3)])
    right.sum().backward()
    torch.testing.assert_close(values, right)
    torch.testing.assert_close(grad, leaf.grad)


@settings(deadline=None, max_examples=40)
@given(
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    ceil_mode=st.booleans(),
    seed=st.integers(0, 99),
)
def test_pooling_across_images_is_torchs_with_the_same_ties(
    kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool, seed: int
) -> None:
    layer = nn.MaxPool2d(kernel, stride, min(padding, kernel // 2), dilation, ceil_mode=ceil_mode)
    fast = nn.Sequential(copy.deepcopy(layer))
    pool_across_images(fast)
    assert type(fast[0]) is not nn.MaxPool2d
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(3, (2, 3, 7, 8), generator=generator).double()  # many equal entries
    one, other = images.clone().requires_grad_(), images.clone().requires_grad_()
    right, found = layer(one), fast(other)
    grad = torch.randn(right.shape, dtype=torch.float64, generator=generator)
    right.backward(grad)
    found.backward(grad)
    assert torch.equal(found, right)
    torch.testing.assert_close(other.grad, one.grad)
    torch.testing.assert_close(fast(images[0]), layer(images[0]))
