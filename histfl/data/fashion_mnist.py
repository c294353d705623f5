"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 60,000 + 10,000 grey images of 28 x 28, 10 classes; and, inside the
package, `fashion-mnist-mini`: 12,000 training and 2,000 test images of it.

Of the latter: the first 1,200 (test: 200) images of each class in the order of the published files, kept in that
order. They are stored as the published files are, idx and gzip, but column by column: neighbours in a
column are more alike, which brings the whole under 6 MB and decodes in a few hundredths of a second.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from histfl.arrays import large_floats
from histfl.data.dataset import TensorData
from histfl.data.store import LARGEST_FILE, Source, TensorPair, member, read_content
from histfl.errors import DataError

Bytes: TypeAlias = npt.NDArray[np.uint8]

CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
SIDE = 28
MEAN, STD = 0.5, 0.5  # as in the authors' public code; the measured ones are 0.286 and 0.353
NORMALISATION = {"mean": [MEAN], "std": [STD]}
_MOST_AXES = 3
_UNSIGNED_BYTE = 8  # the idx type code; the other types do not occur in these sets


def read_idx(path: Path) -> Bytes:
    """The array in an idx file of unsigned bytes, plain or .gz.

    The header is 0, 0, the type code, the number of axes, then each axis's length as a big-endian
    32-bit number; the array follows in C order.
    """
    raw = read_content(path, 4 + 4 * _MOST_AXES)
    if len(raw) < 4 or raw[0] != 0 or raw[1] != 0 or raw[2] != _UNSIGNED_BYTE or raw[3] == 0:
        raise DataError(
            f"{path} is not an idx file of bytes (it starts with {raw[:4].hex(' ') or 'nothing'})"
        )
    axes = raw[3]
    if axes > _MOST_AXES:
        raise DataError(f"{path} has {axes} axes; images have 3 and labels 1")
    header_bytes = 4 + 4 * axes
    shape = [int.from_bytes(raw[at : at + 4]) for at in range(4, header_bytes, 4)]
    promised = header_bytes + math.prod(shape)
    if promised > LARGEST_FILE:
        raise DataError(f"{path} promises {promised} bytes in its header, more than any file of a data set")
    raw = read_content(path, promised + 1)  # no more: it may unpack to any number
    if len(raw) != promised:
        has = f"more than {promised}" if len(raw) > promised else f"{len(raw)}"
        raise DataError(f"{path} has {has} bytes; its header promises {promised}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header_bytes).reshape(shape)


def read_arrays(folder: Path, part: str) -> tuple[Bytes, Bytes]:
    """Images [sample, row, column] and labels [sample] of `part` ("train" or "t10k"), as bytes."""
    images = read_idx(member(folder, f"{part}-images-idx3-ubyte.gz"))
    labels = read_idx(member(folder, f"{part}-labels-idx1-ubyte.gz"))
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE) or labels.shape != images.shape[:1]:
        raise DataError(
            f"{part} in {folder}: images of shape {images.shape} and labels of shape {labels.shape}; "
            f"they must be [sample, {SIDE}, {SIDE}] and [sample]"
        )
    if len(labels) == 0 or labels.max() >= len(CLASS_NAMES):
        raise DataError(f"{part} in {folder}: labels must be there and lie in 0..{len(CLASS_NAMES) - 1}")
    return images, labels


def to_tensor_data(images: Bytes, labels: Bytes) -> TensorData:
    """Bytes 0..255 as float32 (x / 255 - 0.5) / 0.5, inputs [sample, 1, 28, 28]."""
    floats = large_floats(images.shape)
    floats[...] = images
    inputs = torch.from_numpy(floats)
    inputs = inputs.mul_(1 / (255 * STD)).sub_(MEAN / STD).unsqueeze(1)
    return TensorData(inputs, torch.from_numpy(labels.astype(np.int64)), CLASS_NAMES)


def load(folder: Path) -> TensorPair:
    """Training and test set."""
    return to_tensor_data(*read_arrays(folder, "train")), to_tensor_data(*read_arrays(folder, "t10k"))


SOURCE = Source(
    name="fashion-mnist",
    description="70,000 grey images of 28 x 28 of clothes, 10 classes",
    licence="MIT",
    download_megabytes=30.9,
    folder="fashion-mnist",
    train_samples=60_000,
    other_folders=("FashionMNIST/raw", "."),
    contents=(
        ("train-images-idx3-ubyte.gz", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        ("train-labels-idx1-ubyte.gz", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        ("t10k-images-idx3-ubyte.gz", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        ("t10k-labels-idx1-ubyte.gz", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    base_url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    downloads=(
        ("train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    load=load,
    normalisation=NORMALISATION,
)


MINI_FOLDER = Path(__file__).parent / "embedded"
MINI_PER_CLASS = {"train": 1200, "t10k": 200}


def choose_mini(labels: Bytes, per_class: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The positions of the first `per_class` samples of each class, ascending."""
    chosen = [np.flatnonzero(labels == label)[:per_class] for label in range(len(CLASS_NAMES))]
    return np.sort(np.concatenate(chosen))


def load_mini(folder: Path = MINI_FOLDER) -> TensorPair:
    """Training and test set, as `fashion-mnist` gives them."""
    train, test = (read_arrays(folder, part) for part in MINI_PER_CLASS)
    return to_tensor_data(_upright(train[0]), train[1]), to_tensor_data(_upright(test[0]), test[1])


def _upright(images: Bytes) -> Bytes:
    return images.transpose(0, 2, 1)


MINI = Source(
    name="fashion-mnist-mini",
    description="14,000 of the Fashion-MNIST images, part of this package",
    licence="MIT",
    download_megabytes=0,
    folder="embedded",
    train_samples=12_000,
    packaged_in=MINI_FOLDER,
    load=load_mini,
    normalisation=NORMALISATION,
)
