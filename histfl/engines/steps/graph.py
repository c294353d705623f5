"""A module's graph, rewritten to run the models of many clients at once.

Every value in the graph gets a leading client axis. A linear layer becomes a batched product; operations
that treat every entry alike stay as they are. What is not known to be safe raises `Unstackable`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import fx, nn

from histfl.engines.kernels.cpu_convolution import geometry_of, stacked_conv2d
from histfl.engines.kernels.cpu_pooling import pool_of, stacked_max_pool2d
from histfl.engines.kernels.linear import LayerCall, stacked_linear
from histfl.partition import State, copy_of, is_group_norm
from histfl.training.dropout import KeyedDropout, keyed_dropout
from histfl.training.scaling import BUFFER, further_axes, is_scaled, scaled

Rewritten = tuple[Callable[..., Any], tuple[Any, ...]]  # a stacked layer, and what it takes last


class Images(Protocol):
    """How layers over images are stacked."""

    def __call__(self, layer: nn.Module) -> Rewritten | None:
        """A function of inputs, the layer's weight and bias if it has such, and further arguments."""
        ...

    def steps_itself(self, layer: nn.Module) -> bool:
        """Whether the function takes a list of `LayerCall` after all else."""
        ...

    def finish(self, graph: fx.Graph, module: nn.Module) -> None:
        """Improve a rewritten graph, in place."""
        ...


class CpuImages:
    """Layers with few channels, images innermost."""

    def __call__(self, layer: nn.Module) -> Rewritten | None:
        if type(layer) is nn.Conv2d and (geometry := geometry_of(layer)) is not None:
            return stacked_conv2d, geometry
        if type(layer) is nn.MaxPool2d and (pool := pool_of(layer)) is not None:
            return stacked_max_pool2d, pool
        return None

    def steps_itself(self, layer: nn.Module) -> bool:
        return False

    def finish(self, graph: fx.Graph, module: nn.Module) -> None:
        pass


class Unstackable(Exception):
    """The module has a part for which no stacked form is known."""


class StackedGraph:
    """`graph(inputs [client, batch, ...], tensors, calls)` with every tensor of `tensors` [client, ...].

    `alone` names the weights and biases of layers that can step themselves and all of whose parameters the
    graph reads exactly once; where `calls` is given, what these layers did is added to it, and autograd sees
    their parameters as constants.
    With `images`, layers over images are taken too, as it rewrites them.
    """

    def __init__(self, model: nn.Module, *, images: Images | None = None) -> None:
        model = _out_of_place(model)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        try:
            source = fx.GraphModule(model, _Tracer().trace(model)).graph
        except Exception as error:  # a user's forward may fail under tracing in any way
            raise Unstackable(str(error)) from None
        source.eliminate_dead_code()
        called = [model.get_submodule(str(node.target)) for node in source.nodes if node.op == "call_module"]
        reads = Counter(id(parameter) for module in called for parameter in module.parameters(recurse=False))
        able = [m for m in called if type(m) is nn.Linear or (images is not None and images.steps_itself(m))]
        self.alone = frozenset(
            names[id(parameter)]
            for m in able
            if all(reads[id(parameter)] == 1 for parameter in m.parameters())
            for parameter in m.parameters()
        )
        self.of_images = images is not None and any(type(m) is nn.Conv2d for m in called)
        graph = _Rewriter(model, names, self.alone, images).rewrite(source)
        if images is not None:
            images.finish(graph, model)
        self.module = fx.GraphModule(model, graph)

    def __call__(
        self, inputs: torch.Tensor, tensors: Mapping[str, torch.Tensor], calls: list[LayerCall] | None = None
    ) -> torch.Tensor:
        outputs: torch.Tensor = self.module(inputs, tensors, calls)
        return outputs


