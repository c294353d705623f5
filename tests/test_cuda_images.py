"""The kernels for images of many clients on a GPU against torch's, client by client; skipped where there is none."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from histfl.data import TensorData
from histfl.devices import triton_installed
from histfl.engines.kernels.layout import kernels_innermost
from histfl.engines.kernels.linear import LayerCall
from histfl.engines.steps.choose import choose_trainer
from histfl.engines.steps.drivers import RecordedTrainer
from histfl.engines.steps.gpu_images import GpuImages
from histfl.engines.steps.graph import StackedGraph
from histfl.engines.steps.stacked import StackedSteps
from histfl.models import build_model
from histfl.network import Network
from histfl.partition import training_copy
from histfl.runs.build import Ingredients, build
from histfl.runs.config import Config
from histfl.settings import checked
from histfl.training.optimisers import InPlaceSGD

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and triton_installed()), reason="no CUDA GPU with Triton here"
)
CLIENTS, BATCH = 3, 5


def drawn(*shape: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, device="cuda").requires_grad_()


def assert_same(found: torch.Tensor, expected: torch.Tensor, leaves: Sequence[torch.Tensor]) -> None:
    """Outputs and gradients, to float32's rounding of the largest entry (a wrong entry is of its size)."""
    torch.manual_seed(1)
    grad = torch.randn_like(expected)
    both = zip(
        (found, *torch.autograd.grad(found, leaves, grad)),
        (expected, *torch.autograd.grad(expected, leaves, grad.double())),
        strict=True,
    )
    for ours, right in both:
        assert float((ours - right).detach().abs().max()) <= 1e-5 * float(right.detach().abs().max())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("channels", "out", "size", "taps", "stride", "padding", "dilation"),
    [
        (1, 6, 28, 5, 1, 2, 1),
        (6, 16, 14, 5, 1, 0, 1),
        (3, 64, 9, 3, 1, 1, 1),
        (13, 37, 8, 3, 1, 1, 1),
        (16, 16, 9, 3, 3, 1, 1),
        (64, 130, 8, 1, 2, 0, 1),
        (128, 64, 7, 3, 2, 1, 1),
        (3, 5, 10, 3, 1, 1, 2),
        (70, 300, 4, 3, 1, 1, 1),
    ],
)
def test_convolutions(
    channels: int, out: int, size: int, taps: int, stride: int, padding: int, dilation: int, bias: bool
) -> None:
    from histfl.engines.kernels.gpu_convolution import Convolution, stacked_convolution

    images, kernels = (
        drawn(CLIENTS, BATCH, channels, size, size + 1),
        drawn(CLIENTS, out, channels, taps, taps),
    )
    biases = drawn(CLIENTS, out) if bias else None
    torch.backends.cudnn.allow_tf32 = False
    found = stacked_convolution(images, kernels, biases, Convolution(stride, padding, dilation))
    each = [
        F.conv2d(
            images[i].double(),
            kernels[i].double(),
            None if biases is None else biases[i].double(),
            stride,
            padding,
            dilation,
        )
        for i in range(CLIENTS)
    ]
    assert_same(found, torch.stack(each), [images, kernels] if biases is None else [images, kernels, biases])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize("channels", [3, 16, 70])
def test_normalisation(channels: int, with_sum: bool, relu: bool) -> None:
    from histfl.engines.kernels.gpu_normalisation import stacked_normalisation

    values, added = drawn(CLIENTS, BATCH, channels, 9, 7), drawn(CLIENTS, BATCH, channels, 9, 7)
    weight, bias = drawn(CLIENTS, channels), drawn(CLIENTS, channels)
    far = values + 10.0  # a mean far from zero must not cost the variance its digits
    found = stacked_normalisation(far, weight, bias, 1e-5, added if with_sum else None, relu=relu)
    each = [
        F.batch_norm(
            far[i].double(), None, None, weight[i].double(), bias[i].double(), training=True, eps=1e-5
        )
        for i in range(CLIENTS)
    ]
    expected = torch.stack(each) + (added.double() if with_sum else 0.0)
    expected = torch.relu(expected) if relu else expected
    assert_same(found, expected, [values, weight, bias, *([added] if with_sum else [])])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize(("channels", "group"), [(3, 1), (16, 2), (72, 8), (128, 128)])
