"""`histfl bound` on real small runs, and the estimates that runs record for it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from histfl.cli import main
from histfl.errors import UsageError
from histfl.partition import State
from histfl.reports.bound import Setting, bound_in
from histfl.reports.bound_page import bound_plot, sentences
from histfl.reports.plots import on_screen
from histfl.runs.build import build, load_ingredients
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.runs.loading import load_config
from histfl.runs.store import RunFolder
from histfl.settings import checked
from histfl.theory import estimate
from histfl.wireless.aircomp import OverTheAir

SMALL = (
    "model.hidden=16",
    "network.cells=2",
    "network.clients=4",
    "training.rounds=3",
    "training.edge_rounds=2",
    "training.local_steps=3",
    "training.batch_size=20",
    "theory.every=2",
)


def train(folder: Path, *settings: str, resume: bool = False) -> Path:
    config = load_config("quickstart", [*SMALL, *settings])
    experiment = build(config, load_ingredients(config), device="cpu", engine="reference")
    execute(experiment, RunFolder(folder), resume=resume)
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    return RunFolder(folder).read_rounds()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("bound") / "run")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The run, to be changed by the test."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit:
        main(["bound", *arguments])
    captured = capsys.readouterr()
    return int(exit.value.code or 0), captured.out, captured.err


def test_every_second_round_has_estimates_of_the_model_it_began_with(run: Path) -> None:
    assert ["theory" in record for record in records(run)] == [True, False, True]
    config = load_config("quickstart", SMALL)
    ingredients = load_ingredients(config)
    experiment = build(config, ingredients, device="cpu", engine="reference")
    first = {name: x.detach() for name, x in ingredients.model.named_parameters()}
    expected = estimate(experiment.hist.task, experiment.hist.network, first, round=0)
    assert records(run)[0]["theory"] == expected.as_record()


def test_estimating_changes_nothing_else(run: Path, tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", "theory.every=0")
    without = [{key: x for key, x in record.items() if key != "theory"} for record in records(run)]
    assert records(plain) == without


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", "training.rounds=4", "theory.every=1")
    parts = train(tmp_path / "parts", "training.rounds=2", "theory.every=1")
    train(parts, "training.rounds=4", "theory.every=1", resume=True)
    assert (parts / "rounds.jsonl").read_bytes() == (whole / "rounds.jsonl").read_bytes()


def test_negative_every_is_refused() -> None:
    with pytest.raises(UsageError, match=r"theory\.every"):
        load_config("quickstart", ["theory.every=-1"])


def test_json_contract(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, str(run), "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert set(answer) == {
        *("run", "theorem", "rounds", "recorded_rounds", "constants", "imbalance", "aggregation_error"),
        *("terms", "bound", "dominant", "measured", "ratio", "vacuous", "step_size", "caveats", "history"),
    }
    assert (answer["theorem"], answer["rounds"], answer["recorded_rounds"]) == (1, 3, [1, 3])
    assert answer["bound"] == pytest.approx(sum(term["value"] for term in answer["terms"]))
    assert sum(term["share"] for term in answer["terms"]) == pytest.approx(1)
    assert answer["ratio"] == pytest.approx(answer["bound"] / answer["measured"])
    assert answer["vacuous"] is True
    assert answer["dominant"] == max(answer["terms"], key=lambda term: term["value"])["name"]
    steps = answer["step_size"]
    assert steps["limit"] == min(condition["limit"] for condition in steps["conditions"])
    assert steps["holds"] is False
    assert steps["largest_local_steps"]["value"] >= 0
    assert [point["round"] for point in answer["history"]] == [1, 3]
    assert set(answer["history"][0]["terms"]) == {term["name"] for term in answer["terms"]}


def test_terms_of_theorem_1_by_hand(run: Path) -> None:
    answer = bound_in(run).as_json()
    theory = [record["theory"] for record in records(run) if "theory" in record]
    smoothness = max(each["smoothness"] for each in theory)
    noise = np.mean([each["gradient_variance"] for each in theory], axis=0).max()
    clients = np.mean([each["client_divergence"] for each in theory], axis=0).max()
    cells = np.mean([each["cell_divergence"] for each in theory])
    model = np.mean([each["model_norm"] for each in theory])
    rate = 0.02
    assert [term["value"] for term in answer["terms"]] == pytest.approx(
        [
            4 * theory[0]["loss"] / (rate * 3 * 2 * 3),
            100 * rate * (1 / 2 + 1 / 2) * smoothness * noise,
            1356 * rate * smoothness * cells,
            60 * rate * smoothness * clients,
            6 * cells,  # two cells of 8 units each
            48 * smoothness**2 * model,
        ]
    )
    assert answer["measured"] == pytest.approx(np.mean([each["gradient_norm"] for each in theory]))


def test_history_is_the_bound_of_a_shorter_run(run: Path, tmp_path: Path) -> None:
    short = train(tmp_path / "short", "training.rounds=1")
    assert bound_in(run).history[0] == bound_in(short).final


def test_partial_participation_takes_theorem_2(tmp_path: Path) -> None:
    found = bound_in(train(tmp_path / "run", "network.participants=1", "training.rounds=1"))
    assert found.setting.theorem == 2
    assert found.setting.participants == (1, 1)
    assert "sampling of clients" in {term.name for term in found.final.terms}
    assert found.binding.formula.startswith("1 / (")
    assert "64 sqrt(N)" in found.conditions[0].formula


def test_lost_updates_count_as_partial_participation(tmp_path: Path) -> None:
    found = bound_in(train(tmp_path / "run", "network.clients=6", "network.dropout=0.4", "training.rounds=1"))
    assert found.setting.participants == (1, 1)  # 60 % of 3, rounded down
    assert found.setting.theorem == 2
    assert any("rounded down" in caveat for caveat in found.caveats)


def test_over_the_air_takes_theorem_3_with_the_recorded_error(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "uplink.name=aircomp", "network.profile=uniform")
    found = bound_in(folder)
    assert found.setting.theorem == 3
    # Cells of equal size: the sum over cells of an entry's error times the entries.
    expected = [r["edge_error"] * sum(r["submodel_parameters"]) for r in records(folder)]
    assert found.final.aggregation_error == pytest.approx(np.mean(expected))
    term = next(term for term in found.final.terms if term.name == "aggregation over the air")
    rate, smoothness = found.setting.learning_rate, found.final.constants.smoothness
    assert term.value == pytest.approx(2 * rate * smoothness / 3 * np.mean(expected))
    assert term.value > 0


def test_an_edge_round_without_updates_has_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Theorem 3 takes the mean over edge rounds of the cells' errors, summed over their entries."""
    noted: list[float] = []
    aggregate = OverTheAir.aggregate

    def noting(uplink: OverTheAir, state: State, *arguments: Any) -> tuple[State, torch.Tensor]:
        new, error = aggregate(uplink, state, *arguments)
        noted.append(error.item() * sum(tensor.numel() for tensor in state.values()))
        return new, error

    monkeypatch.setattr(OverTheAir, "aggregate", noting)
    settings = (
        "uplink.name=aircomp",
        "network.profile=uniform",
        "network.participants=1",
        "network.dropout=0.5",
    )
    folder = train(tmp_path / "run", *settings, "training.edge_rounds=6", "training.rounds=1")
    assert 0 < len(noted) < 2 * 6  # some edge rounds of the two cells were lost
    assert records(folder)[0]["aggregation_error"] == pytest.approx(sum(noted) / 6)


