"""The quantiser and the sparsifiers: unbiased or with nothing lost, counted to the bit, alike on all engines."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import SMALL, Answer
from small_training import experiment, outcomes, resumed, train

from histfl.arrays import Ints
from histfl.engines import ReferenceEngine
from histfl.errors import UsageError
from histfl.partition import State, num_parameters
from histfl.training.codecs import CODECS, Codec, Encoding, Plain, Quantise, RandomK, TopK, _chance

OURS = [name for name, make in CODECS.items() if make is not Plain]
CLIENTS = np.array([2, 5, 11])


def updates(clients: int = 3, dtype: torch.dtype = torch.float64) -> tuple[State, State]:
    """An edge's model of two tensors and its clients' models."""
    generator = torch.Generator().manual_seed(4)
    start = {"w": torch.randn(5, 4, generator=generator), "b": torch.randn(3, generator=generator)}
    finals = {
        name: tensor + 0.1 * torch.randn(clients, *tensor.shape, generator=generator)
        for name, tensor in start.items()
    }
    return ({n: x.to(dtype) for n, x in states.items()} for states in (start, finals))  # type: ignore[return-value]


def sent(codec: Codec, start: State, finals: State, clients: Ints = CLIENTS, key: int = 1) -> State:
    """The decoded updates, of clients that have kept nothing."""
    kept = {name: torch.zeros_like(tensor) for name, tensor in finals.items()} if codec.keeps else {}
    decoded, _ = codec.decoded(start, finals, clients, key, kept)
    return {name: tensor - start[name] for name, tensor in decoded.items()}


@pytest.mark.parametrize("bits", [1, 2, 5])
def test_the_quantiser_is_unbiased(bits: int) -> None:
    """The mean of 4000 draws lies within five standard errors of every number, which are those of two levels."""
    start, finals = updates()
    draws = 4000
    many = {name: tensor.repeat(draws, *(1,) * (tensor.dim() - 1)) for name, tensor in finals.items()}
    numbers = np.arange(3 * draws)
    found = sent(Quantise(bits), start, many, numbers)
    for name, final in finals.items():
        update = final - start[name]
        low, high = (each(1, keepdim=True) for each in (update.flatten(1).amin, update.flatten(1).amax))
        distance = (high - low) / (2**bits - 1)
        place = (update.flatten(1) - low) / distance
        up = place - place.floor()
        error = distance * (up * (1 - up) / draws).sqrt()
        mean = found[name].view(draws, *final.shape).mean(dim=0).flatten(1)
        assert ((mean - update.flatten(1)).abs() <= 5 * error + 1e-9).all()
        levels = (found[name].view(draws, *final.shape).flatten(2) - low) / distance
        torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-6)
        assert ((levels - place).abs() < 1 + 1e-6).all()


def test_32_bits_are_the_update_and_one_number_is_itself() -> None:
    start, finals = updates()
    for name, update in sent(Quantise(32), start, finals).items():
        torch.testing.assert_close(update, finals[name] - start[name], rtol=0, atol=1e-9)
    constant = {"w": torch.zeros(4)}, {"w": torch.full((3, 4), 0.25)}
    assert torch.equal(sent(Quantise(1), *constant)["w"], torch.full((3, 4), 0.25))


@pytest.mark.parametrize(
    "codec", [Quantise(3), TopK(0.3), RandomK(0.3)], ids=lambda codec: type(codec).__name__
)
def test_a_client_is_coded_alike_in_any_company(codec: Codec) -> None:
    """By the key and its number alone; and another key or client has other chances."""
    start, finals = updates()
    together = sent(codec, start, finals)
    for row, client in enumerate(CLIENTS):
        alone = sent(codec, start, {n: x[row : row + 1] for n, x in finals.items()}, np.array([client]))
        assert all(torch.equal(alone[name][0], together[name][row]) for name in finals)
    if not isinstance(codec, RandomK | Quantise):
        return
    same = {name: final[:1].expand(3, *final.shape[1:]) for name, final in finals.items()}
    alike = sent(codec, start, same)["w"]
    assert not torch.equal(alike[0], alike[1])
    assert not torch.equal(sent(codec, start, same, key=2)["w"], alike)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_entries_of_one_size_the_first_are_sent(dtype: torch.dtype) -> None:
    """Whatever rounding made of them, and whatever their signs are; what is larger goes before them all."""
    size = torch.ones(1, 300, dtype=dtype)
    size[0, 200:] = 1.01
    size[0, ::3] *= -1
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        rounded = size * (1 + torch.finfo(dtype).eps * torch.randn(300, generator=generator, dtype=dtype))
        places = TopK(0.5).chosen(rounded, torch.tensor([3]), 0, 1)
        assert sorted(places[0].tolist()) == [*range(50), *range(200, 300)]


@pytest.mark.parametrize("codec", [TopK(0.25), RandomK(0.25)], ids=lambda codec: type(codec).__name__)
def test_what_is_not_sent_goes_with_the_next_one(codec: TopK) -> None:
    """Error feedback as a loop over numbers: e <- u - sent, u = update + e; nothing is ever lost."""
    start, _ = updates()
    generator = torch.Generator().manual_seed(9)
    kept = {name: torch.zeros(3, *x.shape, dtype=x.dtype) for name, x in start.items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in kept.items()}
    arrived = {name: torch.zeros_like(tensor) for name, tensor in kept.items()}
    for key in range(6):
        moves = {n: torch.randn(x.shape, generator=generator, dtype=x.dtype) for n, x in kept.items()}
        due = {name: (moves[name] + kept[name]).flatten(1).tolist() for name in moves}
        finals = {name: start[name] + move for name, move in moves.items()}
        decoded, kept = codec.decoded(start, finals, CLIENTS, key, kept)
        for name in moves:
            total[name] += moves[name]
            arrived[name] += decoded[name] - start[name]
            torch.testing.assert_close(arrived[name] + kept[name], total[name], rtol=1e-12, atol=1e-12)
            left = kept[name].flatten(1).tolist()
            for row, numbers in zip(left, due[name], strict=True):
                gone = [place for place, value in enumerate(row) if value == 0.0]
                assert len(gone) == codec.count(len(numbers))
                assert all(
                    row[place] == pytest.approx(numbers[place]) for place in range(len(row)) if row[place]
                )
                if type(codec) is TopK:
                    most = sorted(map(abs, numbers), reverse=True)[: len(gone)]
                    assert sorted(abs(numbers[place]) for place in gone) == pytest.approx(most[::-1])


def test_random_places_are_of_all_numbers_alike() -> None:
    """The mean of 600 draws of 5 places in 20: each number in a quarter of them, within five standard errors."""
    start, finals = {"w": torch.zeros(20)}, {"w": torch.ones(600, 20)}
    share = sent(RandomK(0.25), start, finals, np.arange(600))["w"].mean(dim=0)
    assert ((share - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / 600)).all()


# A model of 7 x 5, 5, 3 x 5 and 3 numbers, by hand.
SIZES = (35, 5, 15, 3)
BY_HAND: dict[str, tuple[Codec, float]] = {
    "plain": (Plain(), 58 * 32),
    "8 bits": (Quantise(8), 58 * 8 + 4 * 2 * 32),
    "1 bit": (Quantise(1), 58 + 4 * 2 * 32),
    # 4 of 35, 1 of 5 (not none), 2 of 15 (1.5 to the even one), 1 of 3; places as 24 bits, 3, 8 and 2: of 6, 3, 4
    # and 2 bits each, all fewer than a bit a number
    "a tenth": (TopK(0.1), (4 + 1 + 2 + 1) * 32 + 24 + 3 + 8 + 2),
    # 18 of 35 by a bit a number (35 < 108), 2 of 5 (5 < 6), 8 of 15 (15 < 32), 2 of 3 (3 < 4)
    "half": (TopK(0.5), (18 + 2 + 8 + 2) * 32 + 35 + 5 + 15 + 3),
    "all": (TopK(1.0), 58 * 32),
    "a tenth at random": (RandomK(0.1), (4 + 1 + 2 + 1) * 32),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_bits_of_a_small_model(name: str) -> None:
    codec, bits = BY_HAND[name]
    assert codec.update_bits(SIZES, 32.0) == bits
    assert Encoding(codec, 32.0, SIZES).bits_per_parameter == pytest.approx(bits / 58)


@pytest.mark.parametrize("codec", [Quantise(3), Quantise(8), TopK(0.2), TopK(0.6), RandomK(0.2)], ids=str)
def test_as_many_bits_are_enough_to_write_it(codec: Codec) -> None:
    """A writer and a reader of bit strings, which know shapes, settings, key and client alone."""
    start, finals = updates(dtype=torch.float32)
    row, client, key = 1, int(CLIENTS[1]), 7
    text = ""
    for first, (name, final) in zip((0, 20), finals.items(), strict=True):
        update = (final - start[name]).flatten(1)[row : row + 1]
        text += write(codec, update, client, first, key)
    assert len(text) == codec.update_bits([20, 3], 32.0)
    packed = np.packbits([int(bit) for bit in text]).tobytes()
    assert len(packed) == math.ceil(len(text) / 8)
    bits = iter("".join(f"{byte:08b}" for byte in packed))
    whole = sent(codec, start, finals, key=key)
    for first, name in ((0, "w"), (20, "b")):
        found = read(codec, bits, start[name].numel(), client, first, key)
        torch.testing.assert_close(found, whole[name][row].flatten().double(), rtol=0, atol=1e-6)


def number(value: torch.Tensor) -> str:
    return "".join(f"{byte:08b}" for byte in np.float32(value.item()).tobytes())


def write(codec: Codec, update: torch.Tensor, client: int, first: int, key: int) -> str:
    who, size = torch.tensor([client]), update.shape[1]
    if isinstance(codec, Quantise):
        levels, least, largest = codec.levels(update, _chance(key, who, first, size))
        return number(least) + number(largest) + "".join(f"{int(x):0{codec.bits}b}" for x in levels[0])
    assert isinstance(codec, TopK)
    places = sorted(codec.chosen(update, who, first, key)[0].tolist())
    values = "".join(number(update[0, place]) for place in places)
    if isinstance(codec, RandomK):
        return values
    width = (size - 1).bit_length()
    if len(places) * width < size:
        return values + "".join(f"{place:0{width}b}" for place in places)
    return values + "".join("01"[place in places] for place in range(size))


def read(codec: Codec, bits: Any, size: int, client: int, first: int, key: int) -> torch.Tensor:
    def take(count: int) -> str:
        return "".join(next(bits) for _ in range(count))

    def real() -> float:
        return float(np.frombuffer(bytes(int(take(8), 2) for _ in range(4)), np.float32)[0])

    if isinstance(codec, Quantise):
        least, largest = real(), real()
        distance = (largest - least) / (2**codec.bits - 1)
        return torch.tensor([least + distance * int(take(codec.bits), 2) for _ in range(size)]).double()
    assert isinstance(codec, TopK)
    values = [real() for _ in range(codec.count(size))]
    width = (size - 1).bit_length()
    if isinstance(codec, RandomK):
        places = sorted(codec.chosen(torch.zeros(1, size), torch.tensor([client]), first, key)[0].tolist())
    elif len(values) * width < size:
        places = [int(take(width), 2) for _ in values]
    else:
        places = [place for place, bit in enumerate(take(size)) if bit == "1"]
    found = torch.zeros(size, dtype=torch.float64)
    found[places] = torch.tensor(values).double()
    return found


@pytest.mark.parametrize("name", OURS)
def test_runs_resume_bit_by_bit(name: str, tmp_path: Path) -> None:
    whole, pieces = resumed(
        tmp_path, codec={"name": name}, network={"cells": 3, "clients": 7, "dropout": 0.3}
    )
    assert whole == pieces


@pytest.mark.parametrize("access", ["fdma", "tdma"])
@pytest.mark.parametrize("name", OURS)
def test_a_run_counts_the_bits_of_its_submodels(name: str, access: str) -> None:
    """Megabytes, seconds and joules by the tensors that are sent; edges send the cloud numbers as they are."""
    plain, coded = (
        outcomes(
            experiment(
                codec={"name": each},
                uplink={"name": access},
                network={"cells": 3, "clients": 7, "energy_coefficient": 0.0},
            ),
            ReferenceEngine(),
            rounds=1,
        )[0]
        for each in ("plain", name)
    )
    codec = CODECS[name]()
    for submodel, bits, numbers in zip(coded.submodels, coded.bits, coded.parameters, strict=True):
        units = len(submodel.kept[0])
        sizes = [8 * units, units, 3 * units, 3]
        assert sum(sizes) == numbers == num_parameters(submodel)
        assert bits == codec.update_bits(sizes, 64.0)
    ratio = coded.bits / plain.bits
    radio = plain.cost.cell_seconds - compute(plain)
    np.testing.assert_allclose(coded.cost.cell_seconds - compute(plain), radio * ratio, rtol=1e-9)
    # Computing takes no energy here, and sending as much as it takes time.
    np.testing.assert_allclose(coded.cost.energy_joules / plain.cost.energy_joules, ratio, rtol=1e-9)


def compute(outcome: Any) -> Any:
    """The computing seconds of cells whose clients are all alike."""
    return np.full(3, outcome.cost.compute_seconds)


def test_megabytes_of_a_run(histfl_command: Callable[..., Answer], tmp_path: Path) -> None:
    """On the command line and in a plan, both of the tensors that cells hold."""
    answer = histfl_command(
        "run", *SMALL, "--set", "codec.name=quantise", "--set", "training.rounds=1", "--json"
    )
    assert answer.code == 0, answer.err
    (size,) = set(answer.json["submodel_parameters"])
    bytes_sent = (size * 8 + 2 * 32 * 4) / 8 * 2  # two edge rounds
    assert answer.json["megabytes_per_client"] == pytest.approx(bytes_sent / 2**20)
    assert answer.json["edge_cloud_megabytes"] == pytest.approx(4 * size * 4 / 2**20)
    silent = ("--set", "network.cycles_per_step=1e-20")  # computing that takes no time
    small = ("plan", "paper", "--model", "mlp", "--draws", "2", "--json", *silent)
    plain, coded = (
        histfl_command(*small, "--set", f"codec.name={name}").json["seconds_per_round"]
        for name in ("plain", "quantise")
    )
    for arm, units in (("oma.hfedavg", 300), ("oma.uniform", 300 // 4)):
        sizes = [784 * units, units, units * 10, 10]
        share = Quantise().update_bits(sizes, 32.0) / (32 * sum(sizes))
        assert coded[arm] / plain[arm] == pytest.approx(share, rel=1e-6)
    assert coded["aircomp.uniform"] == plain["aircomp.uniform"]


def test_python_takes_a_name_a_table_or_an_object() -> None:
    table = train(codec={"name": "quantise", "bits": 4})
    assert (
        table.loss.tolist() == train(codec=Quantise(4)).loss.tolist() != train(codec="quantise").loss.tolist()
    )
    assert train(codec=TopK(0.5)).config.codec.options == {"share": 0.5}


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"name": "quantise", "bits": 0}, "codec.bits = 0; it must be a whole number, at least 1"),
        ({"name": "quantise", "bits": 33}, "codec.bits = 33; it must be a whole number, at most 32"),
        ({"name": "quantise", "bits": 2.5}, "codec.bits = 2.5: Input should be a valid integer"),
        ({"name": "top-k", "share": 0.0}, "codec.share = 0.0; it must be above 0 and at most 1"),
        ({"name": "random-k", "share": 1.5}, "codec.share = 1.5; it must be above 0 and at most 1"),
        ({"name": "top-k", "k": 10}, "unknown key codec.k"),
        ({"name": "plain", "bits": 8}, "unknown key codec.bits"),
        ("given", "is for Python"),
        (Quantise, "give an object, such as Quantise()"),
        (object(), "has no method update_bits"),
    ],
)
def test_a_bad_choice_is_one_line(chosen: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        train(codec=chosen)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", OURS)
def test_amplitudes_have_no_bits(name: str) -> None:
    with pytest.raises(UsageError, match="amplitudes, not bits; leave out the codec"):
        train(codec=name, uplink="aircomp")
