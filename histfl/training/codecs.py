"""What a client's update is turned into on its way to the edge, and the bits that takes.

A codec writes an update tensor by tensor. What the edge knows without being told is not sent and not counted: shapes,
settings, shared seeds. Headers and error correction are the radio's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch

from histfl import arguments
from histfl.arrays import Floats, Ints
from histfl.devices import moved
from histfl.errors import UsageError
from histfl.partition import State
from histfl.seeds import random_bits
from histfl.training import answers
from histfl.training.bits import from_bits, in_bits, places_from_bits, places_in_bits


class Codec(Protocol):
    """How clients write their updates. It is part of a run's numbers: what the edge averages is what it decodes."""

    def update_bits(self, sizes: Sequence[int], plain: float) -> float:
        """What an update takes whose tensors have so many numbers, where one as it is takes `plain` bits."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether a client keeps something from one update to the next, such as what it has not sent yet."""
        ...

    def decoded(
        self, start: State, finals: State, clients: Ints, key: int, kept: State
    ) -> tuple[State, State]:
        """What the edge has of the `clients`' models `finals`, tensors [client, ...], that began at its own model
        `start`; and what they keep, of which each so far has `kept` (tensors as in `finals`, of zeros at first; {} if
        the codec keeps nothing). Chance comes from `key` (one an edge round) and the client's number alone, so that
        engines agree."""
        ...


@runtime_checkable
class Written(Protocol):
    """A codec whose updates can be written for real: what `decoded` gives is what is `read` of the `written`."""

    def written(
        self, start: State, finals: State, clients: Ints, key: int, kept: State
    ) -> tuple[State, State]:
        """What the one client among `clients` sends, tensors by name, and what it keeps; as `decoded` has its
        arguments."""
        ...

    def read(self, start: State, written: State, clients: Ints, key: int) -> State:
        """What the edge has of it, tensors [1, ...]."""
        ...


def written(
    codec: Codec, start: State, finals: State, clients: Ints, key: int, kept: State
) -> tuple[State, State]:
    """What a client really sends: of a codec that writes nothing else, the model that it decodes to."""
    if isinstance(codec, Written):
        return codec.written(start, finals, clients, key, kept)
    return decoded(codec, start, finals, clients, key, kept)


def decoded(
    codec: Codec, start: State, finals: State, clients: Ints, key: int, kept: State
) -> tuple[State, State]:
    """What the edge has of the clients' models, and what they keep, or a UsageError where a codec of the user's own
    gives no such."""
    whose = f"the codec {type(codec).__name__}"
    models, left = answers.pair(codec.decoded(start, finals, clients, key, kept), whose)
    models = answers.alike(models, start, whose, clients=len(clients))
    if not codec.keeps:
        return models, kept
    return models, answers.alike(left, start, f"what is kept by {whose}", clients=len(clients))


def read(codec: Codec, start: State, sent: State, clients: Ints, key: int) -> State:
    """What the edge has of what was `written`."""
    return codec.read(start, sent, clients, key) if isinstance(codec, Written) else sent


@dataclass(frozen=True)
class Plain:
    """Every number as it is (HIST Sec. IV-A: 32 bits a parameter)."""

    keeps: ClassVar[bool] = False

    def update_bits(self, sizes: Sequence[int], plain: float) -> float:
        return plain * sum(sizes)

    def decoded(
        self, start: State, finals: State, clients: Ints, key: int, kept: State
    ) -> tuple[State, State]:
        return finals, kept


