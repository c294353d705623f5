"""What a plan says a round takes: seconds, megabytes and joules, those of a run's records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Answer
from torch import nn

from histfl.planning.network import SPENT, NetworkPlan
from histfl.planning.request import PlanRequest, make_plan
from histfl.runs.build import prepare
from histfl.runs.execute import execute
from histfl.training.codecs import Quantise
from histfl.wireless.clock import SWITCHED_CAPACITANCE

ROUNDS = 3
SMALL = (
    "model.hidden=40",
    "network.clients=12",
    "training.edge_rounds=2",
    "training.local_steps=1",
    "training.batch_size=8",
    f"training.rounds={ROUNDS}",
)
SOME = ("network.participants=2", "network.dropout=0.4")


def planned(*settings: str, source: str = "quickstart", draws: int = ROUNDS) -> NetworkPlan:
    return make_plan(PlanRequest(source, settings=(*SMALL, *settings), draws=draws)).plan


def taken(plan: NetworkPlan, arm: str) -> dict[str, float | None]:
    return {name: getattr(plan, name)[arm] for name in SPENT}


def recorded(*settings: str, source: str = "quickstart") -> dict[str, float]:
    """What a round of a run takes on average, by its records."""
    config = PlanRequest(source, settings=(*SMALL, *settings)).config()
    total = execute(prepare(config, device="cpu", engine="reference")).records[-1]
    assert total["round"] == ROUNDS
    return {
        name: total["simulated_seconds" if name == "seconds_per_round" else name] / ROUNDS for name in SPENT
    }


@pytest.mark.parametrize(
    ("uplink", "sizes", "codec", "changes"),
    [
        ("fdma", "uniform", "plain", ()),
        ("fdma", "optimised", "quantise", SOME),
        ("fdma", "optimised", "top-k", ("network.cycles_per_step=auto",)),
        ("fdma", "uniform", "random-k", ("uplink.bits_per_parameter=16", *SOME)),
        ("tdma", "uniform", "top-k", SOME),
        ("tdma", "optimised", "plain", ("network.dropout=0.4",)),
        ("tdma", "optimised", "quantise", ("method.name=overlap", "method.shared=0.3")),
        ("aircomp", "uniform", "plain", ("network.dropout=0.4",)),
        ("aircomp", "optimised", "plain", SOME),
    ],
)
def test_a_plan_foretells_what_a_run_records(
    uplink: str, sizes: str, codec: str, changes: tuple[str, ...]
) -> None:
    shared = (f"uplink.name={uplink}", f"codec.name={codec}", *changes)
    arm = "aircomp" if uplink == "aircomp" else "oma"
    found = taken(planned(*shared), f"{arm}.{sizes}")
    assert found == pytest.approx(recorded(*shared, f"method.sizes={sizes}"), rel=1e-12)
    assert min(value or 0.0 for value in found.values()) > 0


@pytest.mark.parametrize("codec", ["plain", "quantise"])
def test_so_it_does_for_hierarchical_fedavg(codec: str) -> None:
    shared = (f"codec.name={codec}", *SOME)
    found = taken(planned(*shared), "oma.hfedavg")
    assert found == pytest.approx(recorded(*shared, "method.name=hfedavg"), rel=1e-12)


def test_so_it_does_where_cells_and_clients_differ(tmp_path: Path) -> None:
    network = tmp_path / "network.toml"
    network.write_text(
        "[[cells]]\nclients = 6\ncpu_hz = [1e6, 1e8]\ntransmit_power_w = [0.05, 0.4]\n"
        "[[cells]]\ncount = 3\nclients = 2\nsnr_db = [0, 40]\n"
    )
    shared = (f"network.profile={network}", "network.participants=2", "network.cycles_per_step=auto")
    found = taken(planned(*shared), "oma.optimised")
    assert found == pytest.approx(recorded(*shared, "method.sizes=optimised"), rel=1e-12)


def test_over_the_air_no_codec_counts() -> None:
    """A codec's run has nothing to send over the air, and its plan compares with plain numbers there."""
    coded, plain = planned("codec.name=quantise"), planned()
    for arm in ("hfedavg", "uniform", "optimised"):
        assert taken(coded, f"aircomp.{arm}") == taken(plain, f"aircomp.{arm}")
        assert coded.megabytes_per_client[f"oma.{arm}"] < 0.3 * plain.megabytes_per_client[f"oma.{arm}"]
        assert coded.energy_joules[f"oma.{arm}"] < plain.energy_joules[f"oma.{arm}"]
        assert coded.edge_cloud_megabytes[f"oma.{arm}"] == plain.edge_cloud_megabytes[f"oma.{arm}"]


def tiny() -> nn.Module:
    """3-12-2: a unit weighs 3 + 1 + 2 = 6 parameters, every cell holds 2 more."""
    return nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))


@pytest.fixture
def two_cells(tmp_path: Path) -> Path:
    """One client of 1 GHz and 0.2 W, and three of 2 GHz and 0.5 W."""
    path = tmp_path / "network.toml"
    path.write_text(
        "[[cells]]\nclients = 1\ncpu_hz = 1e9\ntransmit_power_w = 0.2\n"
        "[[cells]]\nclients = 3\ncpu_hz = 2e9\ntransmit_power_w = 0.5\n"
    )
    return path


def of_two_cells(network: Path, *settings: str) -> NetworkPlan:
    changes = ("network.cycles_per_step=1e6", *settings)
    return make_plan(PlanRequest(str(network), "test_costs:tiny", changes, 2, (3,), 2)).plan


