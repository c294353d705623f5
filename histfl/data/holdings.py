"""Who holds which samples, as one index array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from histfl.arrays import Ints
from histfl.errors import UsageError, in_one_line


@dataclass(frozen=True, eq=False)
class Split:
    """Client i holds the samples `order[offsets[i]:offsets[i + 1]]`.

    `order` [used sample] and `offsets` [client + 1], int64; the clients of a cell lie next to each
    other, cell 0's first. No object is kept per client. Of samples that are `elsewhere`, with the clients themselves,
    there are the numbers alone.
    """

    order: Ints
    offsets: Ints
    elsewhere: bool = False

    @classmethod
    def kept_elsewhere(cls, sizes: Ints) -> Split:
        """Of clients that hold so many samples each, [client], somewhere else."""
        offsets = offsets_of(sizes)
        return cls(np.broadcast_to(np.int64(0), int(offsets[-1])), offsets, elsewhere=True)

    @classmethod
    def of_one(cls, client: int, num_clients: int, num_samples: int) -> Split:
        """Of one client of many, whose samples are the only ones here."""
        offsets = np.where(np.arange(num_clients + 1) <= client, 0, num_samples)
        return cls(np.arange(num_samples), offsets.astype(np.int64))

    def __post_init__(self) -> None:
        ends_meet = len(self.offsets) >= 2 and self.offsets[0] == 0 and self.offsets[-1] == len(self.order)
        if not ends_meet or (np.diff(self.offsets) < 0).any():
            raise UsageError(f"offsets must rise from 0 to {len(self.order)}, the number of samples dealt")

    def __repr__(self) -> str:
        sizes = self.sizes
        each = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
        return f"Split({self.num_clients} clients, {len(self.order)} samples, {each} each)"

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """[client]: how many samples each client holds."""
        return np.diff(self.offsets)

    def sizes_of(self, clients: Ints) -> Ints:
        """[client]: how many samples each of the `clients` holds, in work that grows with these alone."""
        return self.offsets[clients + 1] - self.offsets[clients]

    def client(self, index: int) -> Ints:
        """The samples of client `index`, as a view."""
        if not 0 <= index < self.num_clients:
            raise IndexError(f"client {index} of {self.num_clients}")
        return self.order[self.offsets[index] : self.offsets[index + 1]]


def given_split(holdings: Sequence[npt.ArrayLike], num_samples: int, num_clients: int) -> Split:
    """Client i holds the samples `holdings[i]` (numbers from 0, a client at least one), as a user says.

    Clients may hold different numbers of samples, and a sample may be with several of them or with none.
    """
    try:
        clients = None if isinstance(holdings, str | Mapping) else len(holdings)
    except Exception:  # a user's object may fail in any way
        clients = None
    if clients is None:
        raise UsageError(
            f"the split is of type {type(holdings).__name__}; give a list with the numbers of every client's samples"
        )
    if clients != num_clients:
        raise UsageError(
            f"the split has {clients} clients and the network {num_clients}; give each of the network's its "
            "samples, those of cell 0 first"
        )
    parts = [_checked_holding(client, part, num_samples) for client, part in enumerate(holdings)]
    return Split(np.concatenate(parts), offsets_of(np.array([len(part) for part in parts])))


def label_mix(split: Split, labels: npt.ArrayLike, num_classes: int) -> Ints:
    """[client, class]: how many samples of each class a client holds."""
    held = checked_labels(labels)[split.order]
    if held.size and held.max() >= num_classes:
        raise UsageError(f"label {held.max()} is outside 0..{num_classes - 1}; num_classes is {num_classes}")
    client = np.repeat(np.arange(split.num_clients), split.sizes)
    counts = np.bincount(client * num_classes + held, minlength=split.num_clients * num_classes)
    return counts.reshape(split.num_clients, num_classes).astype(np.int64, copy=False)


def offsets_of(sizes: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def checked_labels(labels: npt.ArrayLike) -> Ints:
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"labels are {array.dtype} of shape {array.shape}; give whole numbers, [sample]")
    if array.min() < 0:
        raise UsageError(f"label {array.min()} is negative; class numbers start at 0")
    return array.astype(np.int64, copy=False)


def _checked_holding(client: int, samples: npt.ArrayLike, num_samples: int) -> Ints:
    try:
        array = np.asarray(samples)
    except Exception as error:  # lists of lists, tensors on a GPU, objects that fail in their own way
        raise UsageError(
            f"split: client {client}: {in_one_line(error)}; give the numbers of its samples"
        ) from None
    if array.size == 0:
        raise UsageError(
            f"split: client {client} holds no sample; give it one, or leave it out of the network"
        )
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UsageError(
            f"split: client {client} has {array.dtype} of shape {array.shape}; give the numbers of its samples"
        )
    outside = array[(array < 0) | (array >= num_samples)]
    if outside.size:
        raise UsageError(
            f"split: client {client} holds sample {outside[0]}; the training set has 0 to {num_samples - 1}"
        )
    return array.astype(np.int64, copy=False)
