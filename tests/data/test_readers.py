"""The idx, CIFAR and newsgroup readers on small files, on damaged files, and on the full sets."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from histfl.data import cifar10, fashion_mnist, load, load_text, make_embedded, newsgroups
from histfl.data.fashion_mnist import read_idx
from histfl.errors import DataError, UsageError

FUZZ = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">i4").tobytes() + array.tobytes()


def write_fashion(folder: Path, *, samples: int = 6, packed: bool = True) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (samples, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, samples, dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            name = f"{part}-{kind}-ubyte"
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
            else:
                (folder / name).write_bytes(idx_bytes(array))
    return images, labels


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_is_read_and_normalised(tmp_path, packed):
    images, labels = write_fashion(tmp_path, packed=packed)
    train, test = fashion_mnist.load(tmp_path)
    expected = (images.astype(np.float64) / 255 - 0.5) / 0.5
    assert train.inputs.shape == (6, 1, 28, 28)
    assert train.inputs.dtype == torch.float32
    np.testing.assert_allclose(train.inputs[:, 0].numpy(), expected, atol=1e-6)
    assert train.targets.tolist() == test.targets.tolist() == labels.tolist()
    assert train.class_names[9] == "Ankle boot"


@FUZZ
@given(array_shape=st.lists(st.integers(0, 5), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_read_idx_inverts_the_format(tmp_path, array_shape, seed):
    array = np.random.default_rng(seed).integers(0, 256, array_shape, dtype=np.uint8)
    path = tmp_path / "array"
    path.write_bytes(idx_bytes(array))
    np.testing.assert_array_equal(read_idx(path), array)


@FUZZ
@given(garbage=st.binary(max_size=200), suffix=st.sampled_from(["", ".gz"]))
def test_garbage_is_no_idx_file(tmp_path, garbage, suffix):
    path = tmp_path / f"garbage{suffix}"
    path.write_bytes(b"\x01" + garbage)  # a wrong first byte: never an idx file, never gzip
    with pytest.raises(DataError):
        read_idx(path)


@FUZZ
@given(cut=st.integers(0, 4730), packed=st.booleans())
def test_a_truncated_idx_file_is_refused(tmp_path, cut, packed):
    whole = idx_bytes(np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8))
    whole = gzip.compress(whole, mtime=0) if packed else whole
    path = tmp_path / ("cut.gz" if packed else "cut")
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(DataError, match="cut"):
        read_idx(path)


@FUZZ
@given(position=st.integers(0, 4000), value=st.integers(0, 255), header=st.binary(min_size=4, max_size=40))
def test_a_damaged_data_set_never_ends_in_another_error(tmp_path, position, value, header):
    write_fashion(tmp_path)
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        path = tmp_path / name
        raw = bytearray(path.read_bytes())
        raw[position % len(raw)] = value
        path.write_bytes(raw)
        with contextlib.suppress(DataError):  # a byte that happens to be the same changes nothing
            fashion_mnist.load(tmp_path)
        path.write_bytes(gzip.compress(bytes([0, 0, 8]) + header))
        with pytest.raises(DataError):
            fashion_mnist.load(tmp_path)
        write_fashion(tmp_path)


def test_mismatched_images_and_labels_are_refused(tmp_path):
    write_fashion(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx_bytes(np.zeros(5, dtype=np.uint8))))
    with pytest.raises(DataError, match=r"\(6, 28, 28\) and labels of shape \(5,\)"):
        fashion_mnist.load(tmp_path)
    labels.write_bytes(gzip.compress(idx_bytes(np.full(6, 10, dtype=np.uint8))))
    with pytest.raises(DataError, match=r"lie in 0\.\.9"):
        fashion_mnist.load(tmp_path)
    labels.unlink()
    with pytest.raises(DataError, match=r"has no train-labels-idx1-ubyte\.gz"):
        fashion_mnist.load(tmp_path)


def write_cifar(folder: Path) -> np.ndarray:
    records = np.random.default_rng(2).integers(0, 256, (6, 4, 3073), dtype=np.uint8)
    records[:, :, 0] %= 10
    for name, batch in zip([*cifar10._TRAIN_FILES, *cifar10._TEST_FILES], records, strict=True):
        (folder / name).write_bytes(batch.tobytes())
    return records


def test_cifar10_is_read_and_normalised(tmp_path):
    records = write_cifar(tmp_path)
    train, test = cifar10.load(tmp_path)
    assert train.inputs.shape == (20, 3, 32, 32)
    assert test.inputs.shape == (4, 3, 32, 32)
    assert train.targets.tolist() == records[:5, :, 0].reshape(-1).tolist()
    # Sample 2 of batch 3, green, row 5, column 7.
    pixel = records[2, 2, 1 + 1024 + 5 * 32 + 7]
    expected = (pixel / 255 - cifar10.MEAN[1]) / cifar10.STD[1]
    assert float(train.inputs[10, 1, 5, 7]) == pytest.approx(expected, abs=1e-5)


@FUZZ
@given(cut=st.integers(0, 4 * 3073).filter(lambda cut: cut % 3073 or cut == 0))
def test_a_truncated_cifar10_file_is_refused(tmp_path, cut):
    write_cifar(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"data_batch_3\.bin has"):
        cifar10.load(tmp_path)


def test_a_cifar10_label_out_of_range_or_a_missing_file_is_refused(tmp_path):
    records = write_cifar(tmp_path)
    records[1, 3, 0] = 10
    (tmp_path / "data_batch_2.bin").write_bytes(records[1].tobytes())
    with pytest.raises(DataError, match=r"data_batch_2\.bin has label 10"):
        cifar10.load(tmp_path)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"no data_batch_2\.bin"):
        cifar10.load(tmp_path)


POST = """From: someone@example.org
Subject: Re: bikes

