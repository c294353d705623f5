"""Makes the files of `fashion-mnist-mini` from the full set: python -m histfl.data.make_embedded DATA_DIR."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

from histfl.data import fashion_mnist, store
from histfl.data.fashion_mnist import Bytes


def make(data_dir: Path, target: Path) -> int:
    """Writes the four files into `target` and returns their bytes in all; the same input, the same files."""
    folder = store.locate(fashion_mnist.SOURCE, data_dir)
    store.verify(fashion_mnist.SOURCE, folder)
    target.mkdir(parents=True, exist_ok=True)
    total = 0
    for part, per_class in fashion_mnist.MINI_PER_CLASS.items():
        images, labels = fashion_mnist.read_arrays(folder, part)
        chosen = fashion_mnist.choose_mini(labels, per_class)
        total += _write(target / f"{part}-images-idx3-ubyte.gz", images[chosen].transpose(0, 2, 1))
        total += _write(target / f"{part}-labels-idx1-ubyte.gz", labels[chosen])
    return total


def _write(path: Path, array: Bytes) -> int:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4) for length in array.shape)
    packed = gzip.compress(header + array.tobytes(), compresslevel=9, mtime=0)
    path.write_bytes(packed)
    return len(packed)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m histfl.data.make_embedded DATA_DIR")
    print(f"{make(Path(sys.argv[1]), fashion_mnist.MINI_FOLDER)} bytes in {fashion_mnist.MINI_FOLDER}")
