"""Data sets in memory: inputs and labels as whole tensors, or texts and labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from histfl.errors import UsageError, in_one_line, shown

MAX_CLASSES = 1_000_000  # more is a slip (a year, an identifier), and its names alone would fill memory
_INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class TensorData:
    """Labelled samples: `inputs` [sample, ...], `targets` [sample] int64 in 0 .. num_classes - 1."""

    inputs: Tensor
    targets: Tensor
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.inputs.ndim < 1 or len(self.inputs) == 0:
            raise UsageError(
                f"inputs have shape {tuple(self.inputs.shape)}; a data set needs at least one sample"
            )
        _check_targets(self.targets, len(self.inputs), "inputs", self.class_names)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> TensorData:
        """The same data on `device`; `dtype` applies to floating inputs only (token ids stay whole)."""
        cast = dtype if self.inputs.is_floating_point() else None
        return replace(
            self, inputs=self.inputs.to(device=device, dtype=cast), targets=self.targets.to(device=device)
        )


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


DataSource: TypeAlias = "TensorData | tuple[Tensor, Tensor] | Dataset[Any]"


def as_tensor_data(source: DataSource, *, class_names: Sequence[str] | None = None) -> TensorData:
    """Any labelled data as one `TensorData`.

    Takes a `TensorData` (returned as it is), a pair (inputs [sample, ...], targets [sample]), or a
    dataset of (input, target) pairs, which is read and stacked once: a random transform is thus drawn
    once. `class_names` names the classes where the source does not; pass the training set's to a
    test set in which a class may be missing.
    """
    if isinstance(source, TensorData):
        return source
    names = class_names if class_names is not None else getattr(source, "classes", None)
    inputs, targets = _pair(source.tensors if isinstance(source, TensorDataset) else source)
    _check_plain("inputs", inputs)
    _check_plain("targets", targets)
    if targets.dtype not in _INTEGER_DTYPES:
        raise UsageError(
            f"targets are {targets.dtype}; they must be whole class numbers, such as torch.int64"
        )
    targets = targets.to(torch.int64)
    if names is None:
        highest = int(targets.max()) if targets.numel() else 0
        if highest >= MAX_CLASSES:
            raise UsageError(f"target {highest} is no class number; number the classes from 0")
        names = [str(label) for label in range(max(highest, 0) + 1)]
    return TensorData(inputs.detach(), targets, _class_names(names, type(source).__name__))


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


def _pair(source: Any) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of a pair or of any object with pairs at 0, 1, ..."""
    if isinstance(source, (tuple, list)):
        if len(source) != 2 or not all(isinstance(part, Tensor) for part in source):
            kinds = ", ".join(type(part).__name__ for part in source[:4])
            raise UsageError(f"data given as ({kinds}); give two tensors, (inputs, targets)")
        return source[0], source[1]
    if not hasattr(source, "__getitem__") or isinstance(source, (str, bytes, Tensor, np.ndarray, dict)):
        raise UsageError(
            f"data given as {type(source).__name__}; give two tensors, (inputs, targets), "
            "or a dataset of such pairs"
        )
    return _stack(source)


def _stack(source: Any) -> tuple[Tensor, Tensor]:
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
    inputs, targets = [], []
    for index in range(length):
        try:
            item = source[index]
        except Exception as error:  # a user's data set may fail in any way
            raise UsageError(f"{kind}[{index}] fails: {in_one_line(error)}") from error
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise UsageError(f"{kind}[{index}] is a {type(item).__name__}; it must be a pair (input, target)")
        inputs.append(_input_tensor(item[0], f"{kind}[{index}]"))
        targets.append(_target_number(item[1], f"{kind}[{index}]"))
        if inputs[-1].shape != inputs[0].shape:
            raise UsageError(
                f"{kind}[{index}] has shape {tuple(inputs[-1].shape)} and the first one "
                f"{tuple(inputs[0].shape)}; all inputs must have one shape"
            )
    try:
        return torch.stack(inputs), torch.tensor(targets, dtype=torch.int64)
    except Exception as error:  # items of different devices or layouts, items that fill memory
        raise UsageError(f"the items of {kind} cannot be stacked: {in_one_line(error)}") from None


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


def _target_number(value: Any, place: str) -> int:
    if isinstance(value, (Tensor, np.ndarray, np.generic)) and value.ndim == 0:
        value = None if isinstance(value, Tensor) and value.is_meta else value.item()
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    raise UsageError(f"the target of {place} is {shown(value)}; it must be a whole class number")


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