class _Tracer(fx.Tracer):
    """Sees a layer of ours as one."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        ours = type(m) is KeyedDropout or is_group_norm(m)
        return ours or super().is_leaf_module(m, module_qualified_name)


def shared_tensors(model: nn.Module, clients: int, given: State) -> State:
    """The module's own parameters besides the `given` ones, the same for every client: views [client, ...]."""
    return {
        name: parameter.detach().expand(clients, *parameter.shape)
        for name, parameter in model.named_parameters()
        if name not in given
    }


def is_relu(node: fx.Node, module: nn.Module) -> bool:
    """Whether a node of the module's graph is ReLU, by what it does and not by its name."""
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))) is nn.ReLU
    return node.target in (torch.relu, F.relu) or (node.op, node.target) == ("call_method", "relu")


def _out_of_place(model: nn.Module) -> nn.Module:
    """A copy whose activations leave their inputs alone: a stacked layer's outputs may be a view."""
    copied = copy_of(model)
    for module in copied.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    return copied


class _Rewriter:
    """Copies a graph node by node into its stacked form."""

    def __init__(
        self, model: nn.Module, names: Mapping[int, str], alone: frozenset[str], images: Images | None
    ) -> None:
        self.model, self.names, self.alone, self.images = model, names, alone, images
        self.graph = fx.Graph()
        self.values: dict[fx.Node, fx.Node] = {}

    def rewrite(self, source: fx.Graph) -> fx.Graph:
        placeholders = [node for node in source.nodes if node.op == "placeholder"]
        if len(placeholders) != 1:
            raise Unstackable(f"the module takes {len(placeholders)} inputs")
        self.values[placeholders[0]] = self.graph.placeholder("inputs")
        self.tensors, self.calls = self.graph.placeholder("tensors"), self.graph.placeholder("calls")
        for node in source.nodes:
            if node.op == "output":
                if not isinstance(node.args[0], fx.Node):
                    raise Unstackable("the module returns more than one tensor")
                self.graph.output(self.values[node.args[0]])
            elif node.op == "call_module":
                self.values[node] = self._module(node, self.model.get_submodule(str(node.target)))
            elif node.op != "placeholder":
                self.values[node] = self._operation(node)
        return self.graph

    def _module(self, node: fx.Node, module: nn.Module) -> fx.Node:
        if len(node.args) != 1 or node.kwargs:
            raise Unstackable(f"{node.target} is called with more than one input")
        inputs = self.values[node.args[0]]  # type: ignore[index]
        if is_scaled(module):
            scale = self.graph.call_function(operator.getitem, (self.tensors, f"{node.target}.{BUFFER}"))
            inputs = self.graph.call_function(scaled, (inputs, scale, further_axes(module)))
        if type(module) in _ELEMENTWISE_MODULES:
            return self.graph.call_module(str(node.target), (inputs,))
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            return self.graph.call_function(torch.flatten, (inputs, 2))
        if type(module) is KeyedDropout:
            key = self.graph.call_function(operator.getitem, (self.tensors, f"{node.target}.key"))
            how = module.layer, module.p, module.whole_channels
            return self.graph.call_function(keyed_dropout, (inputs, key, *how))
        if type(module) is nn.Linear:
            return self.graph.call_function(
                stacked_linear, (inputs, *self._affine(module), self._calls(module))
            )
        if type(module) is nn.LayerNorm:
            axes = len(module.normalized_shape)
            return self.graph.call_function(_layer_norm, (inputs, *self._affine(module), axes, module.eps))
        if type(module) is nn.BatchNorm1d and not module.track_running_stats:
            return self.graph.call_function(_batch_norm, (inputs, *self._affine(module), module.eps))
        if self.images is not None and (rewritten := self.images(module)) is not None:
            function, more = rewritten
            affine = self._affine(module) if hasattr(module, "weight") else ()
            calls = (self._calls(module),) if self.images.steps_itself(module) else ()
            return self.graph.call_function(function, (inputs, *affine, *more, *calls))
        raise Unstackable(f"{node.target} is a {type(module).__name__}")

    def _calls(self, module: nn.Module) -> fx.Node | None:
        """The list of calls, for a layer that steps itself."""
        alone = all(self.names[id(tensor)] in self.alone for tensor in module.parameters(recurse=False))
        return self.calls if alone else None

    def _affine(self, module: nn.Module) -> tuple[fx.Node | None, fx.Node | None]:
        """Where the graph reads the clients' weights and biases of a layer."""
        weight, bias = (
            None
            if getattr(module, kind) is None
            else self.graph.call_function(
                operator.getitem, (self.tensors, self.names[id(getattr(module, kind))])
            )
            for kind in ("weight", "bias")
        )
        return weight, bias

    def _operation(self, node: fx.Node) -> fx.Node:
        if node.op == "call_function" and node.target in _ELEMENTWISE_FUNCTIONS:
            copied = self.graph.node_copy(node, self.values.__getitem__)
            copied.target = _NOT_IN_PLACE.get(node.target, node.target)
            # The one truth value that these functions take is `inplace`.
            copied.args = tuple(False if arg is True else arg for arg in copied.args)
            copied.kwargs = {name: False if arg is True else arg for name, arg in copied.kwargs.items()}
            return copied
        if node.op == "call_method" and node.target in _ELEMENTWISE_METHODS:
            return self.graph.node_copy(node, self.values.__getitem__)
        flattens = node.target is torch.flatten or (node.op, node.target) == ("call_method", "flatten")
        if flattens and node.args[1:] == (1,) and not node.kwargs:
            return self.graph.call_function(torch.flatten, (self.values[node.args[0]], 2))  # type: ignore[index]
        raise Unstackable(f"{node.name} is {node.target}")


