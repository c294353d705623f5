"""Whole numbers and places of entries as bytes, in no more bits than they need."""

from __future__ import annotations

import numpy as np
import torch

_AT_ONCE = 2**20  # numbers, a multiple of 8: their bits fill whole bytes


def in_bits(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Whole `numbers` [n] from 0 to 2^bits - 1, of at most 32 bits each, as bytes: one after another, the highest bit
    first."""
    parts = []
    for some in numbers.cpu().split(_AT_ONCE):
        each = np.unpackbits(some.numpy().astype(">u4").view(np.uint8).reshape(-1, 4), axis=1)
        parts.append(np.packbits(each[:, 32 - bits :]))
    return torch.from_numpy(np.concatenate(parts))


def from_bits(data: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """The `count` numbers, int64, that `in_bits` wrote."""
    parts, at_once = [], _AT_ONCE * bits // 8
    for place, some in enumerate(data.cpu().split(at_once)):
        here = min(_AT_ONCE, count - place * _AT_ONCE)
        found = np.unpackbits(some.numpy(), count=here * bits).reshape(here, bits)
        whole = np.pad(found, ((0, 0), (32 - bits, 0)))
        parts.append(np.packbits(whole, axis=1).view(">u4").astype(np.int64).reshape(-1))
    return torch.from_numpy(np.concatenate(parts)).to(data.device)


def places_in_bits(places: torch.Tensor, size: int, *, as_map: bool) -> torch.Tensor:
    """Ascending `places` below `size` as bytes: a map of all, a bit each, or their numbers."""
    if not as_map:
        return in_bits(places, (size - 1).bit_length())
    chosen = torch.zeros(size, dtype=torch.int64, device=places.device)
    chosen[places] = 1
    return in_bits(chosen, 1)


def places_from_bits(data: torch.Tensor, size: int, count: int, *, as_map: bool) -> torch.Tensor:
    """The `count` places that were written; a ValueError where there are not so many below `size`."""
    if as_map:
        places = from_bits(data, size, 1).nonzero().squeeze(1)
    else:
        places = from_bits(data, count, (size - 1).bit_length())
    if len(places) != count or (count and int(places.max()) >= size):
        raise ValueError(f"{len(places)} places of {size}, where {count} are sent")
    return places
