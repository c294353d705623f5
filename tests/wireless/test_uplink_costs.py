"""Seconds and joules of whole rounds, through `draw`, `latency` and the clock of every uplink."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uplink_cases import COMPUTING, MLP_PARAMETERS, SEEDS, networks, schedules, uplink

from histfl.errors import UsageError
from histfl.network import Network
from histfl.training import CellSchedule, RoundCost
from histfl.wireless.clock import Clock

NAMES = ("fdma", "tdma", "aircomp", "ideal")
UNIT = 784 + 1 + 10  # parameters of a hidden neuron of the 784-300-10 network


def sizes(network: Network, seed: int) -> np.ndarray:
    """A size for each cell, all different from each other."""
    return np.random.default_rng(seed).integers(1000, MLP_PARAMETERS, network.num_cells)


def cost(
    name: str, network: Network, plans: list[CellSchedule], parameters: Any, **options: Any
) -> RoundCost:
    radio = uplink(name, **options)
    return Clock(COMPUTING, radio).cost(network, plans, radio.draw(network, plans, 0, SEEDS), parameters)


def by_hand(
    name: str, network: Network, plans: list[CellSchedule], links: Any, parameters: Any
) -> tuple[list[float], list[float], list[float], float]:
    """Seconds, their computing and their uplink of each cell, and the joules of all: formulas in plain loops."""
    totals, computing, sending, joules = [], [], [], 0.0
    for cell, (plan, size) in enumerate(zip(plans, parameters, strict=True)):
        parts, place = [], 0
        for clients in plan.sampled:
            edge = []
            for position in clients:
                client = int(network.offsets[cell] + position)
                cycles = 20 * size / MLP_PARAMETERS * 1e6
                work = cycles / network.cpu_hz[client]
                if name == "ideal":
                    air, share = 0.0, 1.0
                elif name == "aircomp":
                    air, share = math.ceil(size / 666) * 1e-3 / 14, 1.0
                else:
                    snr = network.snr[client] * links[cell][place]
                    air = 32 * size / (10e6 / len(clients) * math.log2(1 + snr))
                    share = 1.0 if name == "fdma" else 1 / len(clients)
                joules += 1e-28 * cycles * network.cpu_hz[client] ** 2
                joules += network.transmit_power_w[client] * air * share
                edge.append((work + air, work, air))
                place += 1
            parts.append(max(edge))
        totals.append(sum(part[0] for part in parts))
        computing.append(sum(part[1] for part in parts))
        sending.append(sum(part[2] for part in parts))
    return totals, computing, sending, joules


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=12)
@given(
    network=networks(),
    edge_rounds=st.integers(1, 3),
    per_cell=st.none() | st.integers(1, 3),
    dropout=st.sampled_from([0.0, 0.5]),
)
def test_a_cell_waits_for_its_slowest_client_and_the_round_for_its_slowest_cell(
    name: str, network: Network, edge_rounds: int, per_cell: int | None, dropout: float
) -> None:
    plans = schedules(network, edge_rounds=edge_rounds, per_cell=per_cell, dropout=dropout)
    parameters = sizes(network, edge_rounds)
    radio = uplink(name, **({} if name == "ideal" else {"antennas": 2}))
    links = radio.draw(network, plans, 0, SEEDS)
    found = Clock(COMPUTING, radio).cost(network, plans, links, parameters)
    totals, computing, sending, joules = by_hand(name, network, plans, links, parameters)
    slowest = int(np.argmax(totals))
    assert found.cell_seconds == pytest.approx(totals, rel=1e-10)
    assert found.slowest_cell == slowest
    assert found.seconds == pytest.approx(max(totals), rel=1e-10)
    assert found.compute_seconds == pytest.approx(computing[slowest], rel=1e-10)
    assert found.uplink_seconds == pytest.approx(sending[slowest], rel=1e-10)
    assert found.energy_joules == pytest.approx(joules, rel=1e-10)
    choices = np.stack([parameters, parameters // 2])
    both = Clock(COMPUTING, radio).joules(network, plans, links, choices, np.ones(choices.shape))
    assert both[0] == found.energy_joules
    assert both[1] == Clock(COMPUTING, radio).cost(network, plans, links, parameters // 2).energy_joules


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=8)
@given(network=networks(), more=st.floats(1.0, 30.0), scales=st.booleans())
def test_more_band_snr_or_cpu_is_never_slower(name: str, network: Network, more: float, scales: bool) -> None:
    options: dict[str, Any] = {} if name == "ideal" else {"antennas": 2}
    if name == "fdma":
        options["noise_scales_with_band"] = scales
    plans, parameters = schedules(network), sizes(network, 1)

    def seconds(cpu: float = 1.0, snr: float = 1.0, **changed: Any) -> float:
        better = Network(
            network.clients_per_cell, network.cpu_hz * cpu, network.snr * snr, network.transmit_power_w
        )
        return cost(name, better, plans, parameters, **options | changed).seconds

    slow = seconds()
    assert seconds(cpu=more) <= slow * (1 + 1e-12)
    assert seconds(snr=more) <= slow * (1 + 1e-12)
    if name != "ideal":
        assert seconds(bandwidth_hz=10e6 * more) <= slow * (1 + 1e-12)


@pytest.mark.parametrize("name", ["fdma", "tdma", "ideal"])
@settings(deadline=None, max_examples=15)
@given(network=networks(), seed=st.integers(0, 1000))
def test_the_order_of_the_clients_in_a_cell_changes_nothing(name: str, network: Network, seed: int) -> None:
    plans, parameters = schedules(network), sizes(network, seed)
    radio = uplink(name)
    links = radio.draw(network, plans, 0, SEEDS)
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(int(count)) for count in network.clients_per_cell]
    moved = np.concatenate([first + order for first, order in zip(network.offsets, orders, strict=False)])
    shuffled = Network(
        network.clients_per_cell,
        network.cpu_hz[moved],
        network.snr[moved],
        network.transmit_power_w[moved],
    )
    if name != "ideal":  # two edge rounds, one after the other, in each cell's link
        links = [link.reshape(2, -1)[:, order].reshape(-1) for link, order in zip(links, orders, strict=True)]
    before = cost(name, network, plans, parameters)
    after = Clock(COMPUTING, radio).cost(shuffled, plans, links, parameters)
    assert after.cell_seconds == pytest.approx(before.cell_seconds, rel=1e-12)
    assert after.energy_joules == pytest.approx(before.energy_joules, rel=1e-12)


def test_tdma_takes_fdmas_time_and_a_clients_share_of_it_on_air() -> None:
    network = Network.uniform(2, clients=9)  # five clients and four
    plans, parameters = schedules(network), np.array([5000, 5000])
    idle = cost("ideal", network, plans, parameters)
    fdma, tdma = (cost(name, network, plans, parameters) for name in ("fdma", "tdma"))
    assert tdma.seconds == pytest.approx(fdma.seconds, rel=1e-12)
    one_cell = [Network.uniform(1, 5), Network.uniform(1, 4)]
    on_air = [
        cost("fdma", cell, schedules(cell), parameters[:1]).energy_joules
        - cost("ideal", cell, schedules(cell), parameters[:1]).energy_joules
        for cell in one_cell
    ]
    shared = [
        cost("tdma", cell, schedules(cell), parameters[:1]).energy_joules
        - cost("ideal", cell, schedules(cell), parameters[:1]).energy_joules
        for cell in one_cell
    ]
    assert shared[0] == pytest.approx(on_air[0] / 5, rel=1e-9)
    assert shared[1] == pytest.approx(on_air[1] / 4, rel=1e-9)
    assert idle.energy_joules < tdma.energy_joules < fdma.energy_joules


@pytest.mark.parametrize("name", NAMES)
def test_an_update_that_is_lost_costs_as_much_as_one_that_arrives(name: str) -> None:
    network = Network.uniform(2, 3)
    parameters = np.array([5000, 8000])
    arrived = cost(name, network, schedules(network), parameters)
    lost = cost(name, network, schedules(network, dropout=1.0), parameters)
    assert lost.cell_seconds.tolist() == arrived.cell_seconds.tolist()
    assert lost.energy_joules == arrived.energy_joules


@pytest.mark.parametrize("name", NAMES)
def test_fewer_participants_are_never_slower_nor_costlier(name: str) -> None:
    """FDMA gives each of them more of the band; over the air their number does not matter."""
    network = Network.uniform(2, 6)
    parameters = np.array([5000, 5000])
    some = cost(name, network, schedules(network, per_cell=2), parameters)
    everyone = cost(name, network, schedules(network), parameters)
    if name in ("fdma", "tdma"):
        assert some.seconds < everyone.seconds / 2
    else:
        assert some.seconds == everyone.seconds
    assert some.energy_joules < everyone.energy_joules


def mean_seconds(name: str, cells: int, clients: int, parameters: int, draws: int, **options: Any) -> float:
    """Of a global round in the setting of HIST Sec. VI-C: resources and channels drawn anew each time."""
    radio = uplink(name, **options)
    seconds, links = [], None
    for draw in range(draws):
        network = Network.paper(cells, clients, SEEDS.numpy("network", draw))
        plans = schedules(network, edge_rounds=5, round=draw)
        if links is None or name != "aircomp":  # over the air no channel enters the time: one draw does
            links = radio.draw(network, plans, draw, SEEDS)
        found = Clock(COMPUTING, radio).cost(network, plans, links, np.full(cells, parameters))
        seconds.append(found.seconds)
    return float(np.mean(seconds))


@pytest.mark.parametrize(
    ("cells", "full_fdma", "uniform_fdma", "full_air", "uniform_air"),
    [(2, 9.49, 4.74, 0.225, 0.113), (4, 4.78, 1.20, 0.225, 0.0563), (6, 3.21, 0.535, 0.225, 0.0375)],
)
def test_reference_seconds_of_sec_vi_c(
    cells: int, full_fdma: float, uniform_fdma: float, full_air: float, uniform_air: float
) -> None:
    submodel = 300 // cells * UNIT + 10
    assert mean_seconds("fdma", cells, 60, MLP_PARAMETERS, 200) == pytest.approx(full_fdma, rel=0.03)
    assert mean_seconds("fdma", cells, 60, submodel, 200) == pytest.approx(uniform_fdma, rel=0.03)
    assert mean_seconds("aircomp", cells, 60, MLP_PARAMETERS, 200) == pytest.approx(full_air, rel=0.03)
    assert mean_seconds("aircomp", cells, 60, submodel, 200) == pytest.approx(uniform_air, rel=0.03)


def slope(name: str, **options: Any) -> float:
    """Log-log slope of a round's seconds in the clients a cell, from 10 to 30, four cells."""
    clients = np.array([10, 15, 20, 25, 30])
    seconds = [mean_seconds(name, 4, 4 * int(count), 75 * UNIT + 10, 40, **options) for count in clients]
    return float(np.polyfit(np.log(clients), np.log(seconds), 1)[0])


