from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from histfl.data import TensorData, as_tensor_data, train_and_test
from histfl.data.dataset import TextData
from histfl.data.inputs import parts
from histfl.errors import UsageError


class Pairs(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_a_pair_of_tensors_becomes_data_with_numbered_classes():
    data = as_tensor_data((torch.zeros(4, 3), torch.tensor([0, 2, 1, 0], dtype=torch.int32)))
    assert data.targets.dtype == torch.int64
    assert data.class_names == ("0", "1", "2")
    assert len(data) == 4
    assert data.num_classes == 3


def test_data_show_themselves_in_a_line():
    data = as_tensor_data((torch.zeros(4, 1, 28, 28), torch.tensor([0, 2, 1, 0])))
    assert repr(data) == "TensorData(4 samples, inputs (1, 28, 28), 3 classes)"
    several = TensorData({"ids": torch.zeros(3, 5), "mask": torch.zeros(3, 5)}, torch.zeros(3, 2))
    assert repr(several) == "TensorData(3 samples, inputs ids (5,), mask (5,), targets (2,) torch.float32)"


def test_tensor_data_is_returned_as_it_is():
    data = TensorData(torch.zeros(1, 2), torch.tensor([0]), ("a",))
    assert as_tensor_data(data) is data


def test_a_tensor_dataset_is_not_copied():
    inputs, targets = torch.rand(5, 2), torch.tensor([0, 1, 0, 1, 1])
    data = as_tensor_data(TensorDataset(inputs, targets))
    assert data.inputs.data_ptr() == inputs.data_ptr()
    assert data.targets is targets


@pytest.mark.parametrize("target", [1, torch.tensor(1), np.int64(1), np.array(1)])
@pytest.mark.parametrize("value", [torch.tensor([1.0, 2.0]), np.array([1.0, 2.0])])
def test_a_dataset_of_pairs_is_stacked(value, target):
    data = as_tensor_data(Pairs([(value, 0), (value, target)]))
    assert data.inputs.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert data.targets.tolist() == [0, 1]


def test_class_names_come_from_the_argument_then_from_the_source():
    source = Pairs([(torch.zeros(1), 0)])
    source.classes = ["cat", "dog"]
    assert as_tensor_data(source).class_names == ("cat", "dog")
    assert as_tensor_data(source, class_names=["x", "y", "z"]).class_names == ("x", "y", "z")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ((torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64)), "3 inputs but 2 targets"),
        ((torch.zeros(2, 2), torch.zeros(2, dtype=torch.complex64)), "torch.complex64"),
        (
            (torch.zeros(2, 2), torch.zeros(3, 1, dtype=torch.int64)),
            r"2 inputs but targets of shape \(3, 1\)",
        ),
        (({}, torch.zeros(2)), "give two tensors"),
        (
            ((torch.zeros(2, 2), torch.zeros(3, 2)), torch.zeros(2)),
            "inputs 1 are of 3 samples, and others of 2",
        ),
        ((({"ids": torch.zeros(2), "mask": [1, 1]}), torch.zeros(2)), "give two tensors"),
        (
            Pairs([((torch.zeros(2), torch.zeros(1)), 0), (torch.zeros(2), 0)]),
            r"Pairs\[1\] has other tensors",
        ),
        (Pairs([(torch.zeros(2), torch.zeros(1)), (torch.zeros(2), torch.zeros(2))]), "another shape"),
        (Pairs([([1.0, 2.0], 0)]), "the input of .* is a list"),
        ((torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)), "at least one sample"),
        ((torch.zeros(1), torch.tensor([-3])), "target -3"),
        ((torch.zeros(1), torch.tensor([10**12])), "target 1000000000000 is no class number"),
        ((torch.zeros(2, 2),), "give two tensors"),
        (([1, 2], [0, 1]), "give two tensors"),
        (torch.zeros(3), "data given as Tensor"),
        (7, "data given as int"),
        (Pairs([]), "empty"),
        (Pairs([torch.zeros(2)]), r"Pairs\[0\] is a Tensor"),
        (Pairs([(torch.zeros(2), 0), (torch.zeros(3), 0)]), r"Pairs\[1\] has shape \(3,\)"),
        (Pairs([("an image", 0)]), "ToTensor"),
        (Pairs([(torch.zeros(2), "cat")]), r"target of Pairs\[0\] is 'cat'"),
        (Pairs([(torch.zeros(2), True)]), "whole class number"),
    ],
)
def test_what_cannot_be_used_is_named(source, says):
    with pytest.raises(UsageError, match=says):
        as_tensor_data(source)


