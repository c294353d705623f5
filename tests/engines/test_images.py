"""Layers over images of many clients, with the images innermost, against torch's own."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from engine_cases import make_experiment
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from histfl.engines import VectorisedEngine
from histfl.engines.blocks import Stepper
from histfl.engines.kernels.cpu_convolution import FEW_CHANNELS, StackedConv2d, geometry_of, stacked_conv2d
from histfl.engines.kernels.cpu_pooling import StackedMaxPool2d, pool_of, stacked_max_pool2d
from histfl.engines.kernels.losses import stacked_loss
from histfl.engines.steps.chain import ChainSteps, chain_of
from histfl.engines.steps.choose import choose_trainer
from histfl.engines.steps.drivers import DirectTrainer
from histfl.engines.steps.graph import CpuImages, StackedGraph, Unstackable
from histfl.engines.steps.one_by_one import OneByOneSteps
from histfl.engines.steps.stacked import StackedSteps
from histfl.training import Task, hist
from histfl.training.optimisers import InPlaceSGD

pytest.importorskip("numba", reason="the extra fast is not installed")

CLIENTS, IMAGES = 2, 3
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def normal(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def each_client(layer: nn.Conv2d, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """What torch makes of inputs, weights and biases [client, ...]."""
    settings = layer.stride, layer.padding, layer.dilation, layer.groups
    outputs = [
        F.conv2d(own[0], own[1], own[2] if len(own) > 2 else None, *settings)
        for own in zip(*tensors, strict=True)
    ]
    return torch.stack(outputs)


@settings(deadline=None, max_examples=60)
@given(
    size=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    padding=st.one_of(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.sampled_from(["same", "valid"])),
    groups=st.integers(1, 2),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    bias=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolutions_and_their_gradients_are_each_clients(
    size: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int] | str,
    groups: int,
    channels: tuple[int, int],
    bias: bool,
) -> None:
    stride = (1, 1) if padding == "same" else stride
    into, out = (groups * number for number in channels)
    layer = nn.Conv2d(into, out, size, stride, padding, dilation, groups, bias)
    tensors = [
        normal(CLIENTS, IMAGES, into, 9, 8),
        normal(CLIENTS, *layer.weight.shape),
        *([normal(CLIENTS, out)] if bias else []),
    ]
    for tensor in tensors:
        tensor.requires_grad_()
    right = each_client(layer, tensors)
    geometry = geometry_of(layer)
    assert geometry is not None
    found = stacked_conv2d(tensors[0], tensors[1], tensors[2] if bias else None, *geometry)
    torch.testing.assert_close(found, right)
    grad = normal(*right.shape)
    for one, other in zip(
        torch.autograd.grad(found, tensors, grad), torch.autograd.grad(right, tensors, grad), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_single_precision_too() -> None:
    layer = nn.Conv2d(3, 5, 5, padding=2)
    tensors = [normal(2, 20, 3, 12, 12).float(), normal(2, 5, 3, 5, 5).float(), normal(2, 5).float()]
    geometry = geometry_of(layer)
    assert geometry is not None
    torch.testing.assert_close(stacked_conv2d(*tensors, *geometry), each_client(layer, tensors))


def test_what_is_not_finite_is_not_lost() -> None:
    images = normal(1, 2, 1, 6, 6)
    images[0, 1, 0, 3, 3] = float("inf")
    outputs = StackedConv2d(normal(1, 2, 1, 3, 3), None, geometry_of(nn.Conv2d(1, 2, 3)))(images)  # type: ignore[arg-type]
    assert outputs[0, 0].isfinite().all()
    assert not outputs[0, 1].isfinite().all()


@settings(deadline=None, max_examples=30)
@given(
    kernel=st.integers(1, 3),
    stride=PAIRS,
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    ceil=st.booleans(),
)
def test_pooling_and_its_gradient_are_each_clients(
    kernel: int, stride: tuple[int, int], padding: int, dilation: int, ceil: bool
) -> None:
    layer = nn.MaxPool2d(kernel, stride, min(padding, kernel // 2), dilation, ceil_mode=ceil)
    images = (normal(CLIENTS, IMAGES, 2, 7, 8) * 2).round().requires_grad_()  # many equal entries
    pool = pool_of(layer)
    assert pool is not None
    right = torch.stack([layer(own) for own in images])
    grad = normal(*right.shape)
    (gradient,) = torch.autograd.grad(right, images, grad)
    found = stacked_max_pool2d(images, *pool)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(torch.autograd.grad(found, images, grad)[0], gradient)
    link = StackedMaxPool2d(pool)
    torch.testing.assert_close(link(images.detach()), right.detach())
    torch.testing.assert_close(link.for_inputs(grad), gradient)


@pytest.mark.parametrize("frozen", ["", "0.weight", "0.bias", "0", "3"])
@pytest.mark.parametrize("keep", [1.0, 0.9])
def test_a_chain_of_images_steps_as_autograd_does(frozen: str, keep: float) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2, stride=(1, 2), bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * 3 * 2, 3),
    ).double()
    images, targets = normal(CLIENTS, IMAGES, 1, 8, 8), torch.arange(CLIENTS * IMAGES).view(CLIENTS, -1) % 3
    trained = {name for name, _ in model.named_parameters() if not (frozen and name.startswith(frozen))}
    stacked = {
        name: normal(CLIENTS, *value.shape).requires_grad_(name in trained)
        for name, value in model.named_parameters()
    }
    leaves = {name: value.detach().clone().requires_grad_(name in trained) for name, value in stacked.items()}
    outputs = [
        torch.func.functional_call(model, {name: leaf[i] for name, leaf in leaves.items()}, (images[i],))
        for i in range(CLIENTS)
    ]
    losses = torch.stack([F.cross_entropy(*pair) for pair in zip(outputs, targets, strict=True)])
    losses.sum().backward()
    chain = chain_of(StackedGraph(model, images=CpuImages()).module)
    assert chain is not None
    steps = ChainSteps(chain, stacked, stacked_loss(F.cross_entropy), InPlaceSGD(0.1, keep), {})
    torch.testing.assert_close(steps.step(images, targets), losses.detach())
    for name, leaf in leaves.items():
        right = leaf.detach() if leaf.grad is None else keep * leaf.detach() - 0.1 * leaf.grad
        torch.testing.assert_close(stacked[name].detach(), right, msg=name)


def test_many_channels_are_left_to_torch() -> None:
    assert geometry_of(nn.Conv2d(FEW_CHANNELS, 2, 3)) is None
    assert geometry_of(nn.Conv2d(FEW_CHANNELS, 2, 3, groups=2)) is not None
    assert geometry_of(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")) is None
    with pytest.raises(Unstackable):
        StackedGraph(
            nn.Sequential(nn.Conv2d(1, FEW_CHANNELS, 3), nn.Conv2d(FEW_CHANNELS, 2, 3)), images=CpuImages()
        )


def stepper_of(task: Task) -> Stepper:
    trainer = choose_trainer(task)
    assert isinstance(trainer, DirectTrainer)
    return trainer.stepper


def test_without_compiled_kernels_clients_train_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_experiment("lenet5").hist.task
    stepper = stepper_of(task)
    assert isinstance(stepper, StackedSteps)
    assert stepper.chain is not None
    monkeypatch.setattr("histfl.engines.steps.stacked.numba_installed", lambda: False)
    assert type(stepper_of(task)) is OneByOneSteps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_left_to_torch(dtype: torch.dtype) -> None:
    experiment = make_experiment("lenet5", dtype=dtype)
    assert type(stepper_of(experiment.hist.task)) is OneByOneSteps
    state = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    (outcome,) = hist(experiment.hist, state, VectorisedEngine(), first_round=0, rounds=1)
    assert all(value.dtype == dtype for value in outcome.state.values())
