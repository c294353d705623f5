"""Data sets in memory: inputs and targets as whole tensors, or texts and labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from histfl.data.inputs import Inputs, mapped, named_parts, parts
from histfl.errors import UsageError, in_one_line, shown

MAX_CLASSES = 1_000_000  # more is a slip (a year, an identifier), and its names alone would fill memory
_INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False, repr=False)
class TensorData:
    """Samples: `inputs` [sample, ...], a tensor or several (`data.inputs`), and `targets` [sample, ...].

    Where there are `class_names`, targets are labels: int64 [sample] in 0 .. num_classes - 1. Where there are none
    they are what the objective takes, such as numbers [sample, ...] or classes of places [sample, place, ...].
    """

    inputs: Inputs
    targets: Tensor
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, tensor in named_parts(self.inputs).items():
            if tensor.ndim < 1 or len(tensor) == 0:
                raise UsageError(
                    f"{f'inputs {name}'.strip()} have shape {tuple(tensor.shape)}; a data set needs at least one sample"
                )
            if len(tensor) != len(parts(self.inputs)[0]):
                raise UsageError(
                    f"inputs {name} are of {len(tensor)} samples, and others of {len(parts(self.inputs)[0])}; all must "
                    "have one first axis, that of the samples"
                )
        samples = len(parts(self.inputs)[0])
        if self.class_names:
            _check_targets(self.targets, samples, "inputs", self.class_names)
        elif self.targets.ndim < 1 or len(self.targets) != samples:
            raise UsageError(
                f"{samples} inputs but targets of shape {tuple(self.targets.shape)}; there must be one target a sample"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        inputs = [
            f"{name} {tuple(tensor.shape[1:])}".strip() for name, tensor in named_parts(self.inputs).items()
        ]
        targets = (
            f"{self.num_classes} classes"
            if self.class_names
            else f"targets {tuple(self.targets.shape[1:])} {self.targets.dtype}"
        )
        return f"TensorData({len(self)} samples, inputs {', '.join(inputs)}, {targets})"

    @property
    def num_classes(self) -> int:
        """Of labels; 0 where targets are others."""
        return len(self.class_names)

    @property
    def device(self) -> torch.device:
        return self.targets.device

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> TensorData:
        """The same data on `device`; `dtype` applies to real numbers only (token ids and labels stay whole)."""

        def there(tensor: Tensor) -> Tensor:
            return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

        return replace(self, inputs=mapped(there, self.inputs), targets=there(self.targets))


@dataclass(frozen=True, eq=False)
class TextData:
    """Labelled documents: `texts` [sample], `targets` [sample] int64."""

    texts: tuple[str, ...]
    targets: Tensor
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.texts:
            raise UsageError("a text data set needs at least one document")
        _check_targets(self.targets, len(self.texts), "texts", self.class_names)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


DataSource: TypeAlias = "TensorData | tuple[Inputs, Tensor] | Dataset[Any]"


def as_tensor_data(source: DataSource, *, class_names: Sequence[str] | None = None) -> TensorData:
    """Any data as one `TensorData`.

    Takes a `TensorData` (returned as it is), a pair (inputs, targets) of tensors [sample, ...], or a
    dataset of (input, target) pairs, which is read and stacked once: a random transform is thus drawn
    once. Inputs may be several tensors, in a tuple or a dictionary. Whole targets [sample] are labels, which
    `class_names` names where the source does not; pass the training set's to a test set in which a class may be
    missing.
    """
    if isinstance(source, TensorData):
        return source
    names = class_names if class_names is not None else getattr(source, "classes", None)
    inputs, targets = _pair(source.tensors if isinstance(source, TensorDataset) else source)
    for name, tensor in named_parts(inputs).items():
        _check_plain(f"inputs {name}".strip(), tensor)
    _check_plain("targets", targets)
    inputs = mapped(Tensor.detach, inputs)
    if targets.dtype in _INTEGER_DTYPES:
        targets = targets.to(torch.int64)
    elif not (targets.is_floating_point() or targets.dtype == torch.bool):
        raise UsageError(
            f"targets are {targets.dtype}; they must be whole class numbers, such as torch.int64, or real numbers"
        )
    if targets.dtype != torch.int64 or targets.ndim != 1:
        return TensorData(inputs, targets.detach(), tuple(class_names or ()))
    if names is None:
        highest = int(targets.max()) if targets.numel() else 0
        if highest >= MAX_CLASSES:
            raise UsageError(
                f"target {highest} is no class number; number the classes from 0, or give real numbers, targets.float()"
            )
        names = [str(label) for label in range(max(highest, 0) + 1)]
    return TensorData(inputs, targets, _class_names(names, type(source).__name__))


def _class_names(names: Any, kind: str) -> tuple[str, ...]:
    try:
        texts = tuple(str(name) for name in itertools.islice(names, MAX_CLASSES + 1))
    except Exception as error:  # a user's object may fail in any way
        raise UsageError(
            f"{kind}.classes = {shown(names)}: {in_one_line(error)}; it must be a list of the classes' names"
        ) from None
    if len(texts) > MAX_CLASSES:
        raise UsageError(f"{kind}.classes has more than {MAX_CLASSES} names; name the classes alone")
    return texts


def _check_plain(what: str, tensor: Tensor) -> None:
    """A UsageError where a tensor is not plain numbers in memory, which are dealt out to clients."""
    kinds = {
        "a nested tensor; give one of one shape a sample": tensor.is_nested,
        "on the meta device and have no values; give a tensor with values": tensor.is_meta,
        "quantised; give their numbers, tensor.dequantize()": tensor.is_quantized,
    }
    for kind, found in kinds.items():
        if found:
            raise UsageError(f"{what} are {kind}")
    if tensor.layout is not torch.strided:
        raise UsageError(f"{what} are of layout {tensor.layout}; give a dense tensor, tensor.to_dense()")


def train_and_test(train: DataSource, test: DataSource) -> tuple[TensorData, TensorData]:
    """Both sets of a task; the classes are those of the training set."""
    with _named("the training set"):
        train_data = as_tensor_data(train)
    with _named("the test set"):
        return train_data, as_tensor_data(test, class_names=train_data.class_names)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Says which set a mistake is in."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _pair(source: Any) -> tuple[Inputs, Tensor]:
    """(inputs, targets) of a pair or of any object with pairs at 0, 1, ..."""
    if isinstance(source, (tuple, list)):
        if len(source) != 2 or not isinstance(source[1], Tensor) or (inputs := _several(source[0])) is None:
            kinds = ", ".join([type(part).__name__ for part in source[:3]] + ["..."] * (len(source) > 3))
            raise UsageError(
                f"data given as ({kinds}); give two tensors, (inputs, targets), of which the inputs may be a tuple or a "
                "dictionary of tensors, or a torch Dataset of (input, target) pairs"
            )
        return inputs, source[1]
    if not hasattr(source, "__getitem__") or isinstance(source, (str, bytes, Tensor, np.ndarray, dict)):
        raise UsageError(
            f"data given as {type(source).__name__}; give two tensors, (inputs, targets), "
            "or a dataset of such pairs"
        )
    return _stack(source)


def _several(inputs: Any) -> Inputs | None:
    """`inputs` where they are a tensor, a tuple (or list) of tensors or a dictionary of them."""
    if isinstance(inputs, Tensor):
        return inputs
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        inputs = dict(inputs)
    elif isinstance(inputs, (tuple, list)):
        inputs = tuple(inputs)
    else:
        return None
    of_tensors = inputs and all(isinstance(part, Tensor) for part in parts(inputs))
    return inputs if of_tensors else None


def _stack(source: Any) -> tuple[Inputs, Tensor]:
    """All (input, target) pairs of a dataset, stacked."""
    kind = type(source).__name__
    try:
        length = len(source)
    except Exception as error:  # a user's data set may fail in any way
        raise UsageError(
            f"{kind} has no length ({in_one_line(error)}); give a map-style dataset (with __len__ and __getitem__)"
        ) from None
    if length == 0:
        raise UsageError(f"{kind} is empty; a data set needs at least one sample")
    inputs: list[Inputs] = []
    targets: list[Any] = []
    for index in range(length):
        place = f"{kind}[{index}]"
        try:
            item = source[index]
        except Exception as error:  # a user's data set may fail in any way
            raise UsageError(f"{place} fails: {in_one_line(error)}") from error
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise UsageError(f"{place} is a {type(item).__name__}; it must be a pair (input, target)")
        inputs.append(_input(item[0], place))
        targets.append(_target(item[1], place))
        if named_parts(inputs[-1]).keys() != named_parts(inputs[0]).keys():
            raise UsageError(f"{place} has other tensors than the first one; all inputs must have the same")
        if (here := _shapes(inputs[-1])) != (first := _shapes(inputs[0])):
            raise UsageError(
                f"{place} has shape {here} and the first one {first}; all inputs must have one shape"
            )
        if isinstance(targets[0], Tensor) != isinstance(targets[-1], Tensor) or (
            isinstance(targets[0], Tensor) and targets[0].shape != targets[-1].shape
        ):
            raise UsageError(f"the target of {place} has another shape than the first one; all must have one")
    try:
        whole = torch.int64 if all(isinstance(target, int) for target in targets) else torch.float32
        many = torch.stack(targets) if isinstance(targets[0], Tensor) else torch.tensor(targets, dtype=whole)
        return mapped(lambda *samples: torch.stack(samples), *inputs), many
    except Exception as error:  # items of different devices or layouts, items that fill memory
        raise UsageError(f"the items of {kind} cannot be stacked: {in_one_line(error)}") from None


def _shapes(inputs: Inputs) -> object:
    each = [tuple(tensor.shape) for tensor in parts(inputs)]
    return each[0] if isinstance(inputs, Tensor) else each


def _input(value: Any, place: str) -> Inputs:
    if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        return {name: _input_tensor(part, place) for name, part in value.items()}
    if isinstance(value, (tuple, list)) and value and all(isinstance(x, Tensor | np.ndarray) for x in value):
        return tuple(_input_tensor(part, place) for part in value)
    return _input_tensor(value, place)


def _input_tensor(value: Any, place: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (np.ndarray, np.generic, int, float)):
        try:
            return torch.as_tensor(value)
        except Exception as error:  # text, dates, objects, numbers of more than 64 bits
            raise UsageError(f"the input of {place} is no tensor: {in_one_line(error)}") from None
    raise UsageError(
        f"the input of {place} is a {type(value).__name__}; give tensors (for images: transform=ToTensor())"
    )


def _target(value: Any, place: str) -> int | float | Tensor:
    """A target as a number, or as a tensor where it has axes of its own."""
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "iufb":
        return torch.as_tensor(value)
    if isinstance(value, Tensor) and value.ndim:
        return value
    if isinstance(value, (Tensor, np.ndarray, np.generic)) and value.ndim == 0:
        value = None if isinstance(value, Tensor) and value.is_meta else value.item()
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    if isinstance(value, float):
        return value
    raise UsageError(
        f"the target of {place} is {shown(value)}; it must be a whole class number, a real number or a tensor of them"
    )


def _check_targets(targets: Tensor, samples: int, what: str, class_names: tuple[str, ...]) -> None:
    if targets.dtype != torch.int64 or targets.ndim != 1:
        raise UsageError(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)}; they must be torch.int64 [sample]"
        )
    if len(targets) != samples:
        raise UsageError(f"{samples} {what} but {len(targets)} targets; there must be one target a sample")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= len(class_names):
        bad = low if low < 0 else high
        raise UsageError(
            f"target {bad} is outside 0..{len(class_names) - 1} ({len(class_names)} class names); number the "
            "classes from 0, and let the training set hold every class or name them all"
        )
