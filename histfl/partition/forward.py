"""Calling any model on example inputs: a tensor, a tuple of arguments or a dict of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from histfl.errors import PartitionError, in_one_line
from histfl.partition.units import State

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
    """The differentiable tensors that `model` returns."""
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        named = dict(inputs)
    else:
        arguments = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    returned = model(*arguments, **named)
    leaves = pytree.tree_leaves(returned)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


@contextmanager
def quietly() -> Iterator[None]:
    """Run a copy of the user's model: gradients on, no warning shown, no random number used up."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), warnings.catch_warnings():
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
