"""Arrays, loaders and data sets on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import INPUTS, TARGETS, train
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from histfl.data import on_disk
from histfl.data.accepted import accepted
from histfl.errors import UsageError

DATA = TensorDataset(INPUTS, TARGETS)


def test_arrays_become_tensors_of_their_own_memory() -> None:
    array = np.zeros((3, 2), dtype=np.float32)
    inputs, targets = accepted((array, np.arange(3)))
    array[0, 0] = 7
    assert (inputs[0, 0].item(), targets.dtype) == (7, torch.int64)
    several, _ = accepted(({"ids": array, "mask": torch.ones(3)}, np.arange(3)))
    assert several["ids"][0, 0] == 7


@pytest.mark.parametrize("part", [slice(None), slice(1, 3)])
def test_a_file_is_mapped_and_never_written(tmp_path: Path, part: slice) -> None:
    np.save(tmp_path / "x.npy", np.arange(8.0).reshape(4, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")[part]
    inputs, _ = accepted((mapped, np.zeros(len(mapped), dtype=np.int64)))
    assert np.array_equal(inputs.numpy(), np.arange(8.0).reshape(4, 2)[part])
    inputs.zero_()  # as a model may do
    assert np.array_equal(np.load(tmp_path / "x.npy"), np.arange(8.0).reshape(4, 2))
    holes = np.load(tmp_path / "x.npy", mmap_mode="r")[:, ::2]  # no whole stretch of the file: copied
    assert accepted((holes, np.arange(4)))[0].tolist() == [[0.0], [2.0], [4.0], [6.0]]


class Big(Dataset[Any]):
    """Read by index; says which samples were read."""

    classes = ("cat", "dog", "fish")

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.read.append(index)
        return INPUTS[index].numpy(), int(TARGETS[index])


def test_a_data_set_on_the_disk_trains_as_one_in_memory(tmp_path: Path) -> None:
    big = Big()
    data = on_disk(big, tmp_path / "big")
    assert big.read == [*range(len(INPUTS))]  # once, in order
    assert data.class_names == ("cat", "dog", "fish")
    assert torch.equal(data.inputs, INPUTS)
    again = on_disk(big, str(tmp_path / "big"))
    assert len(big.read) == len(INPUTS)
    assert train(data=again, rounds=2).records == train(rounds=2).records


def test_a_data_set_that_was_not_read_to_its_end_is_read_anew(tmp_path: Path) -> None:
    class Broken(Big):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            if index == 5:
                raise OSError("the cable is out")
            return super().__getitem__(index)

    with pytest.raises(UsageError, match="the cable is out"):
        on_disk(Broken(), tmp_path / "big")
    assert torch.equal(on_disk(Big(), tmp_path / "big").targets, TARGETS)


class Uneven(Big):
    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.zeros(8 if index < 3 else 9, dtype=np.float32), 0


BAD: dict[str, tuple[Any, str]] = {
    "sampler": (
        DataLoader(DATA, sampler=SubsetRandomSampler([1, 2])),
        "SubsetRandomSampler: give its dataset",
    ),
    "weights": (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 40, 40)), "WeightedRandomSampler"),
    "collate": (DataLoader(DATA, collate_fn=lambda batch: batch), "a collate_fn of its own"),
    "text": ((np.array(["x"] * 40), TARGETS.numpy()), "no array of numbers"),
    "byte order": ((INPUTS.numpy().astype(">f4"), TARGETS.numpy()), "give array.copy()"),
}


@pytest.mark.parametrize("name", BAD)
def test_other_data_are_refused_in_one_line(name: str) -> None:
    given, said = BAD[name]
    with pytest.raises(UsageError) as error:
        accepted(given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_cannot_lie_on_the_disk_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Uneven\[3\] has shape \(9,\) .* all inputs must be alike"):
        on_disk(Uneven(), tmp_path / "uneven")
    with pytest.raises(UsageError, match="is empty"):
        on_disk([], tmp_path / "empty")
    with pytest.raises(UsageError, match="int has no length"):
        on_disk(3, tmp_path / "three")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="name another folder"):
        on_disk(Big(), tmp_path / "file")


@pytest.mark.parametrize("damage", ["about", "pickle", "short", "names"])
def test_a_damaged_folder_is_refused_and_nothing_of_it_unpickled(tmp_path: Path, damage: str) -> None:
    on_disk(Big(), tmp_path)
    if damage == "about":
        (tmp_path / "about.json").write_text("{")
    elif damage == "pickle":
        np.save(tmp_path / "inputs.npy", np.array([object()]), allow_pickle=True)
    elif damage == "short":
        (tmp_path / "inputs.npy").write_bytes((tmp_path / "inputs.npy").read_bytes()[:200])
    else:
        (tmp_path / "about.json").write_text(json.dumps({"class_names": 3}))
    with pytest.raises(UsageError, match="remove the folder, and it is made anew"):
        on_disk(Big(), tmp_path)