def test_over_the_air_with_some_clients_shows_both_terms(tmp_path: Path) -> None:
    found = bound_in(
        train(tmp_path / "run", "uplink.name=aircomp", "network.participants=1", "training.rounds=1")
    )
    names = [term.name for term in found.final.terms]
    assert names[4:6] == ["sampling of clients", "aggregation over the air"]
    assert any("No theorem of the paper" in caveat for caveat in found.caveats)


def test_uneven_sizes_raise_the_imbalance(tmp_path: Path) -> None:
    found = bound_in(train(tmp_path / "run", "method.sizes=[3, 1]", "training.rounds=1"))
    assert found.final.imbalance == pytest.approx(2 * 12 / 16)


def test_text_says_what_dominates_and_what_the_bound_is_worth(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command(capsys, str(run))
    text = " ".join(out.split())
    assert code == 0
    assert "The term 'model outside the submodel' dominates" in text
    assert "The bound is vacuous here" in text
    assert "nothing is proven for this run" in text
    assert "1 / (N (N+1) E^2 H^2 L)" in text
    assert "10 of 12,730 parameters are held by every cell" in text


def test_plot_is_one_page_with_every_term(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "bound.html"
    assert command(capsys, str(run), "--plot", str(page))[0] == 0
    text = page.read_text("utf-8")
    assert "model outside the submodel" in text
    assert "N is the number of cells" in text  # the letters of the formulas, and what they came to
    assert f'data-value="{bound_in(run).final.constants.smoothness}"' in text
    assert f'data-value="{bound_in(run).binding.limit}"' in text
    assert '<script src="http' not in text
    figure = on_screen(bound_plot(bound_in(run)))
    assert [trace.name for trace in figure.data[:3]] == [
        "measured ||grad f||^2",
        "its mean so far",
        "the bound",
    ]
    assert len(figure.data) == 3 + 6
    assert figure.layout.yaxis.type == "log"


def change_records(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    changed = records(folder)
    for record in changed:
        change(record)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in changed))


def test_a_small_problem_is_not_called_vacuous(copy: Path) -> None:
    def tame(record: dict[str, Any]) -> None:
        if "theory" in record:
            record["theory"] |= {"smoothness": 1e-6, "gradient_norm": 100.0, "model_norm": 1.0}

    change_records(copy, tame)
    found = bound_in(copy)
    assert found.holds
    assert not found.vacuous
    assert "meets all conditions" in " ".join(sentences(found))
    allowed = found.largest_local_steps.value
    limit = found.steps.binding(edge_rounds=2, local_steps=allowed).limit
    assert limit >= found.setting.learning_rate
    assert found.steps.binding(edge_rounds=2, local_steps=allowed + 1).limit < found.setting.learning_rate


def test_negative_estimates_count_as_zero(copy: Path) -> None:
    def noise(record: dict[str, Any]) -> None:
        if "theory" in record:
            record["theory"] |= {"cell_divergence": -0.1, "gradient_norm": -0.2}

    change_records(copy, noise)
    found = bound_in(copy)
    assert found.final.constants.cell_divergence == 0
    assert found.final.ratio is None
    assert "cannot be told from zero" in " ".join(sentences(found))
    assert math.isfinite(found.final.bound)


def test_departures_from_plain_sgd_are_told(tmp_path: Path) -> None:
    found = bound_in(train(tmp_path / "run", "training.momentum=0.5", "training.rounds=1"))
    assert "The theorems are about plain SGD; this run has momentum = 0.5." in found.caveats


def test_a_run_without_estimates_says_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(tmp_path / "run", "theory.every=0", "training.rounds=1")
    code, out, err = command(capsys, str(folder), "--json")
    assert (code, out) == (2, "")
    assert "--set theory.every=5" in err
    assert err.count("\n") == 1


def test_a_folder_without_a_run_names_those_inside(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it holds the runs run; give one of them"):
        bound_in(run.parent)
    with pytest.raises(UsageError, match="holds no run"):
        bound_in(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("method.name=hfedavg", "run of method 'hfedavg'"),
        ("method.scale=0.5", "method.scale = 0.5; the theorems are about submodels that are not scaled"),
    ],
)
def test_other_methods_have_no_theorem(setting: str, told: str, tmp_path: Path) -> None:
    folder = train(tmp_path / "run", setting, "training.rounds=1")
    with pytest.raises(UsageError, match=told):
        bound_in(folder)


def test_damaged_records_are_refused(copy: Path) -> None:
    change_records(copy, lambda record: record.pop("units"))
    with pytest.raises(UsageError, match=r"rounds\.jsonl, line 1 in .*: line\.units: this key is needed"):
        bound_in(copy)


@pytest.mark.parametrize("name", ["gradient_norm", "smoothness", "model_norm", "gradient_variance"])
@pytest.mark.parametrize("value", [1e308, "x", None, [[1.0]]])
def test_damaged_constants_are_refused(copy: Path, name: str, value: object) -> None:
    change_records(copy, lambda record: record.get("theory", {}).update({name: value}))
    with pytest.raises(UsageError, match=rf"rounds\.jsonl, line 1 in .*: line\.theory\.{name}"):
        bound_in(copy)


@pytest.mark.parametrize(
    ("clients", "dropout", "arriving"), [(10, 0.8, 2), (15, 0.8, 3), (20, 0.9, 2), (3, 0.4, 1)]
)
def test_rounding_errors_cost_no_participant(clients: int, dropout: float, arriving: int) -> None:
    config = checked(Config, {"network": {"dropout": dropout}}, "test")
    assert Setting(config, (clients,)).participants == (arriving,)
