"""CIFAR-10 (Krizhevsky, 2009), binary version: 50,000 + 10,000 colour images of 32 x 32, 10 classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from histfl.arrays import large_floats
from histfl.data.dataset import TensorData
from histfl.data.store import Source, TensorPair, member, read_content
from histfl.errors import DataError

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CHANNELS, SIDE = 3, 32
MEAN = (0.4914, 0.4822, 0.4465)  # of the training set's red, green and blue, as shares of 255
STD = (0.2470, 0.2435, 0.2616)
_RECORD_BYTES = 1 + CHANNELS * SIDE * SIDE  # a label, then the image by channel, row and column
_TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST_FILES = ("test_batch.bin",)


def read_batches(paths: Sequence[Path]) -> TensorData:
    """The records of binary batch files as float32, inputs [sample, 3, 32, 32], normalised per channel."""
    records = []
    for path in paths:
        raw = read_content(path)
        if not raw or len(raw) % _RECORD_BYTES:
            raise DataError(f"{path} has {len(raw)} bytes; CIFAR-10 files are records of {_RECORD_BYTES}")
        batch = np.frombuffer(raw, dtype=np.uint8).reshape(-1, _RECORD_BYTES)
        if batch[:, 0].max() >= len(CLASS_NAMES):
            raise DataError(f"{path} has label {batch[:, 0].max()}; labels lie in 0..{len(CLASS_NAMES) - 1}")
        records.append(batch)
    inputs = large_floats((sum(map(len, records)), CHANNELS, SIDE, SIDE))
    scale = (1 / (255 * np.array(STD))).astype(np.float32)[:, None, None]
    shift = (np.array(MEAN) / np.array(STD)).astype(np.float32)[:, None, None]
    start = 0
    for batch in records:
        block = inputs[start : start + len(batch)]
        np.multiply(batch[:, 1:].reshape(block.shape), scale, out=block)
        block -= shift
        start += len(batch)
    targets = np.concatenate([batch[:, 0] for batch in records]).astype(np.int64)
    return TensorData(torch.from_numpy(inputs), torch.from_numpy(targets), CLASS_NAMES)


def load(folder: Path) -> TensorPair:
    """Training and test set."""
    train = read_batches([member(folder, name) for name in _TRAIN_FILES])
    test = read_batches([member(folder, name) for name in _TEST_FILES])
    return train, test


SOURCE = Source(
    name="cifar10",
    description="60,000 colour images of 32 x 32, 10 classes",
    licence="no licence stated; free for research, cite Krizhevsky (2009)",
    download_megabytes=170,
    folder="cifar-10-batches-bin",
    train_samples=50_000,
    contents=(
        ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    base_url="https://www.cs.toronto.edu/~kriz",
    downloads=(("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
    load=load,
    normalisation={"mean": [*MEAN], "std": [*STD]},
)
