"""How Ray sends tensors: as their plain numbers, not as a pickle of torch's, which takes 20 times as long."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def send_numbers(*, shared: bool = False) -> None:
    """From now on, Ray sends tensors of this process so. `shared` ones are read where they lie in a node's memory, by all
    of its workers, and must not be written."""
    from ray.util import register_serializer

    register_serializer(torch.Tensor, serializer=_packed, deserializer=_read if shared else _copied)


@contextmanager
def numbers_sent(*, shared: bool = False) -> Iterator[None]:
    """`send_numbers` inside alone: what else Ray does in the user's process is not ours to change."""
    from ray.util import deregister_serializer

    send_numbers(shared=shared)
    try:
        yield
    finally:
        deregister_serializer(torch.Tensor)


def _packed(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Numbers, dtype, shape and device; of a sparse tensor, as torch has it, what makes it of dense ones, and these."""
    if tensor.layout != torch.strided:
        return tuple(tensor.__reduce_ex__(5))
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1)
    return flat.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape), tensor.device.type


def _copied(packed: tuple[Any, ...]) -> torch.Tensor:
    return _unpacked(packed, copy=True)


def _read(packed: tuple[Any, ...]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they cannot be written
        return _unpacked(packed, copy=False)


def _unpacked(packed: tuple[Any, ...], *, copy: bool) -> torch.Tensor:
    if len(packed) == 2:
        make, parts = packed
        return make(*parts)  # type: ignore[no-any-return]
    numbers, dtype, shape, device = packed
    if numbers.size == 0:  # whose bytes torch views as nothing else
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(numbers.copy() if copy else numbers).view(dtype).view(shape).to(device)
