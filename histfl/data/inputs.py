"""What a model takes: a tensor, or several in a tuple or a dictionary, all with one first axis, that of the samples.

A tuple's tensors are the model's arguments in order, a dictionary's are its arguments by name (`input_ids`,
`attention_mask`). What is done to inputs is done to each of their tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Inputs = torch.Tensor | tuple[torch.Tensor, ...] | dict[str, torch.Tensor]


def mapped(function: Callable[..., torch.Tensor], inputs: Inputs, *more: Inputs) -> Inputs:
    """`function` of every tensor, and of those in the same place of `more`."""
    if isinstance(inputs, torch.Tensor):
        return function(inputs, *more)
    each = [function(*corresponding) for corresponding in zip(*map(parts, (inputs, *more)), strict=True)]
    return tuple(each) if isinstance(inputs, tuple) else dict(zip(inputs, each, strict=True))


def parts(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """All their tensors."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    return inputs if isinstance(inputs, tuple) else tuple(inputs.values())


def named_parts(inputs: Inputs) -> dict[str, torch.Tensor]:
    """Their tensors by what tells them apart: nothing, a place or a name."""
    if isinstance(inputs, torch.Tensor):
        return {"": inputs}
    if isinstance(inputs, tuple):
        return {str(place): tensor for place, tensor in enumerate(inputs)}
    return inputs


def chosen(inputs: Inputs, which: slice | torch.Tensor) -> Inputs:
    """Some of the samples, in memory of their own: a model may work on them in place."""
    return mapped(lambda x: x[which].clone() if isinstance(which, slice) else x[which], inputs)


def in_batches(inputs: Inputs, size: int) -> list[Inputs]:
    """The samples in order, so many at a time."""
    samples = len(parts(inputs)[0])
    return [chosen(inputs, slice(first, first + size)) for first in range(0, samples, size)]


def arguments(inputs: Inputs) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """What a model is called with, by place and by name."""
    return ((), inputs) if isinstance(inputs, dict) else (parts(inputs), {})


def called(model: Callable[..., Any], inputs: Inputs) -> Any:
    """What the model returns for the inputs."""
    by_place, by_name = arguments(inputs)
    return model(*by_place, **by_name)


def shapes(inputs: Inputs) -> str:
    """The shapes of a sample's tensors, in words."""
    found = {name: tuple(tensor.shape[1:]) for name, tensor in named_parts(inputs).items()}
    return ", ".join(f"{name} {shape}".lstrip() for name, shape in found.items())


def bytes_of_a_sample(inputs: Inputs) -> int:
    return sum(tensor[0].numel() * tensor.element_size() for tensor in parts(inputs))
