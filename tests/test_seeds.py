import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from histfl.seeds import Seeds, random_bits, random_uniform


def test_streams_differ_by_root_purpose_and_ids() -> None:
    keys = {
        Seeds(1).key("a", 1, 2),
        Seeds(2).key("a", 1, 2),
        Seeds(1).key("b", 1, 2),
        Seeds(1).key("a", 2, 1),
        Seeds(1).key("a", 12),
        Seeds(1).key("a", 1),
    }
    assert len(keys) == 6


def test_a_stream_can_be_drawn_again() -> None:
    first, again = (Seeds(7).numpy("split", 3).random(5) for _ in range(2))
    assert np.array_equal(first, again)
    first, again = (torch.rand(5, generator=Seeds(7).torch("noise", 3)) for _ in range(2))
    assert torch.equal(first, again)


@given(st.integers(0, 2**62), st.integers(0, 10**6), st.integers(0, 10**6))
def test_any_subset_of_points_gives_the_same_bits(key: int, row: int, column: int) -> None:
    rows, columns = torch.arange(row, row + 3), torch.arange(column, column + 4)
    grid = random_bits(key, rows[:, None], columns)
    assert torch.equal(grid[1, 2], random_bits(key, rows[1], columns[2]))


def test_uniform_numbers_look_uniform_and_independent() -> None:
    draws = random_uniform(Seeds(1).key("x"), torch.arange(400)[:, None], torch.arange(400))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 * (1 / 12 / draws.numel()) ** 0.5
    counts = torch.histc(draws, bins=64, min=0, max=1)
    expected = draws.numel() / 64
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 63 + 5 * (2 * 63) ** 0.5
    neighbours = torch.corrcoef(torch.stack([draws[:, :-1].flatten(), draws[:, 1:].flatten()]))[0, 1]
    assert abs(neighbours) < 5 / draws.numel() ** 0.5


def test_global_generators_are_left_alone() -> None:
    before = torch.random.get_rng_state()
    Seeds(1).torch("x")
    random_bits(1, torch.arange(3))
    assert torch.equal(before, torch.random.get_rng_state())
