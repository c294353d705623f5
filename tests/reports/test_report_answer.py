"""The report's words and numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_for_tests import write_run

from histfl.reports import answer_sentence, answer_table, gather, groups_of, runs_table
from histfl.reports.figures import accuracy_plot, cell_plot, part_plot, size_plot
from histfl.reports.gather import POINTS, Group, baseline_of
from histfl.reports.html import escape, script_json, table_html
from histfl.reports.page import report_page, rerun_command
from histfl.reports.plots import on_screen
from histfl.runs.records import in_megabytes
from histfl.runs.store import RunFolder


def groups_in(folder: Path) -> list[Group]:
    return groups_of(gather([folder]).runs)


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """HIST at a quarter of HFedAvg's cost a round, equally accurate."""
    write_run(tmp_path / "hist", "training.targets=[0.5, 0.99]")
    write_run(tmp_path / "hfedavg", "method.name=hfedavg", "training.targets=[0.5, 0.99]")
    return tmp_path


def test_the_sentence_gives_the_savings_at_the_highest_target_that_both_reach(compared: Path) -> None:
    # accuracy 0.9 n / (n + 3) passes 0.5 in round 4: 0.7 * 4 MB and 0.11 * 4 s against four times that
    assert answer_sentence(groups_in(compared)) == (
        "To 50% accuracy, hist sends 2.8 MB a client where hierarchical FedAvg sends 11.2 MB: 4.0 times less. "
        "It takes 4.0 times less simulated time."
    )


def test_the_table_has_the_cost_of_each_target_and_its_ratio(compared: Path) -> None:
    table = answer_table(groups_in(compared))
    rows = {row[0].text: dict(zip([c.key for c in table.columns], row, strict=True)) for row in table.rows}
    hist, base = rows["hist"], rows["hfedavg"]
    assert hist["to_0.5_megabytes_per_client"].value == pytest.approx(2.8)
    assert hist["to_0.5_megabytes_per_client"].note == "4.0× less"
    assert (hist["to_0.5_round"].value, hist["to_0.5_round"].note) == (4, "equal")
    assert base["to_0.5_megabytes_per_client"].note == ""
    assert (hist["to_0.99_round"].text, hist["to_0.99_round"].value) == ("not reached", None)


def test_a_target_that_one_run_was_asked_for_is_looked_up_in_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "hist", "training.targets=[0.5]")
    write_run(tmp_path / "hfedavg", "method.name=hfedavg", "training.targets=[0.99]")
    groups = groups_in(tmp_path)
    assert answer_sentence(groups).startswith("To 50% accuracy, hist sends 2.8 MB a client where")
    table = runs_table(gather([tmp_path]).runs)
    place = [column.key for column in table.columns].index("to_0.5_round")
    assert [row[place].value for row in table.rows] == [4, 4]


def test_small_models_megabytes_keep_their_digits(tmp_path: Path) -> None:
    write_run(tmp_path / "hist", rounds=1)
    assert "0.7 MB a client" in answer_sentence(groups_in(tmp_path))
    assert [in_megabytes(value) for value in (0, 0.00185, 0.7, 1, 12.34)] == [
        "0.0",
        "0.00185",
        "0.7",
        "1.0",
        "12.3",
    ]


def test_the_table_of_runs_has_the_summaries_own_numbers(compared: Path) -> None:
    table = runs_table(gather([compared]).runs)
    for row in table.rows:
        summary = RunFolder(compared / row[0].text).read_summary()
        for column, cell in zip(table.columns[1:], row[1:], strict=True):
            if not column.group:
                assert cell.value == summary[column.key]
            else:
                _, target, key = column.key.split("_", 2)
                reached = summary["to_target"][target]
                assert cell.value == (reached[key] if reached else None)


def test_seeds_are_one_arm_with_a_mean_and_a_range(tmp_path: Path) -> None:
    for seed, offset in ((1, 0.0), (2, 0.02), (3, 0.04)):
        write_run(tmp_path / f"method.name=hist+training.seed={seed}", f"training.seed={seed}", offset=offset)
    (group,) = groups_in(tmp_path)
    assert group.label == "hist (3 seeds)"
    accuracy = answer_table([group]).rows[0][1]
    assert (accuracy.with_deviation, accuracy.reach) == ("62.0% ± 2.0", "60.0% to 64.0%")
    band, line = on_screen(accuracy_plot([group], "round")).data
    assert np.allclose(line.y, np.array([0.9 * n / (n + 3) + 0.02 for n in range(1, 7)]))
    assert np.allclose(band.y[:6] - band.y[:5:-1], 0.04)
    assert band.legendgroup == line.legendgroup  # hidden together


def test_a_target_that_only_some_seeds_reach_has_no_mean(tmp_path: Path) -> None:
    for seed, offset in ((1, 0.0), (2, 0.1)):
        write_run(tmp_path / f"seed{seed}", f"training.seed={seed}", "training.targets=[0.65]", offset=offset)
    (group,) = groups_in(tmp_path)
    cell = answer_table([group]).rows[0][5]
    assert (cell.in_full, cell.value) == ("1 of 2 seeds (these: 5)", None)


