"""Chains of layers and functions: steps of many clients without autograd.

The gradient goes back link by link, and every trained layer is stepped as it passes. What autograd does
beside the products is a tenth of a small model's step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import fx, nn

from histfl.engines.kernels.cpu_convolution import Geometry, StackedConv2d, stacked_conv2d
from histfl.engines.kernels.cpu_pooling import Pool, StackedMaxPool2d, stacked_max_pool2d
from histfl.engines.kernels.layout import Axes, with_padding
from histfl.engines.kernels.linear import StackedLinear, TensorStep, stacked_linear
from histfl.engines.kernels.losses import StackedLoss
from histfl.engines.steps.graph import is_relu
from histfl.training import LocalTraining
from histfl.training.dropout import dropout_scales, keyed_dropout
from histfl.training.optimisers import Slots, Tensors
from histfl.training.scaling import scaled


class Link(Protocol):
    """A part of a chain."""

    trained: bool

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor: ...

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the last inputs from that of their outputs."""
        ...


class TrainedLink(Link, Protocol):
    """One that steps itself from its last inputs."""

    def step(self, inputs: torch.Tensor, gradient: torch.Tensor, rule: TensorStep) -> None:
        """One step from inputs and the gradient of their outputs."""
        ...


@dataclass(frozen=True)
class LinkPlan:
    """How to `make` a link from the tensors of those names."""

    make: Callable[..., Link]
    names: tuple[str | None, ...] = ()

    def link(self, tensors: Mapping[str, torch.Tensor]) -> Link:
        return self.make(*(None if name is None else tensors[name] for name in self.names))


Chain = tuple[LinkPlan, ...]


def chain_of(module: fx.GraphModule) -> Chain | None:
    """What a stacked graph does to its inputs, in order, or None where it is more than a chain."""
    plans: list[LinkPlan] = []
    read: list[str] = []
    value, *others = (node for node in module.graph.nodes if node.op == "placeholder")
    for node in module.graph.nodes:
        if node.op == "placeholder" or _name(node) is not None:
            continue
        if node.op == "output":
            once = len(set(read)) == len(read)
            return tuple(plans) if once and node.args == (value,) else None
        if {other for other in node.all_input_nodes if _name(other) is None} - set(others) != {value}:
            return None
        if node.target in (stacked_linear, stacked_conv2d):
            names = tuple(None if tensor is None else _name(tensor) for tensor in node.args[1:3])
            read += filter(None, names)
            make = StackedLinear if node.target is stacked_linear else _convolution(Geometry(*node.args[3:]))
            plans.append(LinkPlan(make, names))
        elif node.target is stacked_max_pool2d:
            pool = LinkPlan(partial(StackedMaxPool2d, Pool(*node.args[1:])))
            # The largest entry first and ReLU then is the same, with the same gradient, and less to do.
            last = len(plans) - 1 if plans and plans[-1].make is _Relu else len(plans)
            plans.insert(last, pool)
        elif node.op == "call_module" and type(module.get_submodule(str(node.target))) is nn.Identity:
            pass
        elif node.target is keyed_dropout:
            plans.append(LinkPlan(partial(_Dropout, node.args[2:]), (_name(node.args[1]),)))
        elif node.target is scaled:
            plans.append(LinkPlan(_Scaled, (_name(node.args[1]),)))
        elif node.all_input_nodes == [value]:
            plans.append(LinkPlan(_link(module, node, value)))
        else:  # a function of tensors too
            return None
        value = node
    return None


def tensors_of(chain: Chain) -> frozenset[str]:
    """The names of all tensors that a chain reads."""
    return frozenset(name for plan in chain for name in plan.names if name is not None)


def _name(node: Any) -> str | None:
    """The tensor that a node reads by its name, if that is all it does."""
    return node.args[1] if node.target is operator.getitem and isinstance(node.args[1], str) else None


def _convolution(geometry: Geometry) -> Callable[..., Link]:
    return partial(StackedConv2d, geometry=geometry)


class _Relu:
    trained = False

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        self.outputs = torch.relu(inputs)
        return self.outputs

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        grads: torch.Tensor = torch.ops.aten.threshold_backward(gradient, self.outputs, 0)
        return grads


