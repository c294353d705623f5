"""Layers over images as one launch for all clients on a GPU, where Triton is installed (torch brings it)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import fx, nn

from histfl.devices import Precision
from histfl.engines.steps.graph import Rewritten, is_relu
from histfl.partition import is_group_norm


class GpuImages:
    """The stacked form of an image layer in that precision, and what may be done in one launch with it."""

    def __init__(self, precision: Precision) -> None:
        self.half = torch.bfloat16 if precision == "bf16" else None

    def __call__(self, layer: nn.Module) -> Rewritten | None:
        from histfl.engines.kernels.gpu_convolution import Convolution, stacked_convolution
        from histfl.engines.kernels.gpu_group_normalisation import stacked_group_normalisation
        from histfl.engines.kernels.gpu_normalisation import stacked_normalisation

        if type(layer) is nn.Conv2d and (geometry := _geometry(layer)) is not None:
            return stacked_convolution, (Convolution(*geometry), self.half)
        if type(layer) is nn.BatchNorm2d and layer.affine and not layer.track_running_stats:
            return stacked_normalisation, (layer.eps,)
        if is_group_norm(layer) and layer.affine and (group := _power_of_two(layer)) is not None:
            return stacked_group_normalisation, (group, layer.eps)
        if type(layer) is nn.MaxPool2d and not layer.return_indices:
            pool = layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode
            return _max_pool, pool
        if type(layer) is nn.AdaptiveAvgPool2d:
            return _average_pool, (layer.output_size,)
        return None

    def steps_itself(self, layer: nn.Module) -> bool:
        return type(layer) is nn.Conv2d and _geometry(layer) is not None

    def finish(self, graph: fx.Graph, module: nn.Module) -> None:
        """A sum and a ReLU after a normalisation that nothing else reads become parts of it, and a convolution
        before one by the batch takes the moments of its outputs; a ReLU before a max-pooling follows it, which is the same
        with less to do."""
        from histfl.engines.kernels.gpu_group_normalisation import stacked_group_normalisation
        from histfl.engines.kernels.gpu_normalisation import stacked_normalisation

        for node in list(graph.nodes):
            if node.target in (stacked_normalisation, stacked_group_normalisation):
                node = _with_what_follows(graph, module, node)
                _for_two_readers(graph, node)
                if node.target is stacked_normalisation:
                    _with_moments(graph, node)
            elif node.target is _max_pool and is_relu(relu := node.args[0], module) and len(relu.users) == 1:
                node.replace_input_with(relu, relu.all_input_nodes[0])
                graph.erase_node(relu)
                with graph.inserting_after(node):
                    later = graph.call_function(torch.relu)
                node.replace_all_uses_with(later)
                later.args = (node,)


def _with_what_follows(graph: fx.Graph, module: nn.Module, node: fx.Node) -> fx.Node:
    user = next(iter(node.users))
    if len(node.users) == 1 and _is_sum(user):
        (added,) = (other for other in user.all_input_nodes if other is not node)
        with graph.inserting_before(user):  # what is added may be known only here
            fused = graph.call_function(cast(Callable[..., Any], node.target), (*node.args, added))
        user.replace_all_uses_with(fused)
        graph.erase_node(user)
        graph.erase_node(node)
        node = fused
        user = next(iter(node.users))
    if len(node.users) == 1 and is_relu(user, module):
        node.kwargs = {"relu": True}
        user.replace_all_uses_with(node)
        graph.erase_node(user)
    return node


def _for_two_readers(graph: fx.Graph, node: fx.Node) -> None:
    """Where two nodes read an output, as at the start of a residual block, each has its own."""
    if len(node.users) == 2 and node.kwargs.get("relu"):
        for place, user in enumerate(list(node.users)):
            with graph.inserting_before(user):
                user.replace_input_with(node, graph.call_function(operator.getitem, (node, place)))
        node.kwargs = {**node.kwargs, "twice": True}


def _with_moments(graph: fx.Graph, node: fx.Node) -> None:
    from histfl.engines.kernels.gpu_convolution import stacked_convolution

    before = node.args[0]
    if isinstance(before, fx.Node) and before.target is stacked_convolution and len(before.users) == 1:
        before.kwargs = {"moments": True}
        with graph.inserting_after(before):
            moments = graph.call_function(operator.getitem, (before, 1))
            outputs = graph.call_function(operator.getitem, (before, 0))
        node.replace_input_with(before, outputs)
        node.kwargs = {**node.kwargs, "moments": moments}


def _geometry(layer: nn.Conv2d) -> tuple[int, int, int] | None:
    """Stride, padding and dilation where they are the same along both axes and the kernels know them."""
    if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    both = layer.stride, layer.padding, layer.dilation
    if any(len(set(pair)) != 1 for pair in both) or (layer.stride[0] > 1 and layer.dilation[0] > 1):
        return None
    return layer.stride[0], int(layer.padding[0]), layer.dilation[0]


def _power_of_two(layer: nn.GroupNorm) -> int | None:
    """The channels of one of its groups, where the kernels know so many."""
    group = layer.num_channels // layer.num_groups
    return group if group.bit_count() == 1 else None


def _is_sum(node: fx.Node) -> bool:
    """Whether a node adds two values, and no more."""
    plain = len(node.args) == 2 and not node.kwargs
    return node.target in (operator.add, torch.add) and plain and len(node.all_input_nodes) == 2


def _max_pool(images: torch.Tensor, *pool: Any) -> torch.Tensor:
    pooled: torch.Tensor = F.max_pool2d(images.flatten(0, 1), *pool)
    return pooled.view(*images.shape[:2], *pooled.shape[1:])


def _average_pool(images: torch.Tensor, size: int | tuple[int, int]) -> torch.Tensor:
    pooled: torch.Tensor = F.adaptive_avg_pool2d(images.flatten(0, 1), size)
    return pooled.view(*images.shape[:2], *pooled.shape[1:])
