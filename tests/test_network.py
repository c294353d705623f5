import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from histfl.errors import UsageError
from histfl.network import Network, spread_evenly


@given(st.integers(1, 50), st.integers(0, 500))
def test_clients_are_spread_evenly_with_the_remainder_first(cells: int, extra: int) -> None:
    counts = spread_evenly(cells + extra, cells)
    assert counts.sum() == cells + extra
    assert counts.max() - counts.min() <= 1
    assert (np.diff(counts) <= 0).all()


def test_sixty_clients_in_eight_cells() -> None:
    network = Network.uniform(cells=8, clients=60)
    assert network.clients_per_cell.tolist() == [8, 8, 8, 8, 7, 7, 7, 7]
    assert network.cell(7).first_client == 53
    assert network.cell(7).num_clients == 7
    assert network.cell_of_client.tolist()[52:54] == [6, 7]


def test_the_papers_profile() -> None:
    network = Network.paper(4, 60, np.random.default_rng(1))
    slow, fast = network.cell(1), network.cell(2)
    assert ((slow.cpu_hz >= 1e9) & (slow.cpu_hz <= 2e9)).all()
    assert ((fast.cpu_hz >= 2e9) & (fast.cpu_hz <= 4e9)).all()
    assert np.allclose(slow.snr, 1e3)
    assert np.allclose(fast.snr, 1e4)
    assert np.ptp(slow.cpu_hz) > 0


def test_a_million_clients_are_arrays_not_objects() -> None:
    tracemalloc.start()
    network = Network.uniform(cells=10_000, clients=1_000_000)
    cell = network.cell(9_999)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert network.num_clients == 1_000_000
    assert cell.cpu_hz.base is not None
    assert peak < 200e6


def test_a_network_file(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text(
        "seed = 3\n[[cells]]\ncount = 2\nclients = 3\ncpu_hz = [1e9, 2e9]\nsnr_db = 30\n"
        "[[cells]]\nclients = 5\ntransmit_power_w = 0.2\n"
    )
    network = Network.from_toml(path)
    assert network.clients_per_cell.tolist() == [3, 3, 5]
    assert ((network.cpu_hz[:6] >= 1e9) & (network.cpu_hz[:6] <= 2e9)).all()
    assert np.allclose(network.transmit_power_w, [0.1] * 6 + [0.2] * 5)
    assert np.array_equal(network.cpu_hz, Network.from_toml(path).cpu_hz)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cells"),
        ("[[cells]]\n", "cells.0.clients"),
        ("[[cells]]\nclients = 0", "cells.0.clients = 0"),
        ("[[cells]]\nclients = 3\ncpu_hz = -1.0", "cpu_hz"),
        ("[[cells]]\nclients = 3\ncpu_hz = [2e9, 1e9]", "low to high"),
        ("[[cells]]\nclients = 3\nsnr_db = nan", "snr_db"),
        ("[[cells]]\nclients = 3\nsnr = 3", "did you mean 'snr_db'"),
        ("[[cells]]\ncount = 1000000\nclients = 1000000", "at most"),
    ],
)
def test_a_bad_network_file_is_explained(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "network.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        Network.from_toml(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


def test_bad_networks_are_refused() -> None:
    with pytest.raises(UsageError, match="3 clients cannot fill 4 cells"):
        Network.uniform(cells=4, clients=3)
    with pytest.raises(UsageError, match="cells = 0"):
        Network.uniform(cells=0, clients=3)
    with pytest.raises(UsageError, match="cpu_hz = nan; it must be positive"):
        Network.uniform(cells=1, clients=3, cpu_hz=float("nan"))
    with pytest.raises(UsageError, match="and not both"):
        Network.uniform(cells=1, clients_per_cell=2, clients=2)
