"""Any model as a function of compact tensors: called on example inputs, its layers' sizes taken from their
tensors, its running statistics recomputed.

Compact tensors run through the original module with `torch.func.functional_call`. Linear, plain
convolution, BatchNorm, PReLU and embedding layers look at their tensors alone; the layers replaced here
have a size written into the module as well (the number of groups or features), and get it from the tensors
instead. With the full tensors they compute what the original layer computes.

Running statistics: none while training, all of them anew before evaluation. A running mean of a channel
that is trained in another cell every round, next to other channels, is a mean over different models. So (as
in HeteroFL's static batch normalisation) training uses the statistics of each batch and keeps none, cells
exchange none, and the merged model's statistics are computed from data once, before it is evaluated.
InstanceNorm layers with running statistics are treated alike; GroupNorm and LayerNorm have none.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any, TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from histfl.data.inputs import Inputs as Batch
from histfl.data.inputs import called
from histfl.errors import PartitionError, UsageError, in_one_line
from histfl.partition.plan import State

Inputs = torch.Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]

T = TypeVar("T")
_ENOUGH = 3  # examples; a batch of two leaves BatchNorm after global pooling nearly no gradient


def copy_of(model: nn.Module) -> nn.Module:
    """A copy, also of a model that keeps what a forward pass computed, which torch does not copy: it gets the values."""
    kept = [leaf for module in model.modules() for leaf in pytree.tree_leaves(vars(module))]
    computed = [leaf for leaf in kept if isinstance(leaf, torch.Tensor) and not leaf.is_leaf]
    try:
        copy = deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in computed})
    except Exception as error:  # a user's model may fail in any way
        raise PartitionError(
            f"cannot copy {type(model).__name__} ({in_one_line(error)}); give a model that copy.deepcopy copies"
        ) from error
    if not isinstance(copy, nn.Module):
        raise PartitionError(
            f"a copy of {type(model).__name__} is of type {type(copy).__name__}; correct its __deepcopy__"
        )
    return copy


class _Holder(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[nn.Module], T]) -> T:
        return compute(self.model)


def with_tensors(model: nn.Module, tensors: State, compute: Callable[[nn.Module], T]) -> T:
    """`compute(model)` with `tensors` in place of the model's own until it returns.

    A backward pass belongs inside: one that computes activations anew (`torch.utils.checkpoint`) reads them again.
    """
    held = {f"model.{name}": tensor for name, tensor in tensors.items()}
    found: T = torch.func.functional_call(_Holder(model), held, (compute,))
    return found


def outputs_of(model: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """The differentiable tensors that `model` returns; `inputs` stay as they are, also where it works on them in place."""
    inputs = map_tensors(torch.clone, inputs)
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        named = dict(inputs)
    else:
        arguments = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    returned = model(*arguments, **named)
    leaves = pytree.tree_leaves(pytree.tree_map(_fields, returned))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _fields(leaf: Any) -> Any:
    """A dataclass as a table, which is a tree to torch."""
    if not is_dataclass(leaf):
        return leaf
    return {field.name: getattr(leaf, field.name) for field in fields(leaf)}


@contextmanager
def quietly() -> Iterator[None]:
    """Run a copy of the user's model: gradients on, no warning shown, no random number used up, and parts that went
    through torch.compile as they are written, for a trace does not see the layers in what became of them."""
    compiled = "torch._dynamo" in sys.modules
    eagerly = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), warnings.catch_warnings(), eagerly:
        warnings.simplefilter("ignore")
        yield


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], inputs: Inputs) -> Inputs:
    """`inputs` with every tensor in it replaced by its value under `function`."""
    mapped: Inputs = pytree.tree_map_only(torch.Tensor, function, inputs)
    return mapped


def few_examples(inputs: Inputs) -> Inputs:
    """A batch of a few different examples: the first ones, or the one there is with variations."""
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    lengths = {leaf.shape[0] if leaf.dim() else 0 for leaf in tensors}
    if len(lengths) != 1 or lengths == {0}:
        return inputs  # no common batch axis to shorten
    if min(lengths) > 1:
        return map_tensors(lambda value: value[:_ENOUGH], inputs)
    return map_tensors(_varied, inputs)


def _varied(single: torch.Tensor) -> torch.Tensor:
    """A few examples from one, different from each other but of its scale."""
    repeated = single.repeat(_ENOUGH, *[1] * (single.dim() - 1))
    if not single.is_floating_point():
        return repeated
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(repeated.shape, generator=generator, dtype=torch.float64).to(repeated)
    return repeated + 0.1 * (1.0 + single.abs().mean()) * noise


_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def take_sizes_from_tensors(model: nn.Module) -> None:
    """Let every such layer of `model` do so, in place. A subclass of one is left as its author made it."""
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and module.groups == 1:
            continue
        replacement = _REPLACEMENTS.get(type(module))
        if replacement is not None:
            module.__class__ = replacement


def is_group_norm(layer: nn.Module) -> TypeGuard[nn.GroupNorm]:
    """Whether a layer is torch's GroupNorm, or that with sizes from its tensors, and not a subclass of a user."""
    return type(layer) in (nn.GroupNorm, _GroupNorm)


