"""Memory in large pages."""

from pathlib import Path

import pytest
import torch

from histfl.arrays import large_floats
from histfl.engines.memory import put_in_large_pages


def _kilobytes_in_large_pages() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text("utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))


def test_a_large_tensor_moves_into_large_pages_and_keeps_its_numbers() -> None:
    tensor = torch.arange(2**23, dtype=torch.int64)  # 64 MiB
    before = _kilobytes_in_large_pages() if Path("/proc/self/smaps_rollup").is_file() else 0
    if not put_in_large_pages(tensor):
        pytest.skip("this system has no large pages to give")
    assert _kilobytes_in_large_pages() >= before + 60 * 1024
    assert torch.equal(tensor, torch.arange(2**23, dtype=torch.int64))


def test_a_data_sets_own_memory_can_be_in_large_pages() -> None:
    """Which memory that could be shared with other processes cannot."""
    ordinary = torch.zeros(2**24)
    if not put_in_large_pages(ordinary):
        pytest.skip("this system has no large pages to give")
    before = _kilobytes_in_large_pages()
    tensor = torch.from_numpy(large_floats((2**12, 2**12)))  # 64 MiB
    tensor.fill_(1)
    assert put_in_large_pages(tensor)
    assert _kilobytes_in_large_pages() >= before + 60 * 1024


def test_a_tensor_without_a_whole_large_page_stays() -> None:
    assert not put_in_large_pages(torch.zeros(1000))