def test_a_dataset_without_length_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(2), 0

        def __getitem__(self, index):
            raise NotImplementedError

    with pytest.raises(UsageError, match="Stream has no length"):
        as_tensor_data(Stream())


def test_targets_must_have_names():
    with pytest.raises(UsageError, match=r"target 2 is outside 0\.\.1"):
        TensorData(torch.zeros(1, 2), torch.tensor([2]), ("a", "b"))
    with pytest.raises(UsageError, match=r"target 2 is outside 0\.\.1"):
        TextData(("post",), torch.tensor([2]), ("a", "b"))


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        (
            [0, 1, 2],
            [0, 3],
            r"the test set: target 3 is outside 0\.\.2 .* let the training set hold every class",
        ),
        ([0, -1], [0], r"the training set: target -1 is outside 0\.\.0 .* number the classes from 0"),
    ],
)
def test_a_label_out_of_place_is_said_with_its_set(train, test, said):
    pairs = [(torch.zeros(len(labels), 2), torch.tensor(labels)) for labels in (train, test)]
    with pytest.raises(UsageError, match=said):
        train_and_test(*pairs)


def test_the_test_set_has_the_training_sets_classes():
    train, test = train_and_test(*((torch.zeros(n, 2), torch.arange(n)) for n in (3, 2)))
    assert test.class_names == train.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("items", "dtype", "shape"),
    [
        ([0.5, 1.5], torch.float32, (2,)),
        ([1, 1.5], torch.float32, (2,)),
        ([torch.zeros(3), torch.ones(3)], torch.float32, (2, 3)),
        ([np.zeros((2, 2), dtype=np.int32)] * 2, torch.int64, (2, 2, 2)),
    ],
)
def test_targets_that_are_no_labels_are_kept_and_have_no_classes(items, dtype, shape):
    data = as_tensor_data(Pairs([(torch.zeros(1), target) for target in items]))
    assert (data.targets.dtype, tuple(data.targets.shape)) == (dtype, shape)
    assert data.class_names == ()
    assert data.num_classes == 0


@pytest.mark.parametrize("inputs", [(torch.arange(3.0), torch.zeros(3, 2)), {"ids": torch.arange(3)}])
def test_inputs_may_be_several_tensors(inputs):
    whole = as_tensor_data((inputs, torch.arange(3)))
    by_place = dict(enumerate(inputs)) if isinstance(inputs, tuple) else inputs
    items = [{name: x[i] for name, x in by_place.items()} for i in range(3)]
    stacked = as_tensor_data(
        Pairs([(tuple(x.values()) if isinstance(inputs, tuple) else x, i) for i, x in enumerate(items)])
    )
    assert type(whole.inputs) is type(stacked.inputs) is type(inputs)
    for mine, theirs in zip(parts(whole.inputs), parts(stacked.inputs), strict=True):
        assert torch.equal(mine, theirs)
    assert len(whole) == 3


def test_to_casts_floating_inputs_only():
    targets = torch.tensor([0, 0])
    floats = TensorData(torch.ones(2, 3), targets, ("a",)).to("cpu", torch.float64)
    tokens = TensorData(torch.ones(2, 3, dtype=torch.int64), targets, ("a",)).to("cpu", torch.float64)
    assert floats.inputs.dtype == torch.float64
    assert tokens.inputs.dtype == torch.int64
    assert floats.targets.dtype == tokens.targets.dtype == torch.int64