def test_by_hand_over_the_air(two_cells: Path) -> None:
    plan = of_two_cells(two_cells, "uplink.name=aircomp")
    symbol = 1e-3 / 14
    # A round is 5 edge rounds of 20 steps of 1e6 cycles of the full model of 74 parameters, and a symbol.
    for arm, sizes in (("hfedavg", (74, 74)), ("uniform", (38, 38)), ("optimised", (26, 50))):
        edge_rounds = 0.0
        for size, clients, hertz, watts in zip(sizes, (1, 3), (1e9, 2e9), (0.2, 0.5), strict=True):
            computing = SWITCHED_CAPACITANCE * 20e6 * size / 74 * hertz**2
            edge_rounds += clients * (computing + watts * symbol)
        assert plan.energy_joules[f"aircomp.{arm}"] == pytest.approx(5 * edge_rounds, rel=1e-12)
        uplink = 5 * 4 * (sizes[0] + 3 * sizes[1]) / 4
        assert plan.megabytes_per_client[f"aircomp.{arm}"] == pytest.approx(uplink / 2**20, rel=1e-12)
        assert plan.edge_cloud_megabytes[f"aircomp.{arm}"] == pytest.approx(4 * sum(sizes) / 2**20, rel=1e-12)


def test_by_hand_quantised(two_cells: Path) -> None:
    plan = of_two_cells(two_cells, "codec.name=quantise", "codec.bits=3")
    bits = Quantise(3).update_bits([3 * 6, 6, 6 * 2, 2], 32.0)
    assert bits == 3 * 38 + 2 * 32 * 4
    assert plan.megabytes_per_client["oma.uniform"] == pytest.approx(5 * bits / 8 / 2**20, rel=1e-12)
    assert plan.edge_cloud_megabytes["oma.uniform"] == pytest.approx(2 * 38 * 4 / 2**20, rel=1e-12)


@pytest.mark.parametrize("link", ["oma", "aircomp"])
def test_physics(link: str) -> None:
    plan = planned()
    for name in SPENT:
        full, equal = (getattr(plan, name)[f"{link}.{arm}"] for arm in ("hfedavg", "uniform"))
        assert equal < full  # a submodel is less to send and to compute
    cells = 4
    whole = plan.cut.parameters * 4
    assert plan.edge_cloud_megabytes[f"{link}.hfedavg"] == pytest.approx(cells * whole / 2**20)
    assert plan.megabytes_per_client[f"{link}.hfedavg"] == pytest.approx(2 * whole / 2**20)
    few = planned("network.participants=1")  # of the three in a cell
    arm = f"{link}.uniform"
    assert few.megabytes_per_client[arm] == pytest.approx(plan.megabytes_per_client[arm] / 3)
    assert few.edge_cloud_megabytes[arm] == plan.edge_cloud_megabytes[arm]
    assert few.energy_joules[arm] < plan.energy_joules[arm]
    lost = planned("network.dropout=0.9")  # a client sends what will be lost all the same
    assert taken(lost, arm) == taken(plan, arm)
    radio = planned("network.energy_coefficient=0")
    assert 0 < radio.energy_joules[arm] < plan.energy_joules[arm]
    power = ("network.energy_coefficient=0", "network.profile=uniform", "network.transmit_power_w")
    half, whole_power = (planned(*power[:2], f"{power[2]}={watts}").energy_joules for watts in (0.1, 0.2))
    assert whole_power[arm] == pytest.approx(2 * half[arm])


def test_json(two_cells: Path, histfl_command: Callable[..., Answer]) -> None:
    own = ("--model", "test_costs:tiny", "--input-shape", "3", "--classes", "2", "--draws", "2")
    cap = ("--vary", "method.cap=1,1.05", "--set", "uplink.bandwidth_hz=1e4")  # too narrow for the air
    answer: dict[str, Any] = histfl_command("plan", two_cells, *own, *cap, "--json").json
    points = answer["vary"]["points"]
    assert len(points) == 2
    for each in (answer, *points):
        for name in SPENT:
            assert list(each[name]) == list(answer["seconds_per_round"])
            assert [value is None for value in each[name].values()] == [False] * 3 + [True] * 3
    infeasible = histfl_command("plan", two_cells, "--set", "model.hidden=11", "--set", "method.cap=1.05")
    assert infeasible.code == 0, infeasible.err
    rows = [line.split() for line in infeasible.out.splitlines()]
    assert ["fdma", "optimised", "-", "-", "-"] in rows
    assert json.dumps(answer, allow_nan=False)


def test_terminal_and_page(two_cells: Path, tmp_path: Path, histfl_command: Callable[..., Answer]) -> None:
    page = tmp_path / "plan.html"
    own = ("--model", "test_costs:tiny", "--input-shape", "3", "--classes", "2", "--draws", "2")
    answer = histfl_command("plan", two_cells, *own, "--plot", page)
    assert answer.code == 0, answer.err
    lines = [line.split() for line in answer.out.splitlines()]
    plan = make_plan(PlanRequest(str(two_cells), own[1], (), 2, (3,), 2)).plan
    shown = page.read_text("utf-8")
    table = shown[shown.index('<table id="costs"') :].partition("</table>")[0]
    for arm, words in (("hfedavg", "HFedAvg"), ("uniform", "uniform"), ("optimised", "optimised")):
        numbers = [f"{taken(plan, f'oma.{arm}')[name]:#.4g}" for name in SPENT[1:]]
        assert ["fdma", words, *numbers] in lines
        for number in numbers:
            assert f">{number}<" in table