def test_the_same_run_twice_is_not_two_seeds(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    assert [group.label for group in groups_in(tmp_path)] == ["a", "b"]


def test_an_arm_is_compared_with_the_baseline_of_its_own_setting(tmp_path: Path) -> None:
    for cells in (2, 4):
        for method in ("hist", "hfedavg"):
            write_run(tmp_path / f"{method}-{cells}", f"method.name={method}", f"network.cells={cells}")
    write_run(tmp_path / "hist-5", "network.cells=5")
    groups = {group.name: group for group in groups_in(tmp_path)}
    found = {name: baseline_of(group, list(groups.values())) for name, group in groups.items()}
    assert found["hist-2"] is groups["hfedavg-2"]
    assert found["hist-4"] is groups["hfedavg-4"]
    assert found["hist-5"] is None  # no baseline of five cells


def test_an_only_baseline_may_be_trained_and_sent_in_another_way(tmp_path: Path) -> None:
    write_run(tmp_path / "hist", "uplink.name=aircomp", "training.learning_rate=0.1", "training.rounds=9")
    write_run(tmp_path / "hfedavg", "method.name=hfedavg")
    assert "hist sends" in answer_sentence(groups_in(tmp_path))
    write_run(tmp_path / "hfedavg-2", "method.name=hfedavg", "uplink.name=tdma")  # two: which one is meant?
    assert "no hierarchical FedAvg run" in answer_sentence(groups_in(tmp_path))


@pytest.mark.parametrize("other", ["data.name=fashion-mnist", "network.clients=8", "model.hidden=16"])
def test_an_only_baseline_on_another_task_is_not_compared_with(tmp_path: Path, other: str) -> None:
    write_run(tmp_path / "hist", other)
    write_run(tmp_path / "hfedavg", "method.name=hfedavg")
    groups = groups_in(tmp_path)
    assert answer_sentence(groups) == (
        "Accuracy against what it cost. There is no hierarchical FedAvg run of the same model, data and network "
        "to compare with."
    )
    table = answer_table(groups)
    assert {
        cell.note
        for row in table.rows
        for column, cell in zip(table.columns, row, strict=True)
        if column.group
    } == {""}
    assert "ratio to hierarchical FedAvg" not in report_page("t", gather([tmp_path]))


def test_a_sweeps_arm_is_named_by_its_settings(tmp_path: Path) -> None:
    write_run(tmp_path / "method.name=hist+network.cells=5", "network.cells=5")
    write_run(tmp_path / "c++=d")
    assert [group.name for group in groups_in(tmp_path)] == ["c++=d", "hist, cells=5"]


def test_one_run_alone_is_described(tmp_path: Path) -> None:
    write_run(tmp_path / "only")
    assert answer_sentence(groups_in(tmp_path)) == (
        "only is at 60.0% accuracy after 6 rounds, 4.2 MB a client and 0.660 simulated seconds."
    )


def test_the_figures_show_the_records(compared: Path) -> None:
    groups = groups_in(compared)
    hist = [group.name for group in groups].index("hist")
    compute, uplink = on_screen(part_plot(groups)).data
    assert compute.x[hist] == pytest.approx(0.01)
    assert uplink.x[hist] == pytest.approx(0.1)
    assert np.allclose(on_screen(cell_plot(groups)).data[hist].y, [0.11 / (cell + 1) for cell in range(4)])
    drawn = on_screen(size_plot(groups)).data[hist]
    assert np.isnan(drawn.y).sum() == 3  # gaps between the cells' lines
    assert drawn.y[6 + 1] == 1001  # cell 1 in round 1


@pytest.mark.parametrize("rounds", [1, 2, 199, 200, 201, 777])
def test_lines_are_thinned_and_keep_both_ends(tmp_path: Path, rounds: int) -> None:
    write_run(tmp_path / "run", rounds=rounds)
    (group,) = groups_in(tmp_path)
    assert len(group.shown) == min(rounds, POINTS)
    assert (group.shown[0], group.shown[-1]) == (0, rounds - 1)


def test_the_command_runs_the_folders_own_configuration(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a run; rm -rf")
    (run,) = gather([folder]).runs
    assert rerun_command(run) == (
        f"histfl run '{folder}/config.toml' --out '{folder}-again' --engine reference --device cpu"
    )


@settings(deadline=None)
@given(st.text())
def test_json_in_the_page_cannot_leave_its_element(text: str) -> None:
    safe = script_json(json.dumps({"name": text}))
    assert not set("<>&") & set(safe)
    assert json.loads(safe) == {"name": text}


@settings(deadline=None)
@given(st.text(alphabet="<>&\"'/ab="))
def test_names_in_tables_are_text(name: str) -> None:
    from histfl.reports.tables import Cell, Column, Table

    table = Table(
        (Column("run", name), Column("x", "x", name)), ((Cell(name, name), Cell(name, name, name)),)
    )
    plain = table_html(
        Table((Column("run", "0"), Column("x", "x", "0")), ((Cell("0", "0"), Cell("0", "0", "0")),)), "0", "t"
    )
    written = table_html(table, name, "t").replace("<wbr>", "")  # where a name may take another line
    if name:
        assert written.count("<") == plain.count("<")  # no tag more than for a harmless name
        assert escape(name) in written