class _Flatten:
    trained = False

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        self.shape = inputs.shape
        return torch.flatten(inputs, 2)

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.reshape(self.shape)


class _Dropout:
    trained = False

    def __init__(self, how: tuple[int, float, bool], keys: torch.Tensor) -> None:
        self.how, self.keys = how, keys

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        self.scales = dropout_scales(inputs, self.keys, *self.how)
        return inputs * self.scales

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self.scales


class _Scaled:
    """In a chain all inputs of a layer are of one group of units, so that a client has one number, scale [client, 1]."""

    trained = False

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.scale.view(-1, *[1] * (inputs.dim() - 1))

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        return self(gradient)


class _Other:
    """Any function without parameters; autograd follows it alone."""

    trained = False

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.function = function

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            self.inputs = inputs.detach().requires_grad_()
            self.outputs = self.function(self.inputs)
        return self.outputs.detach()

    def for_inputs(self, gradient: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(self.outputs, self.inputs, gradient)[0]


def _link(module: fx.GraphModule, node: fx.Node, value: fx.Node) -> Callable[..., Link]:
    """What makes the link of a function of one value."""
    if is_relu(node, module):
        return _Relu
    if node.target is torch.flatten:  # of everything but two axes, the only one that graphs have
        return _Flatten
    if node.op == "call_module":
        return partial(_Other, module.get_submodule(str(node.target)))
    target = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target

    def function(inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = target(*[inputs if arg is value else arg for arg in node.args], **node.kwargs)
        return outputs

    return partial(_Other, function)


def paddings(chain: Chain, trained: Set[str]) -> dict[str, Axes]:
    """The axes of tensors [client, out, in] that may be padded with zeros, by the tensors' names.

    Where two trained linear layers have at most ReLUs and a scale between them, the first may give a few more outputs,
    which are zero, to the second: ReLU keeps them so, they add nothing, and their weights stay zero.
    """
    axes: dict[str, Axes] = {}
    before: LinkPlan | None = None
    for plan in chain:
        if plan.make is StackedLinear:
            weight = plan.names[0]
            names = [name for name in (*(before.names if before else ()), weight) if name is not None]
            if before is not None and trained >= set(names):
                for name in names:
                    axes[name] = (*axes.get(name, ()), 2 if name == weight else 1)
            before = plan
        elif plan.make not in (_Relu, _Scaled):
            before = None
    return axes


class OneAtATime:
    """The step of `local` for each of the stacked `tensors` alone, which has its own of the `slots`."""

    def __init__(self, local: LocalTraining, tensors: Tensors, slots: Slots) -> None:
        self.local = local
        # A layer's tensor is a view of the one that is given, at the same place.
        self.slots = {x.data_ptr(): tuple([slot[i]] for slot in slots) for i, x in enumerate(tensors)}

    def step(self, tensor: torch.Tensor, gradient: torch.Tensor) -> None:
        self.local.step([tensor], [gradient], self.slots[tensor.data_ptr()], stacked=True)


class ChainSteps:
    """Steps of a chain, by a `rule`, on the clients' `tensors` [client, ...], of which it changes those that require
    a gradient; those named in `paddings` are `padded`."""

    def __init__(
        self,
        chain: Chain,
        tensors: Mapping[str, torch.Tensor],
        losses: StackedLoss,
        rule: TensorStep,
        paddings: Mapping[str, Axes],
    ) -> None:
        self.losses, self.rule = losses, rule
        given = {name: with_padding(tensor, paddings.get(name, ())) for name, tensor in tensors.items()}
        self.links = [plan.link(given) for plan in chain]
        self.first = [link.trained for link in self.links].index(True)

    @torch.no_grad()
    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One step on inputs [client, batch, ...]; the clients' losses before it, [client]."""
        values = [inputs]
        for link in self.links:
            values.append(link(values[-1]))
        found, gradient = self.losses(values[-1], targets)
        for place in range(len(self.links) - 1, self.first - 1, -1):
            link = self.links[place]
            # Before the step, which changes the weights that the gradient goes back through.
            beyond = link.for_inputs(gradient) if place > self.first else gradient
            if link.trained:
                cast(TrainedLink, link).step(values[place], gradient, self.rule)
            gradient = beyond
        return found
