"""Updates as they are really written: what is read is what the codec decodes to, in the bits that it counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.partition import State
from histfl.training.bits import from_bits, in_bits, places_from_bits, places_in_bits
from histfl.training.codecs import CODECS, Codec, Plain, Quantise, RandomK, TopK, read, written

SHAPES = {"a": (30, 40), "b": (7,), "c": (), "d": (1, 3, 2)}
WHO, KEY = np.array([5]), 77
CHOSEN = [
    Plain(),
    *(Quantise(bits) for bits in (1, 3, 4, 8, 13, 16, 32)),
    *(TopK(share) for share in (0.01, 0.1, 0.5, 1.0)),
    *(RandomK(share) for share in (0.05, 0.5, 1.0)),
]


def models(dtype: torch.dtype) -> tuple[State, State, State]:
    """A start, a client's model [1, ...] some way from it, and what it has kept."""
    generator = torch.Generator().manual_seed(1)

    def drawn() -> State:
        return {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()}

    start, move, kept = drawn(), drawn(), drawn()
    final = {name: (tensor + 0.01 * move[name])[None] for name, tensor in start.items()}
    return start, final, {name: tensor[None] for name, tensor in kept.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("codec", CHOSEN, ids=str)
def test_what_is_read_is_what_is_decoded(codec: Codec, dtype: torch.dtype) -> None:
    start, final, kept = models(dtype)
    kept = kept if codec.keeps else {}
    decoded, left = codec.decoded(start, final, WHO, KEY, kept)
    sent, keeps = written(codec, start, final, WHO, KEY, kept)
    found = read(codec, start, sent, WHO, KEY)
    assert list(found) == list(decoded)
    for name, tensor in decoded.items():
        assert torch.equal(found[name], tensor), name
    assert keeps.keys() == left.keys()
    for name, tensor in left.items():
        assert torch.equal(keeps[name], tensor), name


@pytest.mark.parametrize("codec", CHOSEN, ids=str)
def test_bits_are_those_that_are_counted(codec: Codec) -> None:
    """But for the end of a tensor's last byte."""
    start, final, kept = models(torch.float32)
    sent, _ = written(codec, start, final, WHO, KEY, kept if codec.keeps else {})
    bits = sum(8 * tensor.numel() * tensor.element_size() for tensor in sent.values())
    counted = codec.update_bits([tensor.numel() for tensor in start.values()], 32)
    assert counted <= bits <= counted + 7 * len(sent)


def test_every_codec_of_ours_is_among_them() -> None:
    assert {type(codec) for codec in CHOSEN} == set(CODECS.values())


@settings(deadline=None)
@given(
    st.integers(1, 32).flatmap(
        lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, 2**bits - 1), min_size=1))
    )
)
def test_numbers_come_back_from_their_bits(case: tuple[int, list[int]]) -> None:
    bits, numbers = case
    data = in_bits(torch.tensor(numbers), bits)
    assert data.dtype == torch.uint8
    assert len(data) == -(-bits * len(numbers) // 8)
    assert from_bits(data, len(numbers), bits).tolist() == numbers


def test_many_numbers_are_written_in_parts() -> None:
    numbers = torch.arange(2**20 + 5) % 8
    assert torch.equal(from_bits(in_bits(numbers, 3), len(numbers), 3), numbers)


@pytest.mark.parametrize("as_map", [True, False])
def test_places_that_cannot_be_are_refused(as_map: bool) -> None:
    places = torch.tensor([0, 4, 9])
    data = places_in_bits(places, 10, as_map=as_map)
    assert places_from_bits(data, 10, 3, as_map=as_map).tolist() == [0, 4, 9]
    outside = (
        in_bits(torch.ones(10, dtype=torch.int64), 1) if as_map else in_bits(torch.tensor([0, 4, 15]), 4)
    )
    with pytest.raises(ValueError, match="places of 10, where 3 are sent"):
        places_from_bits(outside, 10, 3, as_map=as_map)
