"""Cross-entropy of a few outputs with its gradient in one pass, compiled by numba.

Between the large products of a step, each of the dozen torch operations that it replaces takes several
microseconds to begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from histfl.engines.cpu.compiled import compiled


@cache
def cross_entropy_kernel(kind: str) -> Callable[..., None]:
    """`_cross_entropies` for outputs of that kind (float32 or float64), compiled once and kept on disk for the
    next process."""
    from numba import types

    number = getattr(types, kind)
    outputs = types.Array(number, 3, "A")
    signature = types.void(types.Array(number, 1, "C"), outputs, outputs, types.Array(types.int64, 2, "A"))
    return compiled(_cross_entropies, signature)


def _cross_entropies(losses: Any, pull: Any, outputs: Any, targets: Any) -> None:
    """losses [client] <- mean over the batch of -log p(target), p being the softmax of outputs
    [client, batch, class], and pull [client, batch, class] <- its gradient."""
    clients, batch, classes = outputs.shape
    for i in range(clients):
        total = 0.0
        for j in range(batch):
            target = targets[i, j]
            if not 0 <= target < classes:
                raise IndexError("a target is no class of the model's outputs")
            values, p = outputs[i, j], pull[i, j]
            most = values[0]
            for k in range(1, classes):
                most = max(most, values[k])
            whole = outputs.dtype.type(0)
            for k in range(classes):
                p[k] = math.exp(values[k] - most)
                whole += p[k]
            scale = 1 / (whole * batch)
            for k in range(classes):
                p[k] *= scale
            log_p = values[target] - most - math.log(whole)
            p[target] = math.expm1(log_p) / batch  # p - 1, exact where p is near 1
            total -= log_p
        losses[i] = total / batch