In article <1@example.org> other@example.org writes:
> Which one is best?
| Mine is.
The red one.

It is faster.

--
Someone, somewhere
"""


def test_each_part_of_a_post_is_stripped():
    body = newsgroups.strip_headers(POST)
    assert body.startswith("In article")
    unsigned = newsgroups.strip_footers(body)
    assert unsigned.endswith("It is faster.\n")
    assert newsgroups.strip_quotes(unsigned) == "The red one.\n\nIt is faster.\n"
    assert newsgroups.strip_post(POST, frozenset(newsgroups.STRIPPABLE)) == "The red one.\n\nIt is faster.\n"
    assert newsgroups.strip_post(POST, frozenset()) == POST


@pytest.mark.parametrize(
    ("strip", "text", "expected"),
    [
        (newsgroups.strip_headers, "Subject: no blank line", ""),
        (newsgroups.strip_headers, "A: b\n\none\n\ntwo", "one\n\ntwo"),
        (newsgroups.strip_footers, "one line", "one line"),
        (newsgroups.strip_footers, "no rule\nno blank", "no rule\nno blank"),
        (newsgroups.strip_footers, "text\n---\nname", "text"),
        (newsgroups.strip_footers, "text\n \nname\n\n\n", "text"),
        (newsgroups.strip_footers, "---\nname", "---\nname"),  # nothing would be left
        (newsgroups.strip_footers, "", ""),
        (newsgroups.strip_quotes, "Bob wrote:\nmine", "mine"),
        (newsgroups.strip_quotes, " > indented is kept", " > indented is kept"),
        (newsgroups.strip_quotes, "so In article is kept", "so In article is kept"),
        (newsgroups.strip_quotes, "Quoted from x\n|y\nz said:", ""),
    ],
)
def test_stripping_case_by_case(strip, text, expected):
    assert strip(text) == expected


def write_news(folder: Path) -> None:
    for part in ("20news-bydate-train", "20news-bydate-test"):
        for group, posts in {"sci.space": ["20", "3"], "alt.atheism": ["7"]}.items():
            (folder / part / group).mkdir(parents=True)
            for post in posts:
                (folder / part / group / post).write_bytes(
                    f"A: b\n\n{group} {post} caf\xe9".encode("latin-1")
                )


def test_newsgroups_are_read_in_the_order_of_their_names(tmp_path):
    write_news(tmp_path)
    train, test = newsgroups.load_text(tmp_path, frozenset({"headers"}))
    assert train.texts == ("alt.atheism 7 café", "sci.space 20 café", "sci.space 3 café")
    assert train.targets.tolist() == [0, 1, 1]
    assert train.class_names == test.class_names == ("alt.atheism", "sci.space")
    assert train.num_classes == 2


def test_damaged_newsgroups_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        newsgroups.load_text(tmp_path)
    write_news(tmp_path)
    with pytest.raises(UsageError, match="cannot strip 'footer'"):
        newsgroups.load_text(tmp_path, frozenset({"footer"}))
    (tmp_path / "20news-bydate-test" / "sci.space").rename(tmp_path / "20news-bydate-test" / "sci.med")
    with pytest.raises(DataError, match="different groups"):
        newsgroups.load_text(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no posts"):
        newsgroups.read_folder(tmp_path / "empty")


def test_the_embedded_set_has_its_classes_in_equal_numbers():
    train, test = load("fashion-mnist-mini")
    assert train.inputs.shape == (12_000, 1, 28, 28)
    assert test.inputs.shape == (2_000, 1, 28, 28)
    assert train.targets.bincount().tolist() == [1200] * 10
    assert test.targets.bincount().tolist() == [200] * 10
    assert train.inputs.is_contiguous()
    assert train.inputs.min() == -1.0
    assert train.inputs.max() == 1.0
    assert sum(path.stat().st_size for path in fashion_mnist.MINI_FOLDER.iterdir()) <= 6_000_000


def test_embedded_images_stand_upright():
    # Trousers are tall: their columns at the border are empty, their rows are not.
    train, _ = load("fashion-mnist-mini")
    trousers = train.inputs[train.targets == 1, 0] > 0
    rows, columns = trousers.any(dim=2).float().sum(1), trousers.any(dim=1).float().sum(1)
    assert rows.mean() > 1.5 * columns.mean()


def test_the_embedded_set_equals_its_part_of_the_full_set(full_data):
    for mini, full in zip(load("fashion-mnist-mini"), load("fashion-mnist", full_data), strict=True):
        per_class = len(mini) // 10
        chosen = fashion_mnist.choose_mini(full.targets.numpy().astype(np.uint8), per_class)
        assert torch.equal(mini.inputs, full.inputs[chosen])
        assert torch.equal(mini.targets, full.targets[chosen])


def test_the_embedded_files_can_be_made_again(full_data, tmp_path):
    make_embedded.make(full_data, tmp_path)
    for path in fashion_mnist.MINI_FOLDER.iterdir():
        assert gzip.decompress((tmp_path / path.name).read_bytes()) == gzip.decompress(path.read_bytes())


def test_full_fashion_mnist(full_data):
    train, test = load("fashion-mnist", full_data)
    assert train.targets.bincount().tolist() == [6000] * 10
    assert test.targets.bincount().tolist() == [1000] * 10
    assert (train.inputs.mean() * 0.5 + 0.5).item() == pytest.approx(0.2860, abs=1e-4)


def test_full_cifar10(full_data):
    train, test = load("cifar10", full_data)
    assert train.targets.bincount().tolist() == [5000] * 10
    assert test.targets.bincount().tolist() == [1000] * 10
    assert train.inputs.mean(dim=(0, 2, 3)).abs().max() < 1e-3
    assert (train.inputs.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-3


def test_full_newsgroups(full_data):
    train, test = load_text("20newsgroups", full_data, strip=("headers", "footers", "quotes"))
    assert (len(train), len(test)) == (11_314, 7_532)
    assert train.num_classes == 20
    assert train.class_names[0] == "alt.atheism"
    whole, _ = load_text("20newsgroups", full_data)
    assert whole.targets.equal(train.targets)
    assert all(len(stripped) <= len(text) for stripped, text in zip(train.texts, whole.texts, strict=True))
