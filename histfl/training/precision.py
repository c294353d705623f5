"""The arithmetic of training on a GPU: how exact its products are.

`float32` is full single precision. `tf32` rounds the factors of products to 10 bits of mantissa, `bf16` also
runs layers in bfloat16 where torch's autocast does; parameters, their updates, averages and the evaluation
stay in float32 with either. On a CPU there is one arithmetic, that of the model's own numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, get_args

import torch

Precision = Literal["float32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """How exact a GPU multiplies matrices and convolves; torch's own choice comes back afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def layers(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The number format of layers in a forward pass."""
    if precision != "bf16":
        return nullcontext()
    # A cached cast would outlive the step that changes the parameter.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
