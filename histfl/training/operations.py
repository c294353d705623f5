"""How many operations a local step takes, of the whole model and cut, by the formulas of torch's flop counter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from histfl.arrays import Ints
from histfl.data.inputs import Inputs, chosen, mapped, parts
from histfl.errors import UsageError, in_one_line
from histfl.partition import Plan, State, Submodel, extract, num_parameters, with_tensors
from histfl.partition.module import outputs_of, quietly
from histfl.partition.submodel import tensor_shape

SHARES = (0.125, 0.25, 0.5)  # of every cut layer's units, between one unit of each and all of them
EXAMPLES = 2  # samples that a model takes which does not run on shapes alone
_TORCHS_OWN = ("aten", "prims", "prim", "profiler")


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of a local step, forward and backward, by the submodel's number of parameters.

    Both ascend and the last is the full model's; a product and a sum are two operations. Additions of vectors,
    activations and the like are left out, which torch does not count. `missed` are operations beyond torch's own,
    which it cannot.
    """

    parameters: tuple[int, ...]
    operations: tuple[int, ...]
    missed: tuple[str, ...] = ()

    @property
    def full(self) -> int:
        """Of the full model."""
        return self.operations[-1]


def count_operations(model: nn.Module, plan: Plan, inputs: Inputs, batch_size: int) -> Operations:
    """Operations of a step on `batch_size` samples like `inputs`, at a few sizes from one unit a layer to all.

    `model` takes compact tensors (`training_copy`) and stays as it is. Nothing is computed: shapes alone go through
    the model, or two samples where it does not run on shapes. UsageError where nothing can be counted.
    """
    found: dict[int, int] = {}
    missed: set[str] = set()
    for counts in _sizes(plan):
        submodel = Submodel(plan, tuple(torch.arange(count) for count in counts.tolist()))
        counter = _counted(model, submodel, inputs, batch_size)
        if not counter.operations:
            raise UsageError(f"torch counts no operation in a step of {type(model).__name__}")
        missed |= counter.missed
        found[num_parameters(submodel)] = counter.operations
    sizes = sorted(found)
    operations = np.maximum.accumulate([found[size] for size in sizes]).tolist()
    return Operations(tuple(sizes), tuple(operations), tuple(sorted(missed)))


def _sizes(plan: Plan) -> Iterator[Ints]:
    """Units [group] of the submodels that are counted."""
    for share in (0.0, *SHARES) if plan.groups else ():
        yield np.maximum(np.rint(share * plan.units), 1).astype(np.int64)
    yield plan.units


def _counted(model: nn.Module, submodel: Submodel, inputs: Inputs, batch_size: int) -> _Counter:
    counter = _Counter()
    try:
        with quietly():
            _on_shapes(model, submodel, inputs, batch_size, counter)
    except Exception:  # it asks for values, or brings tensors of its own
        counter = _Counter()
        try:
            with torch.random.fork_rng(_cuda(inputs)), quietly(), _plain_layers():
                _on_samples(model, submodel, chosen(inputs, slice(EXAMPLES)), counter)
        except Exception as error:  # a user's model may fail in any way
            raise UsageError(
                f"the operations of {type(model).__name__} cannot be counted ({in_one_line(error)})"
            ) from None
        counter.operations = round(counter.operations * batch_size / len(parts(inputs)[0][:EXAMPLES]))
    return counter


def _on_shapes(
    model: nn.Module, submodel: Submodel, inputs: Inputs, batch_size: int, counter: _Counter
) -> None:
    state = {
        name: torch.empty(tensor_shape(submodel, name), dtype=dtype, device="meta")
        for name, dtype in submodel.plan.dtypes.items()
    }
    buffers = {name: buffer.to("meta") for name, buffer in model.named_buffers()}
    batch = mapped(lambda x: torch.empty((batch_size, *x.shape[1:]), dtype=x.dtype, device="meta"), inputs)
    _step(model, submodel.plan, state, buffers, batch, counter)


def _on_samples(model: nn.Module, submodel: Submodel, inputs: Inputs, counter: _Counter) -> None:
    names = submodel.plan.trainable | submodel.positions.keys()
    held = {name: value.detach() for name, value in model.named_parameters() if name in names}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    _step(model, submodel.plan, extract(held, submodel), buffers, inputs, counter)


def _step(
    model: nn.Module, plan: Plan, state: State, buffers: State, inputs: Inputs, counter: _Counter
) -> None:
    trained = [value.requires_grad_() for name, value in state.items() if name in plan.trainable]

    def forward_and_backward(held: nn.Module) -> None:
        # One way of attention and recurrence, of which torch's counter has all products.
        with counter, sdpa_kernel(SDPBackend.MATH):
            outputs = outputs_of(held, inputs)
            torch.autograd.grad(
                outputs, trained, [torch.ones_like(value) for value in outputs], materialize_grads=True
            )

    with_tensors(model, {**state, **buffers}, forward_and_backward)


class _Counter(TorchDispatchMode):
    """Adds up what torch's flop counter has formulas for; its mode itself imports a second's worth of modules."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self.missed: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import its compiler, seconds of modules

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        returned = function(*args, **kwargs)
        packet = function.overloadpacket
        if packet is torch.ops.aten.convolution_backward:
            self.operations += _convolution_backward(*args)
        elif packet in flop_registry:
            self.operations += flop_registry[packet](*args, **kwargs, out_val=returned)
        elif function.namespace not in _TORCHS_OWN:
            self.missed.add(f"{function.namespace}.{packet.__name__}")
        return returned


def _convolution_backward(
    gradient: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> int:
    """Either gradient takes what the forward pass does; torch counts that of a grouped weight groups times over."""
    transposed, wanted = rest[4], rest[7]
    positions = (inputs if transposed else gradient).shape[2:]
    return 2 * len(inputs) * prod(positions) * weight.numel() * (bool(wanted[0]) + bool(wanted[1]))


@contextmanager
def _plain_layers() -> Iterator[None]:
    """Without the libraries' recurrent layers, which are one operation that nobody counts."""
    with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
        yield


def _cuda(inputs: Inputs) -> list[torch.device]:
    device = parts(inputs)[0].device
    return [device] if device.type == "cuda" else []