def _layer_norm(
    inputs: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, dimensions: int, eps: float
) -> torch.Tensor:
    """Layer normalisation over the last `dimensions` axes, weight and bias [client, ...]."""
    outputs = F.layer_norm(inputs, inputs.shape[-dimensions:], eps=eps)
    if weight is not None:
        outputs = outputs * _beside(weight, inputs)
    return outputs if bias is None else outputs + _beside(bias, inputs)


def _beside(affine: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """[client, ...] as [client, 1, ..., ...], with as many axes as `inputs`."""
    return affine.view(len(affine), *[1] * (inputs.dim() - affine.dim()), *affine.shape[1:])


def _batch_norm(
    inputs: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Batch statistics of every client's features: [client, batch, feature (, place)], weight [client, feature].

    The clients' features stand side by side, [batch, client * feature], as one wide layer's.
    """
    clients, features = inputs.shape[0], inputs.shape[2]
    wide = inputs.transpose(0, 1).flatten(start_dim=1, end_dim=2)
    scale, shift = (None if affine is None else affine.flatten() for affine in (weight, bias))
    outputs: torch.Tensor = F.batch_norm(wide, None, None, scale, shift, training=True, eps=eps)
    apart: torch.Tensor = outputs.unflatten(1, (clients, features))
    return apart.transpose(0, 1)


_ELEMENTWISE_MODULES: frozenset[type[nn.Module]] = frozenset(
    {
        nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
        nn.Softsign, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Identity,
    }
)  # fmt: skip
# Sums and products are among them because no supported operation changes the number of axes of one
# operand and not of the other, so that the client axes always meet.
_ELEMENTWISE_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.square, torch.abs, torch.sin, torch.cos,
        torch.add, torch.sub, torch.mul, torch.div, torch.neg,
        F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus, F.softsign,
        F.tanh, F.sigmoid, F.logsigmoid, F.hardtanh, F.hardsigmoid, F.hardswish,
        operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow,
        operator.iadd, operator.isub, operator.imul,
    }
)  # fmt: skip
_NOT_IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
}
_ELEMENTWISE_METHODS = frozenset(
    {"relu", "tanh", "sigmoid", "exp", "square", "abs", "add", "sub", "mul", "div"}
)