class _GroupedConvolution(nn.modules.conv._ConvNd):
    """A unit is a whole group of channels, so the channels a group holds stay what they were."""

    def _conv_forward(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        dimensions = weight.dim() - 2
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0,) * dimensions
        groups = input.shape[-dimensions - 1] // weight.shape[1]
        convolution = _CONVOLUTIONS[dimensions]
        return convolution(input, weight, bias, self.stride, padding, self.dilation, groups)


class _Conv1d(_GroupedConvolution, nn.Conv1d):
    pass


class _Conv2d(_GroupedConvolution, nn.Conv2d):
    pass


class _Conv3d(_GroupedConvolution, nn.Conv3d):
    pass


class _GroupNorm(nn.GroupNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        groups = input.shape[1] // (self.num_channels // self.num_groups)
        return F.group_norm(input, groups, self.weight, self.bias, self.eps)


class _InstanceNorm(nn.modules.instancenorm._InstanceNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        single = input.dim() == self._get_no_batch_dim()  # type: ignore[no-untyped-call]
        output = F.instance_norm(
            input.unsqueeze(0) if single else input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            use_input_stats=self.training or not self.track_running_stats,
            momentum=self.momentum if self.momentum is not None else 0.0,
            eps=self.eps,
        )
        return output.squeeze(0) if single else output


class _InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    pass


class _InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    pass


class _InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    pass


_REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: _Conv1d,
    nn.Conv2d: _Conv2d,
    nn.Conv3d: _Conv3d,
    nn.GroupNorm: _GroupNorm,
    nn.InstanceNorm1d: _InstanceNorm1d,
    nn.InstanceNorm2d: _InstanceNorm2d,
    nn.InstanceNorm3d: _InstanceNorm3d,
}


_Normalisation = nn.modules.batchnorm._NormBase


def training_copy(model: nn.Module) -> nn.Module:
    """A copy of `model` to run compact tensors through with `torch.func.functional_call`.

    It is in train mode, its BatchNorm layers use batch statistics and have no buffers for others, its embeddings
    have dense gradients, to which anything can be added, and its layers take their sizes from the tensors. `model`
    itself does not change.
    """
    copy = copy_of(model)
    copy.train()  # a user's own may return nothing
    for module in copy.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False
    for layer in _tracking(copy):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    take_sizes_from_tensors(copy)
    return copy


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether `model` has running statistics that must be recomputed before it is evaluated."""
    return bool(_tracking(model))


def recompute_statistics(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Set every running mean and variance of `model` to its average over `batches`, in place.

    Every batch has the same weight, whatever its size. Only the normalisation layers are in train mode
    meanwhile, so that dropout is off; `torch.optim.swa_utils.update_bn` would leave it on. A model
    without running statistics does not read `batches`.
    """
    layers = _tracking(model)
    if not layers:
        return
    modes = {module: module.training for module in model.modules()}
    momenta = [layer.momentum for layer in layers]
    seen = 0
    try:
        model.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.train()
        with torch.no_grad():
            for batch in batches:
                seen += 1
                for layer in layers:  # a cumulative average; of momentum None only BatchNorm makes one
                    layer.momentum = 1 / seen
                called(model, batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    if seen == 0:
        raise UsageError("running statistics need at least one batch of data, and there was none")


def _tracking(model: nn.Module) -> list[_Normalisation]:
    return [m for m in model.modules() if isinstance(m, _Normalisation) and m.track_running_stats]
