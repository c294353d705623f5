"""`histfl plan`: hand-computed cases, the reference latencies, and what a user may ask."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import Answer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

from histfl.cli import main
from histfl.errors import UsageError
from histfl.planning.cut import CutModel, cut_model
from histfl.planning.network import SPENT, plan_network
from histfl.planning.request import Planning, PlanRequest, make_plan
from histfl.planning.show import draw_plan, groups_by_speed, plan_tables, worth_sentences
from histfl.runs.build import prepare
from histfl.runs.execute import execute
from histfl.runs.loading import load_config

# Seconds a global round, 60 clients, H = 20, E = 5, 10 MHz; computed beforehand with another program.
REFERENCE = {  # cells: oma hfedavg, uniform, optimised; aircomp hfedavg, uniform, optimised
    2: (9.49, 4.74, 4.16, 0.225, 0.113, 0.0989),
    4: (4.78, 1.20, 1.03, 0.225, 0.0563, 0.0490),
    6: (3.21, 0.535, 0.459, 0.225, 0.0375, 0.0324),
}
NAMES = [f"{uplink}.{arm}" for uplink in ("oma", "aircomp") for arm in ("hfedavg", "uniform", "optimised")]


def tiny(hidden: int = 12) -> nn.Module:
    """3-hidden-2: a unit weighs 3 + 1 + 2 = 6 parameters, every cell holds 2 more."""
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))


TINY = PlanRequest("", "test_planning:tiny", input_shape=(3,), classes=2)


def tiny_request(source: object, *changes: str, draws: int | None = 3) -> PlanRequest:
    cycles = "network.cycles_per_step=1e6"  # for seconds by hand
    return PlanRequest(str(source), TINY.model, (cycles, *changes), draws, TINY.input_shape, TINY.classes)


@pytest.fixture
def two_cells(tmp_path: Path) -> Path:
    """One client of 1 GHz, and one of 2 GHz."""
    path = tmp_path / "network.toml"
    path.write_text("[[cells]]\nclients = 1\ncpu_hz = 1e9\n[[cells]]\nclients = 1\ncpu_hz = 2e9\n")
    return path


def text_of(planning: Planning) -> str:
    """The tables on a terminal of 80 columns; three dots in one character would be text cut off."""
    console = Console(width=80, file=io.StringIO(), record=True)
    for table in plan_tables(planning):
        console.print(table)
    return console.export_text()


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *map(str, arguments)])
    streams = capsys.readouterr()
    return int(ended.value.code or 0), streams.out, streams.err


def test_by_hand_over_the_air(two_cells: Path) -> None:
    plan = make_plan(tiny_request(two_cells, "uplink.name=aircomp")).plan
    # 12 units: 2 + 6 k parameters of 74. A round is 5 edge rounds of 20 steps of 1e6 cycles: 0.1 s and
    # 0.05 s for the full model, and 5 symbols of 1/14 ms, each of which carries 666 parameters.
    symbols = 5 * 1e-3 / 14
    assert plan.seconds_per_round["aircomp.hfedavg"] == pytest.approx(0.1 + symbols)
    assert plan.seconds_per_round["aircomp.uniform"] == pytest.approx(0.1 * 38 / 74 + symbols)
    assert plan.seconds_per_round["aircomp.optimised"] == pytest.approx(0.1 * 26 / 74 + symbols)
    uniform, best = plan.cells["uniform"], plan.cells["optimised"]
    assert uniform.units.tolist() == [[6], [6]]
    assert best.units.tolist() == [[4], [8]]  # (3, 9) would take 0.05 * 56 / 74 > 0.1 * 26 / 74
    assert best.sizes.parameters.tolist() == [26, 50]
    assert best.compute == pytest.approx([0.1 * 26 / 74, 0.05 * 50 / 74])
    assert best.uplink == pytest.approx([symbols, symbols])
    assert best.sizes.gap == 0


def test_the_cap_binds(two_cells: Path) -> None:
    two_cells.write_text(two_cells.read_text().replace("2e9", "90e9"))
    changes = ("uplink.name=aircomp", "method.cap=1.5")
    best = make_plan(tiny_request(two_cells, *changes)).plan.cells["optimised"]
    assert best.units.tolist() == [[3], [9]]  # 9 = 1.5 * 12 / 2


@pytest.fixture(scope="module")
def papers_mlp() -> CutModel:
    return cut_model(PlanRequest("paper").config())


@pytest.mark.parametrize("cells", REFERENCE)
def test_the_reference_latencies(papers_mlp: CutModel, cells: int) -> None:
    request = PlanRequest("paper", settings=(f"network.cells={cells}",))
    plans = [
        plan_network(request.config(f"training.seed={seed}"), papers_mlp, draws=2).seconds_per_round
        for seed in range(100)
    ]
    means = [np.mean([plan[name] for plan in plans]) for name in NAMES]
    assert means == pytest.approx(REFERENCE[cells], rel=0.03)


@given(
    cells=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    uplink=st.sampled_from(["fdma", "tdma", "aircomp"]),
    participants=st.sampled_from(['"all"', "1", "3"]),
    bandwidth_hz=st.sampled_from(["1e5", "1e7", "1e9"]),
)
@settings(deadline=None, max_examples=25)
def test_optimised_beats_uniform_beats_the_full_model(
    papers_mlp: CutModel, cells: int, seed: int, uplink: str, participants: str, bandwidth_hz: str
) -> None:
    config = PlanRequest("paper").config(
        f"network.cells={cells}",
        f"training.seed={seed}",
        f"uplink.name={uplink}",
        f"network.participants={participants}",
        f"uplink.bandwidth_hz={bandwidth_hz}",
    )
    plan = plan_network(config, papers_mlp, draws=2)
    seconds = plan.seconds_per_round
    for link in ("oma", "aircomp"):
        assert 0 < seconds[f"{link}.optimised"] <= seconds[f"{link}.uniform"] <= seconds[f"{link}.hfedavg"]
    slowest = {name: chosen.sizes.seconds.max() for name, chosen in plan.cells.items()}
    assert plan.cells["optimised"].sizes.bound <= slowest["optimised"] <= slowest["uniform"]
    for chosen in plan.cells.values():
        assert chosen.units.sum() == 300
        assert (chosen.compute > 0).all()
        assert (chosen.uplink >= 0).all()
    assert (plan.cells["optimised"].units <= 1.5 * 300 / cells).all()


def test_json_contract(two_cells: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", TINY.model, "--input-shape", "3", "--classes", 2, "--draws", 4, "--json"]
    code, out, err = call(capsys, two_cells, *arguments, "--vary", "bandwidth_hz=1e6,1e7,1e8")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert list(answer["seconds_per_round"]) == NAMES
    for arm in ("uniform", "optimised"):
        assert [set(cell) for cell in answer["cells"][arm]] == [{"units", "parameters", "seconds"}] * 2
        parts = answer["seconds_by_part"][arm]
        totals = [cell["seconds"] for cell in answer["cells"][arm]]
        assert np.add(parts["compute"], parts["uplink"]) == pytest.approx(totals)
    assert (answer["cap"], answer["feasible"], answer["draws"]) == (1.5, True, 4)
    slowest = max(cell["seconds"] for cell in answer["cells"]["optimised"])
    certificate = answer["certificate"]
    assert certificate["lower_bound"] * (1 + certificate["gap"]) == pytest.approx(slowest)
    assert answer["vary"]["setting"] == "uplink.bandwidth_hz"
    points = answer["vary"]["points"]
    assert [point["value"] for point in points] == [1e6, 1e7, 1e8]
    assert points[1]["seconds_per_round"] == answer["seconds_per_round"]  # 10 MHz is the default
    for name in NAMES:
        curve = [point["seconds_per_round"][name] for point in points]
        assert curve == sorted(curve, reverse=True)  # a wider band is never slower


def test_text_and_picture(two_cells: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    code, out, _ = call(capsys, two_cells, "--vary", "cells=1,2", "--draws", 2, "--plot", page)
    assert code == 0
    assert "2 cells, 2 clients; mlp: 238,510 parameters, cut: fc1 (300 units of 795 parameters)" in out
    assert "seconds a round by network.cells" in out
    assert "\u2026" not in out
    assert "gap 0.00%" in " ".join(out.split())
    drawn = page.read_text()
    assert "optimised: uplink" in drawn
    assert "aircomp, optimised" in drawn
    assert "<script src=" not in drawn  # nothing is fetched to view it


def test_varied_cells_regroup_the_clients_of_a_network_file(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text("[[cells]]\ncount = 3\nclients = 70\ncpu_hz = [1e9, 2e9]\n")
    variation = make_plan(tiny_request(path, draws=1), "cells=2,3,4").variation
    assert variation is not None
    assert [plan.clients_per_cell.tolist() for plan in variation.plans] == [
        [105, 105],
        [70, 70, 70],
        [53, 53, 52, 52],
    ]
    same = make_plan(tiny_request(path, draws=1)).plan
    assert variation.plans[1].seconds_per_round == same.seconds_per_round


def test_ten_thousand_cells(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text(
        "[[cells]]\ncount = 5000\nclients = 2\ncpu_hz = 1e9\n[[cells]]\ncount = 5000\nclients = 1\n"
    )
    planning = make_plan(tiny_request(path, "model.hidden=30000", draws=1))
    answer = planning.as_json()
    units = np.array([cell["units"] for cell in answer["cells"]["optimised"]])
    assert units.shape == (10_000, 1)
    assert units.sum() == 30_000
    assert (units >= 1).all()
    assert (units <= 4).all()  # floor(1.5 * 3)
    assert answer["seconds_per_round"]["oma.optimised"] < answer["seconds_per_round"]["oma.uniform"]
    assert plan_tables(planning)[0].row_count == 20
    assert "\u2026" not in text_of(planning)
    assert "rank 501 to 1000" in text_of(planning)  # places by speed, which are no cell numbers
    groups = groups_by_speed(planning.plan, 20)
    assert sorted(np.concatenate(groups)) == list(range(10_000))
    seconds = planning.plan.cells["uniform"].sizes.seconds
    assert (np.diff([seconds[group].mean() for group in groups]) >= 0).all()
    page = tmp_path / "plan.html"
    draw_plan(planning, page)
    assert "10000 cells in 60 groups" in page.read_text()


def test_fewer_draws_with_many_cells(two_cells: Path) -> None:
    assert make_plan(tiny_request(two_cells, draws=None)).plan.draws == 200
    two_cells.write_text("[[cells]]\ncount = 2000\nclients = 1\n")
    assert make_plan(tiny_request(two_cells, "model.hidden=2000", draws=None)).plan.draws == 20


def test_infeasible_sizes_are_an_answer_in_numbers(
    two_cells: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planning = make_plan(tiny_request(two_cells, "model.hidden=11", "method.cap=1.05"))
    answer = planning.as_json()
    assert answer["feasible"] is False
    assert answer["cells"]["optimised"] is answer["certificate"] is None
    assert answer["seconds_per_round"]["oma.optimised"] is None
    assert answer["seconds_per_round"]["oma.uniform"] > 0
    assert "11 units do not fit 2 cells of at most 5 each" in answer["obstacle"]
    assert "at least 1.091" in worth_sentences(planning)[0]
    assert make_plan(tiny_request(two_cells, "model.hidden=11", "method.cap=1.091")).plan.obstacle is None
    page = tmp_path / "plan.html"
    code, out, _ = call(
        capsys, "uniform", "--set", "model.hidden=3", "--draws", 1, "--vary", "cells=3,5", "--plot", page
    )
    text = " ".join(out.split())
    assert code == 0
    assert "not feasible: layer 'fc1' has 3 units for 4 cells; use at most 3 cells" in text
    assert "network.cells = 5 is not feasible: layer 'fc1' has 3 units for 5 cells" in text
    assert "network.cells = 3 is not feasible" not in text
    assert page.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paper", "--set", "method.cap=0.9"], "method.cap = 0.9"),
        (["nowhere.toml"], "'nowhere.toml' is no file"),
        (["paper", "--model", "mpl"], "did you mean 'mlp'?"),
        (["paper", "--model", "test_planning:tiny"], "--input-shape gives others"),
        (["paper", "--input-shape", "1,x"], "--input-shape '1,x'"),
        (["paper", "--vary", "cell=2,4"], "did you mean 'cells'?"),
        (["paper", "--vary", "cells=two"], "cells=2,4,6,8"),
        (["paper", "--vary", "name=2"], "model.name, data.name"),
        (["paper", "--vary", "cells=2,4", "--vary", "cap=1,2"], "a plan varies one setting"),
        (["paper", "--vary", "cells=61"], "60 clients cannot fill 61 cells"),
        (["paper", "--set", "method.name=ist"], "sizes do not add up"),
        (["paper", "--set", "method.name=overlap", "--set", "method.shared=1.0"], "nothing is left to size"),
        (["paper", "--set", "data.name=mine:data"], "--input-shape 1,28,28 --classes 10"),
        (["paper", "--draws", "0"], "--draws"),
    ],
)
def test_mistakes_end_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[cell]]\nclients = 2\n", r"unknown key 'cell'; did you mean 'cells'\?"),
        (
            "[cells]\nclients = 2\n",
            r"cells: Input should be a list: write a table \[\[cells\]\] for each",
        ),
        ("cells = 3\n", r"cells = 3: Input should be a list: write a table \[\[cells\]\] for each"),
        (
            "cells = []\n",
            r"cells = \[\]: Input should have one item at least: write a table \[\[cells\]\] for each",
        ),
        ("[[cells]]\ncount = 2\n", r"cells\.0\.clients: this key is needed"),
        ("[[cells]]\nclients = 2\ncpu_hz = []\n", r"cells\.0\.cpu_hz: the list is too short"),
        (
            "[[cells]]\nclients = 2\ncpu_hz = [1e9, -1]\n",
            r"cells\.0\.cpu_hz\.1 = -1: Input should be positive",
        ),
    ],
)
def test_a_mistake_in_a_network_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "network.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"network\.toml: {said}"):
        make_plan(tiny_request(path))


def test_where_the_settings_come_from(two_cells: Path, tmp_path: Path) -> None:
    assert PlanRequest(str(two_cells), "lenet5").config().method.include == ("fc*",)  # the model's preset
    assert PlanRequest("quickstart").config().network.clients == 20
    configuration = tmp_path / "mine.toml"
    configuration.write_text(f'[training]\nedge_rounds = 3\n[network]\nprofile = "{two_cells}"\n')
    config = PlanRequest(str(configuration), "lenet5").config()
    assert config.training.edge_rounds == 3
    assert (config.network.cells, config.network.clients) == (2, 2)  # the file's
    assert (config.model.name, config.model.options) == ("lenet5", {})
    assert cut_model(config).parameters == 61_706


def test_shared_units_are_counted_in_every_cell(two_cells: Path) -> None:
    changes = ("method.name=overlap", "method.shared=0.5")
    cells = make_plan(tiny_request(two_cells, *changes)).plan.cells
    assert cells["uniform"].units.tolist() == [[9], [9]]
    assert cells["uniform"].sizes.parameters.tolist() == [2 + 6 * 9] * 2


def double_tiny() -> nn.Module:
    return tiny().double()


def test_the_bits_of_a_parameter_are_planned_as_a_run_sends_them(two_cells: Path) -> None:
    def seconds(model: str, *changes: str) -> float:
        config = PlanRequest(str(two_cells), model, changes).config()
        plan = plan_network(config, cut_model(config, input_shape=(3,), classes=2), 3)
        return plan.seconds_per_round["oma.hfedavg"] or 0.0

    one, wide = (seconds("test_planning:tiny", f"uplink.bits_per_parameter={bits}") for bits in (1, 64))
    assert wide > one
    assert seconds("test_planning:double_tiny") == wide


def test_counted_operations_by_hand_over_the_air(two_cells: Path) -> None:
    settings = ("uplink.name=aircomp", "network.cycles_per_step=auto", "network.operations_per_cycle=2")
    found = make_plan(tiny_request(two_cells, *settings)).plan
    # A step of 50 samples: 2 * 50 * 12 * (2 * 3 + 3 * 2) operations, in proportion to the units; two in a cycle.
    cycles, symbols = 50 * 12 * 12, 5 * 1e-3 / 14
    assert found.as_json()["operations_per_step"] == 2 * cycles
    assert found.seconds_per_round["aircomp.hfedavg"] == pytest.approx(5 * 20 * cycles / 1e9 + symbols)
    assert found.seconds_per_round["aircomp.uniform"] == pytest.approx(5 * 10 * cycles / 1e9 + symbols)
    assert found.seconds_per_round["aircomp.optimised"] == pytest.approx(5 * 20 / 3 * cycles / 1e9 + symbols)


def test_what_a_large_model_computes_turns_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("paper", "--model", "resnet18", "--draws", 1, "--json")
    paper = json.loads(call(capsys, *arguments)[1])
    own = json.loads(call(capsys, *arguments, "--set", "network.cycles_per_step=auto")[1])
    assert paper["computing"] == (
        "computing: the paper's 10^6 cycles a step, whatever the model; a step of this model, of 50 samples, has 1.66e+11 "
        "operations, 4.16e+10 cycles at 4 a cycle (--set network.cycles_per_step=auto takes those)"
    )
    assert max(paper["seconds_by_part"]["uniform"]["compute"]) < 0.03
    assert max(own["seconds_by_part"]["uniform"]["compute"]) == pytest.approx(1040, rel=0.05)
    gains = [
        each["seconds_per_round"]["oma.hfedavg"] / each["seconds_per_round"]["aircomp.hfedavg"]
        for each in (paper, own)
    ]
    assert gains[0] > 30
    assert gains[1] < 1.1
    assert (paper["operations_per_step"], paper["cycles_per_step"]) == (own["operations_per_step"], 1e6)


@pytest.mark.parametrize("uplink", ["fdma", "tdma"])
@pytest.mark.parametrize("codec", ["plain", "quantise", "top-k"])
@pytest.mark.parametrize("sizes", ["uniform", "optimised"])
def test_a_plan_with_counted_operations_foretells_the_run(
    uplink: str, codec: str, sizes: str, tmp_path: Path
) -> None:
    network = tmp_path / "network.toml"
    network.write_text("[[cells]]\ncount = 3\nclients = 3\ncpu_hz = [1e6, 1e8]\nsnr_db = [0, 40]\n")
    settings = [f"network.profile={network}", f"uplink.name={uplink}", "model.name=lenet5"]
    settings += [f"method.sizes={sizes}", "training.local_steps=1", "training.edge_rounds=2"]
    settings += ["training.rounds=2", "training.batch_size=4", f"codec.name={codec}"]
    planned = make_plan(PlanRequest("quickstart", settings=tuple(settings), draws=2)).plan
    run = execute(prepare(load_config("quickstart", settings), device="cpu"))
    for name in SPENT:
        mean = run.summary["simulated_seconds" if name == "seconds_per_round" else name] / 2
        assert getattr(planned, name)[f"oma.{sizes}"] == pytest.approx(mean, rel=1e-12)
    for record in run.records:
        assert record["latency"]["predicted_seconds"] == pytest.approx(
            record["latency"]["seconds"], rel=1e-12
        )


def test_a_band_too_narrow_for_the_air_is_planned_for_what_it_can_carry(two_cells: Path) -> None:
    narrow = "uplink.bandwidth_hz=1e4"
    seconds = make_plan(tiny_request(two_cells, narrow)).plan.seconds_per_round
    assert seconds["oma.hfedavg"] > seconds["oma.optimised"] > 0
    assert seconds["aircomp.hfedavg"] is seconds["aircomp.optimised"] is None
    with pytest.raises(UsageError, match="narrower than one sub-channel"):
        make_plan(tiny_request(two_cells, narrow, "uplink.name=aircomp"))


def test_a_plan_says_where_its_computing_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    for source, words in (("paper", "the paper's 10^6 cycles a step"), ("uniform", "4.79e+07 operations")):
        code, out, err = call(capsys, source, "--draws", 1)
        assert code == 0, err
        assert words in " ".join(out.split())


def test_a_plan_tells_the_share_of_a_cell_and_cells_of_few_units(
    histfl_command: Callable[..., Answer],
) -> None:
    network = ("--set", "network.cells=100", "--set", "network.clients=100", "--draws", "2")
    plan = histfl_command("plan", "mlp", *network, "--json").json
    assert plan["shares"]["uniform"] == pytest.approx([0.01, 0.01], abs=1e-4)
    (warning,) = plan["warnings"]
    assert "a cell holds 3 of the 300 units of layer 'fc1'" in warning
    shown = histfl_command("plan", "mlp", *network).out
    assert "with uniform sizes each cell trains 1.0% of the model's 238,510 parameters" in shown
    assert "a cell holds 3 of the 300 units" in shown
    varied = histfl_command("plan", "mlp", "--draws", "2", "--vary", "cells=4,60", "--json").json
    assert varied["warnings"] == []
    assert [bool(point["warnings"]) for point in varied["vary"]["points"]] == [False, True]