def test_group_normalisation(channels: int, group: int, with_sum: bool, relu: bool) -> None:
    from histfl.engines.kernels.gpu_group_normalisation import stacked_group_normalisation

    values, added = drawn(CLIENTS, BATCH, channels, 9, 17), drawn(CLIENTS, BATCH, channels, 9, 17)
    weight, bias = drawn(CLIENTS, channels), drawn(CLIENTS, channels)
    far = values + 10.0
    found = stacked_group_normalisation(
        far, weight, bias, group, 1e-5, added if with_sum else None, relu=relu
    )
    each = [
        F.group_norm(far[i].double(), channels // group, weight[i].double(), bias[i].double(), 1e-5)
        for i in range(CLIENTS)
    ]
    expected = torch.stack(each) + (added.double() if with_sum else 0.0)
    expected = torch.relu(expected) if relu else expected
    assert_same(found, expected, [values, weight, bias, *([added] if with_sum else [])])


@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize("by_group", [False, True])
def test_outputs_for_two_readers(by_group: bool, with_sum: bool) -> None:
    from histfl.engines.kernels.gpu_group_normalisation import stacked_group_normalisation
    from histfl.engines.kernels.gpu_normalisation import stacked_normalisation

    normalisation = partial(stacked_group_normalisation, group=4) if by_group else stacked_normalisation
    values, added = drawn(CLIENTS, BATCH, 20, 9, 7), drawn(CLIENTS, BATCH, 20, 9, 7)
    weight, bias = drawn(CLIENTS, 20), drawn(CLIENTS, 20)
    leaves = [values, weight, bias, *([added] if with_sum else [])]
    more = added if with_sum else None
    one = normalisation(values, weight, bias, eps=1e-5, added=more, relu=True)
    first, second = normalisation(values, weight, bias, eps=1e-5, added=more, relu=True, twice=True)
    assert torch.equal(first, one)
    expected = torch.autograd.grad((one * one.sin()).sum(), leaves)
    found = torch.autograd.grad((first * second.sin()).sum(), leaves)
    for ours, right in zip(found, expected, strict=True):
        assert float((ours - right).abs().max()) <= 1e-5 * float(right.abs().max())


@pytest.mark.parametrize(("channels", "out", "stride"), [(1, 6, 1), (16, 37, 1), (64, 130, 2)])
def test_convolutions_know_the_moments_of_their_outputs(channels: int, out: int, stride: int) -> None:
    from histfl.engines.kernels.gpu_convolution import Convolution, stacked_convolution
    from histfl.engines.kernels.gpu_normalisation import stacked_normalisation

    images, kernels, bias = (
        drawn(CLIENTS, BATCH, channels, 9, 9),
        drawn(CLIENTS, out, channels, 3, 3),
        drawn(CLIENTS, out),
    )
    weight, shift = drawn(CLIENTS, out), drawn(CLIENTS, out)
    outputs, moments = stacked_convolution(
        images, kernels, bias, Convolution(stride, 1, 1), None, None, moments=True
    )
    found = stacked_normalisation(outputs, weight, shift, 1e-5, moments=moments)
    each = [F.conv2d(images[i].double(), kernels[i].double(), None, stride, 1) for i in range(CLIENTS)]
    normal = [
        F.batch_norm(x, None, None, weight[i].double(), shift[i].double(), training=True, eps=1e-5)
        for i, x in enumerate(each)
    ]
    assert_same(found, torch.stack(normal), [images, kernels, weight, shift])


@pytest.mark.parametrize(("batch", "classes"), [(50, 10), (7, 3), (300, 1000)])
@pytest.mark.parametrize("classes_first", [False, True])
def test_cross_entropies(batch: int, classes: int, classes_first: bool) -> None:
    from histfl.engines.kernels.gpu_losses import cross_entropies

    outputs = 5.0 * drawn(CLIENTS, batch, classes).detach()
    if classes_first:
        outputs = outputs.transpose(1, 2).contiguous().transpose(1, 2)
    targets = torch.randint(classes, (CLIENTS, batch), device="cuda")
    leaf = outputs.double().requires_grad_()
    expected = torch.stack([F.cross_entropy(leaf[i], targets[i]) for i in range(CLIENTS)])
    (right,) = torch.autograd.grad(expected.sum(), leaf)
    losses, grad = cross_entropies(outputs, targets)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad.double(), right, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("lenet5", {}, (1, 28, 28)),
        ("resnet18", {"width": 4}, (3, 32, 32)),
        ("resnet18", {"width": 4, "norm": "group"}, (3, 32, 32)),
    ],
)
def test_models_take_the_kernels(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    model = training_copy(build_model(name, options, shape, 10, seed=1).cuda())
    graph = StackedGraph(model, images=GpuImages("float32"))
    assert graph.of_images
    targets = [getattr(node.target, "__name__", "") for node in graph.module.graph.nodes]
    assert sum(target == "stacked_convolution" for target in targets) == (2 if name == "lenet5" else 20)
    given = [name for node in graph.module.graph.nodes for name in node.kwargs]
    # The shortcuts' normalisations are added to others; a convolution gives its moments, a normalisation reads them.
    wanted = (0, 0, 0) if name == "lenet5" else (17, 0 if "norm" in options else 20 + 20, 8)
    assert tuple(given.count(kind) for kind in ("relu", "moments", "twice")) == wanted
    parameters = {n: torch.stack([p, 1.1 * p]).detach() for n, p in model.named_parameters()}
    inputs = drawn(2, BATCH, *shape).detach()
    outputs = graph(inputs, parameters)
    expected = torch.stack(
        [
            torch.func.functional_call(model.train(), {n: p[i] for n, p in parameters.items()}, (inputs[i],))
            for i in range(2)
        ]
    )
    assert float((outputs - expected).detach().abs().max()) <= 1e-3 * float(expected.abs().max())


@pytest.mark.parametrize("laid_out", [True, False])
def test_kernels_step_themselves(laid_out: bool) -> None:
    from histfl.engines.kernels.gpu_convolution import Convolution, stacked_convolution

    images, bias = drawn(300, BATCH, 8, 9, 9).detach(), drawn(300, 20)  # clients enough for steps in place
    kernels = (
        kernels_innermost(drawn(300, 20, 8, 3, 3).detach()) if laid_out else drawn(300, 20, 8, 3, 3).detach()
    )
    kernels.requires_grad_()
    before = kernels.detach().clone(), bias.detach().clone()
    plain = stacked_convolution(images, kernels, bias, Convolution(1, 1, 1))
    grad = torch.randn_like(plain)
    gradients = torch.autograd.grad(plain, (kernels, bias), grad)
    calls: list[LayerCall] = []
    outputs = stacked_convolution(images, kernels, bias, Convolution(1, 1, 1), None, calls)
    assert torch.equal(outputs, plain)
    (call,) = calls
    call.layer.step(call.inputs, grad, InPlaceSGD(learning_rate=0.1, keep=0.9))
    for found, old, gradient in zip((kernels, bias), before, gradients, strict=True):
        torch.testing.assert_close(found.detach(), 0.9 * old - 0.1 * gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_residual_network_is_trained_by_the_kernels(precision: str, norm: str) -> None:
    images = TensorData(drawn(200, 3, 32, 32).detach().cpu(), torch.arange(200) % 10, tuple("0123456789"))
    model = build_model("resnet18", {"norm": norm}, (3, 32, 32), 10, seed=1)
    tables = {"uplink": {"name": "ideal"}, "data": {"split": "iid"}, "training": {"precision": precision}}
    parts = Ingredients(model, images, images, Network.uniform(cells=2, clients=4))
    trainer = choose_trainer(build(checked(Config, tables, "test"), parts, device="cuda").hist.task)
    assert isinstance(trainer, RecordedTrainer)
    assert StackedSteps in map(type, trainer._steppers)
