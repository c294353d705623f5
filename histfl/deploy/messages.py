"""What goes over a link: plain values as JSON, and tensors as safetensors, never code.

What comes in is from another machine, so it is read as such: within bounds, and refused in one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from histfl.errors import HistflError, in_one_line
from histfl.partition import State
from histfl.settings import parse_json

_LENGTH = 8  # bytes that say how long the JSON is
# A KeyError is of a format that torch lacks, the last two are of the shape of a tensor without an entry.
_DAMAGED = (ValueError, RecursionError, SafetensorError, KeyError, RuntimeError, TypeError)


class BadMessage(HistflError):
    """What came over a link is not what was to come; said to the sender and in the log."""


@dataclass(frozen=True)
class Message:
    """`about` is JSON; the tensors are named KIND/NAME, and come in their order: codecs count entries by it."""

    about: Mapping[str, Any] = field(default_factory=dict)
    tensors: State = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        text = json.dumps([self.about, [*self.tensors]], allow_nan=False).encode()
        return b"".join((len(text).to_bytes(_LENGTH), text, safetensors.torch.save(packed(self.tensors))))

    @classmethod
    def of(cls, data: bytes) -> Message:
        length = int.from_bytes(data[:_LENGTH])
        if len(data) < _LENGTH + length:
            raise BadMessage(f"{len(data)} bytes are no message of ours")
        try:
            words = parse_json(data[_LENGTH : _LENGTH + length])
            tensors = safetensors.torch.load(data[_LENGTH + length :])
        except _DAMAGED as error:
            raise BadMessage(f"a damaged message: {in_one_line(error)}") from None
        match words:
            case [dict(about), list(names)] if all(isinstance(name, str) for name in names):
                if set(names) == set(tensors) and len(names) == len(tensors):
                    return cls(about, {name: tensors[name] for name in names})
        raise BadMessage("a message whose words do not go with its tensors")

    def of_kind(self, kind: str) -> State:
        """The tensors of a kind by their own names."""
        return {
            name.removeprefix(f"{kind}/"): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(f"{kind}/")
        }


def packed(tensors: State) -> State:
    """The tensors on the CPU, each in memory of its own, as safetensors writes them."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def named(kind: str, tensors: State) -> State:
    return {f"{kind}/{name}": tensor for name, tensor in tensors.items()}


def check_like(found: State, like: State, whose: str) -> None:
    """A BadMessage where the tensors are not finite ones of the names, shapes and formats of `like`."""
    if set(found) != set(like):
        wrong = sorted(set(found) ^ set(like))[0]
        raise BadMessage(f"{whose} {'lacks' if wrong in like else 'has'} {wrong!r:.80}")
    for name, tensor in found.items():
        if tensor.shape != like[name].shape or tensor.dtype != like[name].dtype:
            raise BadMessage(
                f"{whose} has {name} of {tensor.dtype} {list(tensor.shape)}, and not of {like[name].dtype} "
                f"{list(like[name].shape)}"
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise BadMessage(f"{whose} has numbers in {name} that are not finite")