def test_seconds_grow_with_the_clients_of_a_cell_as_the_access_says() -> None:
    assert 0.95 < slope("fdma") < 1.05
    assert 0.95 < slope("tdma") < 1.05
    assert slope("fdma", double_count_clients=True) == pytest.approx(2.0, abs=0.05)
    assert -0.01 < slope("aircomp") < 0.05


def test_the_literal_switches_by_hand() -> None:
    """Four clients: counted twice, an uplink takes four times as long; a quarter of the noise, less."""
    network = Network.uniform(1, 4, snr_db=0.0)
    plans, parameters = schedules(network, edge_rounds=1), np.array([10_000])
    plain = cost("fdma", network, plans, parameters)
    for name in ("fdma", "tdma"):
        twice = cost(name, network, plans, parameters, double_count_clients=True)
        assert twice.uplink_seconds == pytest.approx(4 * plain.uplink_seconds, rel=1e-9)
        assert twice.compute_seconds == pytest.approx(plain.compute_seconds, rel=1e-12)
    radio = uplink("fdma", noise_scales_with_band=True)
    links = radio.draw(network, plans, 0, SEEDS)
    weakest = links[0].min()
    expected = 32 * 10_000 / (10e6 / 4 * math.log2(1 + 4 * weakest))
    assert Clock(COMPUTING, radio).cost(network, plans, links, parameters).uplink_seconds == pytest.approx(
        expected, rel=1e-9
    )
    halved = cost("fdma", network, plans, parameters, bits_per_parameter=16.0)
    assert halved.uplink_seconds == pytest.approx(plain.uplink_seconds / 2, rel=1e-9)


def test_channels_are_drawn_once_a_global_round_for_each_client() -> None:
    """A client sampled in two edge rounds has one gain in both, and another one in the next round."""
    network = Network.uniform(1, 5)
    radio = uplink("fdma")
    plans = schedules(network, edge_rounds=2)
    first, second = radio.draw(network, plans, 0, SEEDS)[0].reshape(2, -1)
    assert first.tolist() == second.tolist()
    assert not np.intersect1d(first, radio.draw(network, plans, 1, SEEDS)[0]).size


def test_what_cannot_be_is_refused() -> None:
    network = Network.uniform(1, 2)
    plans, parameters = schedules(network), np.array([100])
    with pytest.raises(UsageError, match="bandwidth_hz = 0"):
        cost("fdma", network, plans, parameters, bandwidth_hz=0.0)
    with pytest.raises(UsageError, match="bandwidth_hz = 0"):
        uplink("aircomp", bandwidth_hz=0.0)
    for name in ("fdma", "aircomp"):
        with pytest.raises(UsageError, match="antennas = 0"):
            cost(name, network, plans, parameters, antennas=0)
    assert COMPUTING.cycles(np.array([MLP_PARAMETERS])).tolist() == [2e7]
