"""Edge aggregation (HIST Eq. (6))."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from histfl.partition import State


def mean_of_clients(finals: Iterable[State]) -> State:
    """The mean over all clients of chunks whose tensors are [client, ...]."""
    total: State = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for chunk in finals:
        count += len(next(iter(chunk.values())))
        for name, tensor in chunk.items():
            # Half precision is too coarse to add up many clients in.
            partial = tensor.sum(dim=0, dtype=torch.promote_types(tensor.dtype, torch.float32))
            total[name] = total[name] + partial if name in total else partial
            dtypes[name] = tensor.dtype
    torch._foreach_div_(list(total.values()), count)
    return {name: tensor.to(dtypes[name]) for name, tensor in total.items()}
