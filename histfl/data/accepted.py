"""What a user of Python has data in besides tensors and Datasets: numpy arrays, also on the disk, and DataLoaders."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler, default_collate

from histfl.arguments import path
from histfl.data.dataset import TensorData, as_tensor_data
from histfl.errors import UsageError, in_one_line, shown
from histfl.files import write_whole
from histfl.settings import parse_json

NUMBERS = "iufb"  # kinds of numpy's numbers
ABOUT = "about.json"


def accepted(source: Any) -> Any:
    """`source` as `as_tensor_data` takes it: of a DataLoader its data set, of numpy's arrays tensors of their memory, so
    that what lies on the disk (`numpy.memmap`) stays there and is read sample by sample."""
    if isinstance(source, DataLoader):
        return accepted(_dataset(source))
    if isinstance(source, (tuple, list)) and len(source) == 2:
        return tuple(_tensors(part) for part in source)
    return source


def _dataset(loader: DataLoader[Any]) -> Any:
    """The data set of a loader that reads it in its order or shuffled: batches are made by `batch_size` and the seed."""
    sampler, remedy = loader.sampler, "give its dataset, of some samples as a torch.utils.data.Subset"
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    if not whole:
        raise UsageError(f"a DataLoader with the sampler {type(sampler).__name__}: {remedy}")
    if loader.collate_fn is not default_collate:
        raise UsageError(
            "a DataLoader with a collate_fn of its own: give a Dataset that does it for a sample"
        )
    return loader.dataset


def _tensors(part: Any) -> Any:
    """Arrays, also those in a tuple or a dictionary, as tensors; all else as it is."""
    if isinstance(part, np.ndarray):
        return _tensor(part)
    if isinstance(part, Mapping):
        return {name: _tensors(value) for name, value in part.items()}
    if isinstance(part, tuple):
        return tuple(_tensors(value) for value in part)
    return part


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    if array.dtype.kind not in NUMBERS:
        raise UsageError(
            f"an array of {array.dtype} is no array of numbers; number classes from 0, and make numbers of text first"
        )
    try:
        return torch.from_numpy(array if array.flags.writeable else _writable(array))
    except Exception as error:  # a type, byte order or stride that torch has not, or a file that is gone
        raise UsageError(f"an array of {array.dtype}: {in_one_line(error)}; give array.copy()") from None


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers, for a model may write into its inputs; those of a file stay there, and it never changes."""
    root = array
    while isinstance(root.base, np.memmap):
        root = root.base
    if isinstance(root, np.memmap) and root.filename is not None and array.flags.c_contiguous:
        offset = root.offset + array.ctypes.data - root.ctypes.data
        return np.memmap(root.filename, array.dtype, "c", offset, array.shape)
    return array.copy()


def on_disk(dataset: Any, folder: Path | str) -> TensorData:
    """A Dataset of (input, target) that does not fit in memory, read once, sample by sample, into `folder`, and from then
    on as a batch asks for it. A folder that holds it already is used as it is.

    Inputs are tensors or arrays of one shape, targets whole class numbers. Remove the folder where the data have
    changed.
    """
    place = path("folder", folder)
    try:
        if (place / ABOUT).exists():
            return _read(place)
        place.mkdir(parents=True, exist_ok=True)
        _write(dataset, place)
        return _read(place)
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror or error}; name another folder") from None


def _write(dataset: Any, folder: Path) -> None:
    """about.json comes last: without it the folder is made anew."""
    kind = type(dataset).__name__
    try:
        samples = len(dataset)
    except Exception as error:  # a user's data set may fail in any way
        raise UsageError(f"{kind} has no length ({in_one_line(error)}); give a map-style dataset") from None
    if samples == 0:
        raise UsageError(f"{kind} is empty; a data set needs at least one sample")
    inputs = targets = None
    for index in range(samples):
        one = as_tensor_data(_One(dataset, index))
        numbers = np.asarray(one.inputs)  # a tensor [1, ...]
        if inputs is None or targets is None:
            inputs = _made(folder / "inputs.npy", numbers.dtype, (samples, *numbers.shape[1:]))
            targets = _made(folder / "targets.npy", np.dtype(np.int64), (samples,))
        if numbers.shape[1:] != inputs.shape[1:] or numbers.dtype != inputs.dtype:
            raise UsageError(
                f"{kind}[{index}] has shape {numbers.shape[1:]} of {numbers.dtype} and the first one {inputs.shape[1:]} of "
                f"{inputs.dtype}; all inputs must be alike"
            )
        inputs[index], targets[index] = numbers[0], int(one.targets)
    assert inputs is not None
    assert targets is not None  # there is a sample
    inputs.flush()
    targets.flush()
    names = getattr(dataset, "classes", None)
    names = [str(number) for number in range(int(targets.max()) + 1)] if names is None else [*map(str, names)]
    write_whole(folder / ABOUT, json.dumps({"class_names": names}).encode())


class _One(Dataset[Any]):
    """One sample as a data set, for its checks."""

    def __init__(self, dataset: Any, index: int) -> None:
        self._dataset, self._index = dataset, index

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._index]


def _made(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    return np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)


def _read(folder: Path) -> TensorData:
    """What `_write` wrote; nothing of it is unpickled."""
    remedy = "remove the folder, and it is made anew"
    try:
        names = parse_json((folder / ABOUT).read_text("utf-8"))["class_names"]
        inputs, targets = (
            np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
            for name in ("inputs", "targets")
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise UsageError(f"{os.fspath(folder)} holds no data set: {in_one_line(error)}; {remedy}") from None
    if not isinstance(names, list):
        raise UsageError(f"{os.fspath(folder)}: class_names = {shown(names)}; {remedy}")
    return as_tensor_data((_tensor(inputs), _tensor(targets)), class_names=[str(name) for name in names])
