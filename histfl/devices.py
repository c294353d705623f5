"""Moving numbers to where they are used, what there is to work on them, whether random ones were drawn, and how exact a
GPU's products are.

`float32` is full single precision. `tf32` rounds the factors of products to 10 bits of mantissa, `bf16` also
runs layers in bfloat16 where torch's autocast does; parameters, their updates, averages and the evaluation
stay in float32 with either. On a CPU there is one arithmetic, that of the model's own numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Literal, get_args

import torch

from histfl.errors import UsageError, shown


def triton_installed() -> bool:
    """Whether kernels of our own can be compiled for a GPU (torch for CUDA brings Triton)."""
    return find_spec("triton") is not None


@cache
def numba_installed() -> bool:
    """Whether kernels of our own can be compiled for a CPU (the extra fast)."""
    return find_spec("numba") is not None


def choose_device(name: str | torch.device) -> torch.device:
    """`auto` takes a CUDA GPU where there is one."""
    if not isinstance(name, str | torch.device):
        raise UsageError(f"device {shown(name)}: use auto, cpu or cuda")
    name = str(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda: torch sees no CUDA GPU here; use cpu")
    if name not in ("cpu", "cuda"):
        raise UsageError(f"device {shown(name)}: use auto, cpu or cuda")
    return torch.device(name)


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on the device, without waiting for the work that a GPU has still to do.

    The copy is made from pinned memory, which torch keeps until it is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def generator_state(device: torch.device) -> torch.Tensor:
    """Of torch's global generators, the device's among them: other bytes once a random number is drawn."""
    state = torch.random.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else state


@contextmanager
def one_torch_thread() -> Iterator[int]:
    """One torch thread inside, how many there were as the value; torch's number comes back.

    Several of them share sums in other places than one does, and so round otherwise: what enters a run's records
    must not depend on their number.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


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