@dataclass(frozen=True)
class Quantise:
    """Each number of an update at one of 2^bits even levels between its tensor's least and largest.

    Which of the two next levels is chance, such that the mean is the number itself: unbiased (after QSGD, Alistarh et
    al., arXiv 1610.02132, with levels of the range in place of the norm). A tensor takes `bits` for each of its
    numbers, and its least and largest as they are.
    """

    bits: int = 8
    keeps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        arguments.whole("codec.bits", self.bits, 32)

    def update_bits(self, sizes: Sequence[int], plain: float) -> float:
        return self.bits * sum(sizes) + 2 * plain * len(sizes)

    def levels(
        self, update: torch.Tensor, chance: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Whole numbers from 0 to 2^bits - 1, float64 [client, entry], of an `update` [client, entry], and the least
        and the largest of it, [client, 1]; `chance` is uniform in [0, 1), [client, entry]."""
        least, largest = update.amin(1, keepdim=True), update.amax(1, keepdim=True)
        found = (update.double() - least).div_(_distance(least, largest, self.bits)).add_(chance)
        return found.floor_().clamp_(0, 2**self.bits - 1), least, largest

    def decoded(
        self, start: State, finals: State, clients: Ints, key: int, kept: State
    ) -> tuple[State, State]:
        found: State = {}
        for name, update, first in _updates(start, finals):
            chance = _chance(key, _on(update.device, clients), first, update.shape[1])
            levels, least, largest = self.levels(update, chance)
            change = levels.mul_(_distance(least, largest, self.bits)).add_(least)
            found[name] = _moved_by(start[name], change)
        return found, kept

    def written(
        self, start: State, finals: State, clients: Ints, key: int, kept: State
    ) -> tuple[State, State]:
        sent: State = {}
        for name, update, first in _updates(start, finals):
            chance = _chance(key, _on(update.device, clients), first, update.shape[1])
            levels, least, largest = self.levels(update, chance)
            sent[f"{name}/levels"] = in_bits(levels[0].to(torch.int64), self.bits)
            sent[f"{name}/range"] = torch.cat((least[0], largest[0]))
        return sent, kept

    def read(self, start: State, written: State, clients: Ints, key: int) -> State:
        found: State = {}
        for name, own in start.items():
            levels = from_bits(written[f"{name}/levels"], own.numel(), self.bits).to(torch.float64)
            least, largest = written[f"{name}/range"].view(2, 1, 1)
            change = levels[None].mul_(_distance(least, largest, self.bits)).add_(least)
            found[name] = _moved_by(own, change)
        return found


def _chance(key: int, clients: torch.Tensor, first: int, size: int) -> torch.Tensor:
    """Float64 uniform in [0, 1), in steps of 2^-32, for each of the `clients` [client] and `size` entries from the
    `first` on: [client, entry]. A 64-bit number serves two entries."""
    pairs = torch.arange(-(-size // 2), device=clients.device)
    start = torch.full((), first, device=clients.device)
    halves = random_bits(key, clients[:, None], start, pairs).view(torch.int32)[:, :size]
    return halves.to(torch.float64).mul_(2.0**-32).add_(0.5)


def _distance(least: torch.Tensor, largest: torch.Tensor, bits: int) -> torch.Tensor:
    """Between levels, float64; 1 where all numbers are one."""
    distance = (largest.double() - least.double()) / (2**bits - 1)
    return torch.where(distance > 0, distance, 1.0)


@dataclass(frozen=True)
class TopK:
    """The largest numbers of each tensor of an update, a `share` of them; what is not sent is added to the next one.

    Error feedback (Stich et al., "Sparsified SGD with memory", arXiv 1809.07599): a client keeps u - sent of
    u = update + kept. A number that is sent takes what it takes as it is, and its place: the places take an index
    each, or a bit for every number of the tensor, whichever is less.
    """

    share: float = 0.1
    keeps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        arguments.share("codec.share", self.share)

    def count(self, size: int) -> int:
        """How many numbers of a tensor of that size are sent, one at least."""
        return min(size, max(1, round(self.share * size)))

    def place_bits(self, size: int) -> int:
        """What saying which numbers of a tensor are sent takes."""
        count = self.count(size)
        return 0 if count == size else min(size, count * (size - 1).bit_length())

    def update_bits(self, sizes: Sequence[int], plain: float) -> float:
        return sum(plain * self.count(size) + self.place_bits(size) for size in sizes)

    def chosen(self, update: torch.Tensor, clients: torch.Tensor, first: int, key: int) -> torch.Tensor:
        """The places [client, place] of what is sent of an `update` [client, entry], whose first entry has the number
        `first` in the whole update. Of entries of one size, as saturated losses give, the first ones: their rounding,
        which is up to the engine, is less than what the sizes lean to them by."""
        size = update.shape[1]
        lean = torch.finfo(update.dtype).eps ** 0.5
        sizes = update.abs() * torch.linspace(1, 1 - lean, size, dtype=update.dtype, device=update.device)
        return sizes.topk(self.count(size), dim=1, sorted=False).indices

    def decoded(
        self, start: State, finals: State, clients: Ints, key: int, kept: State
    ) -> tuple[State, State]:
        found, left = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        for name, update, first in _updates(start, finals):
            update = update + kept[name].reshape(update.shape)
            places = self.chosen(update, _on(update.device, clients), first, key)
            sent = torch.zeros_like(update).scatter_(1, places, update.gather(1, places))
            found[name] = _moved_by(start[name], sent)
            left[name] = (update - sent).view_as(kept[name]).to(kept[name].dtype)
        return found, left

    def written(
        self, start: State, finals: State, clients: Ints, key: int, kept: State
    ) -> tuple[State, State]:
        sent, left = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        for name, update, first in _updates(start, finals):
            update = update + kept[name].reshape(update.shape)
            (places,) = self.chosen(update, _on(update.device, clients), first, key)
            places = places.sort().values
            sent[f"{name}/values"] = update[0, places]
            if bits := self.place_bits(size := update.shape[1]):
                sent[f"{name}/places"] = places_in_bits(places, size, as_map=bits == size)
            update[0, places] = 0
            left[name] = update.view_as(kept[name]).to(kept[name].dtype)
        return sent, left

    def read(self, start: State, written: State, clients: Ints, key: int) -> State:
        found: State = {}
        first = 0
        for name, own in start.items():
            values, size = written[f"{name}/values"], own.numel()
            if bits := self.place_bits(size):
                data = written[f"{name}/places"]
                places = places_from_bits(data, size, self.count(size), as_map=bits == size)
            else:
                whole = values.new_zeros(1, size)
                (places,) = self.chosen(whole, _on(whole.device, clients), first, key)
                places = places.sort().values
            change = values.new_zeros(size).scatter_(0, places, values)
            found[name] = _moved_by(own, change[None])
            first += size
        return found


@dataclass(frozen=True)
class RandomK(TopK):
    """Numbers of each tensor at random places, a `share` of them, with error feedback as in `top-k`.

    The places follow from the shared seed, so they take nothing.
    """

    def place_bits(self, size: int) -> int:
        return 0

    def chosen(self, update: torch.Tensor, clients: torch.Tensor, first: int, key: int) -> torch.Tensor:
        entries = torch.arange(first, first + update.shape[1], device=update.device)
        order = random_bits(key, clients[:, None], entries)
        return order.topk(self.count(update.shape[1]), dim=1, sorted=False).indices


def _updates(start: State, finals: State) -> Iterator[tuple[str, torch.Tensor, int]]:
    """Of every tensor its name, the clients' updates [client, entry], and its first entry's number in the whole
    update."""
    first = 0
    for name, final in finals.items():
        update = (final - start[name]).reshape(len(final), -1)
        yield name, update, first
        first += update.shape[1]


def _moved_by(start: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """`start` [...] moved by each client's change [client, entry]: tensors [client, ...]."""
    return (start + change.view(-1, *start.shape)).to(start.dtype)


def _on(device: torch.device, clients: Ints) -> torch.Tensor:
    return moved(torch.from_numpy(np.asarray(clients, dtype=np.int64)), device)


@dataclass(frozen=True)
class Encoding:
    """What an update takes on its way: written by `codec`, where a number as it is takes `plain` bits; the whole
    model's tensors have `sizes` numbers."""

    codec: Codec
    plain: float
    sizes: tuple[int, ...]

    def bits(self, sizes: Sequence[int]) -> float:
        """Of an update whose tensors have so many numbers."""
        whose = f"update_bits of {type(self.codec).__name__}"
        return arguments.not_negative(whose, self.codec.update_bits(sizes, self.plain))

    @property
    def bits_per_parameter(self) -> float:
        """The mean over an update of the whole model, by which submodels are sized."""
        return self.bits(self.sizes) / sum(self.sizes)

    def coded(self, parameters: Ints, bits: Floats) -> Floats:
        """`bits` of updates of so many `parameters`, in those that as many average ones take; same shape."""
        return bits / (parameters * self.bits_per_parameter)


CODECS: dict[str, Callable[..., Codec]] = {
    "plain": Plain,
    "quantise": Quantise,
    "top-k": TopK,
    "random-k": RandomK,
}


def check_codec(codec: Any, place: str) -> Codec:
    """`codec`, or a UsageError where it is none."""
    for method in ("update_bits", "decoded"):
        if not callable(getattr(codec, method, None)):
            raise UsageError(f"{place} has no method {method}; see histfl.training.codecs.Codec")
    if not isinstance(getattr(codec, "keeps", None), bool):
        raise UsageError(f"{place} does not say whether it `keeps`; see histfl.training.codecs.Codec")
    return codec  # type: ignore[no-any-return]
