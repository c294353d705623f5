"""What objects of a user's own answer, such as a codec or a cloud step, checked where it comes in: shapes and types, no
number of it, so that nothing waits for a GPU; and their failures in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from histfl.errors import HistflError, UsageError, in_one_line, is_out_of_memory, shown
from histfl.partition import State


@contextmanager
def in_a_local_step() -> Iterator[None]:
    """The user's model and loss on a batch and a submodel that nobody tried before."""
    with _told(
        "in a client's local step",
        "where a cell's submodel has too few units of a layer for it, exclude that layer (method.exclude) or use fewer "
        "cells; else correct the model or the samples",
    ):
        yield


@contextmanager
def in_an_evaluation() -> Iterator[None]:
    """The user's model and loss on samples that nobody tried before."""
    with _told("in an evaluation", "correct the model or the samples"):
        yield


@contextmanager
def _told(where: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except HistflError:
        raise
    except Exception as error:  # a user's model and loss may fail in any way
        if isinstance(error, torch.OutOfMemoryError) or is_out_of_memory(error):
            raise
        raise UsageError(f"the model or the loss fails {where} ({in_one_line(error)}); {remedy}") from error


def pair(found: Any, whose: str, what: str = "two tables of tensors") -> tuple[Any, Any]:
    """Two things, or a UsageError."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(f"{whose} returns {shown(found)}; it must return {what}")
    return found


def number(found: Any, whose: str) -> torch.Tensor:
    """A tensor of one real number, [], or a UsageError."""
    if (
        not isinstance(found, torch.Tensor)
        or found.shape != ()
        or not found.is_floating_point()
        or found.is_meta
    ):
        what = (
            f"{found.dtype} of shape {tuple(found.shape)}"
            if isinstance(found, torch.Tensor)
            else shown(found)
        )
        raise UsageError(f"{whose} is {what}; it must be a tensor of one number, such as torch.zeros(())")
    return found


def tensors(found: Any, whose: str) -> State:
    """Tensors by name, or a UsageError."""
    if not isinstance(found, Mapping):
        raise UsageError(f"{whose} returns {shown(found)}; it must return tensors by name")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise UsageError(
                f"{whose} returns {shown(tensor)} as {shown(name)}; it must return tensors by name"
            )
    return dict(found)


def alike(found: Any, like: State, whose: str, *, clients: int | None = None) -> State:
    """Tensors like those of `like` by name, type and shape, [client, ...] of so many `clients`, or a UsageError."""
    own = tensors(found, whose)
    if odd := sorted(own.keys() ^ like.keys()):
        what = "returns one more tensor" if odd[0] in own else "leaves out a tensor"
        raise UsageError(f"{whose} {what}, {odd[0]!r}; it must return all that it is given and no other")
    for name, tensor in like.items():
        shape = (*(() if clients is None else (clients,)), *tensor.shape)
        if own[name].shape != shape or own[name].dtype != tensor.dtype:
            raise UsageError(
                f"{whose} returns {own[name].dtype} of shape {tuple(own[name].shape)} as {name!r}; it must be "
                f"{tensor.dtype} of shape {shape}"
            )
    return own
