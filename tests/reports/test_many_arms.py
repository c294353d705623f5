"""Comparisons of many arms: names, order, looks by what varies, maps of cost, and the level that both reach."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from runs_for_tests import write_run
from torch import nn

from histfl.errors import UsageError
from histfl.reports import answer_sentence, answer_table, gather, groups_of
from histfl.reports.factors import factors_of, looks_of
from histfl.reports.figures import FAR_APART, accuracy_plot, cell_plot, error_plot, part_plot
from histfl.reports.gather import Group
from histfl.reports.heat import UNREACHED, heat_plots
from histfl.reports.html import SMALL, controls_html, table_html
from histfl.reports.page import report_page
from histfl.reports.style import LINE_COLOURS, PART_COLOURS, TERM_COLOURS, cell_colours
from histfl.reports.tables import Cell, Column, OverSeeds, Table, as_csv
from histfl.reports.targets import best_first, targets_of
from histfl.runs.arms import arms
from histfl.runs.records import significant
from histfl.training.objective import Objective

RATES, STEPS = (0.005, 0.01, 0.02, 0.05), (4, 12)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    """Sixteen arms in the folders of a sweep; a larger rate is more accurate, and the smallest reaches 50 % never."""
    top = tmp_path_factory.mktemp("sweep")
    for method in ("hist", "hfedavg"):
        for place, rate in enumerate(RATES):
            for steps in STEPS:
                settings = (
                    f"method.name={method}",
                    f"training.learning_rate={rate}",
                    f"training.local_steps={steps}",
                    "training.seed=1",
                )
                targets = "training.targets=[0.5]"
                write_run(top / "+".join(settings), *settings, targets, offset=place / 20 - 0.12)
    return groups_of(gather([top]).runs)


def test_arms_are_named_by_what_differs_alone(groups: list[Group], tmp_path: Path) -> None:
    names = {group.name for group in groups}
    assert "hist, learning_rate=0.05, local_steps=12" in names  # no seed, which all have
    write_run(tmp_path / "a" / "method.name=hist+network.cells=4")
    write_run(tmp_path / "b" / "method.name=hfedavg+network.cells=4", "method.name=hfedavg")
    assert [group.name for group in groups_of(gather([tmp_path]).runs)] == ["a/hist", "b/hfedavg"]


def test_the_best_come_first(groups: list[Group]) -> None:
    table = answer_table(groups)
    assert table.rows[0][0].text.startswith("hist, learning_rate=0.05")
    costs = [row[6].value for row in table.rows]  # megabytes to 50 %
    known = [cost for cost in costs if cost is not None]
    assert 0 < len(known) < len(costs)
    assert costs == [*sorted(known), *[None] * (len(costs) - len(known))]
    lost = [row[1].value for row in table.rows[len(known) :]]
    assert lost == sorted(lost, reverse=True)


def test_colour_shows_one_factor_and_dash_another(groups: list[Group]) -> None:
    assert [(f.title, f.values) for f in factors_of(groups)] == [
        ("method", ("hfedavg", "hist")),
        ("local_steps", ("4", "12")),
        ("learning_rate", tuple(f"{rate:g}" for rate in RATES)),
    ]
    looks = looks_of(groups)
    plot = accuracy_plot(groups, "round")
    for group, line in zip(groups, plot.marks, strict=True):
        rate = group.runs[0].config.training.learning_rate
        assert line.colour == LINE_COLOURS[RATES.index(rate)]
        assert line.dash == ("solid" if group.method == "hfedavg" else "dash")
    assert [entry.name for entry in plot.key] == [
        *(f"learning_rate {rate:g}" for rate in RATES),
        "method hfedavg",
        "method hist",
    ]
    chips = controls_html(looks)
    assert chips.count("data-factor=") == 2 + 4 + 2
    assert controls_html(looks_of(groups[:6])) == ""  # a legend tells so few
    assert len({(line.colour, line.dash) for line in accuracy_plot(groups[:6], "round").marks}) == 6


def test_settings_that_go_together_are_one_factor_and_names_tell_the_rest(tmp_path: Path) -> None:
    for cells in (2, 4, 5, 10):
        for copy in ("a", "b"):
            settings = f"network.cells={cells}", f"training.learning_rate={cells / 100}"
            write_run(tmp_path / f"{copy}{cells}", *settings)
    factors = factors_of(groups_of(gather([tmp_path]).runs))
    assert [(factor.title, len(factor.values)) for factor in factors] == [("cells", 4), ("run", 8)]


def test_a_map_shows_the_cost_over_two_factors_for_each_value_of_a_third(groups: list[Group]) -> None:
    plots = heat_plots(groups)
    assert [plot.title for plot in plots] == [
        f"MB a client to 50% accuracy: local_steps {steps}" for steps in STEPS
    ]
    (heat,) = plots[1].marks
    table = {row[0].text: row[6] for row in answer_table(groups).rows}
    for row, method in enumerate(("hfedavg", "hist")):
        for column, rate in enumerate(RATES):
            cell = table[f"{method}, learning_rate={rate:g}, local_steps=12"]
            assert heat.texts[row][column] == (UNREACHED if cell.value is None else cell.text)
            assert (cell.value is None) == np.isnan(heat.values[row, column])
    assert heat_plots(groups[:4]) == []


def test_a_narrow_field_has_room_for_what_is_not_reached(groups: list[Group]) -> None:
    for plot in heat_plots(groups):
        (heat,) = plot.marks
        texts = np.array(heat.texts)
        assert np.isnan(heat.values).any()
        assert set(texts[np.isnan(heat.values)]) == {UNREACHED}
        assert plot.about == f"The darker, the better; {UNREACHED}: not reached."


def test_a_picture_that_many_share_is_named_by_the_settings_that_they_have_in_common(tmp_path: Path) -> None:
    for cells, rate in itertools.product((2, 4), RATES):
        settings = f"network.cells={cells}", f"training.learning_rate={rate}"
        write_run(tmp_path / "two" / "+".join(settings), *settings)
        if cells == 2:
            write_run(tmp_path / "one" / settings[1], *settings)
    two, one = (report_page("t", gather([tmp_path / folder])) for folder in ("two", "one"))
    for cells in (2, 4):
        assert f"<b>cells={cells}</b>A stripe is a unit" in two
        assert f"<b>Samples by client and label: cells={cells}</b>" in two
    assert "<b>all 4</b>A stripe is a unit" in one


def test_words_in_tables_stand_to_the_left_and_numbers_to_the_right() -> None:
    columns = Column("a", "a"), Column("b", "b"), Column("c", "c")
    row = Cell("x", "x"), Cell("in words", "in words"), Cell("1.00", 1.0)
    text = table_html(Table(columns, (row,)), "t", "t")
    assert '<th scope="col" class="words">b</th><th scope="col">c</th>' in text
    assert '<td class="words" data-value="in words">in words</td><td data-value="1.0">1.00</td>' in text


@pytest.mark.parametrize(
    ("value", "shown"), [(24.95, "24.9"), (25.0, "25.0"), (7.8, "7.80"), (100.4, "100"), (0.05, "0.0500")]
)
def test_numbers_of_a_column_have_as_many_digits(value: float, shown: str) -> None:
    assert significant(value) == shown


def test_colours_mean_one_thing_on_a_page() -> None:
    kinds = [LINE_COLOURS, PART_COLOURS.values(), TERM_COLOURS, cell_colours(6)]
    every = [colour.lower() for kind in kinds for colour in kind]
    assert len(set(every)) == len(every)


def test_costs_far_apart_have_a_logarithmic_axis(groups: list[Group], tmp_path: Path) -> None:
    assert accuracy_plot(groups, "megabytes_per_client").x.scale == "linear"  # four times
    for name, rounds in (("short", 2), ("long", 2 * int(FAR_APART) + 1)):
        write_run(tmp_path / name, rounds=rounds)
    far = groups_of(gather([tmp_path]).runs)
    for key in ("megabytes_per_client", "simulated_seconds", "round"):
        axis = accuracy_plot(far, key).x
        assert (axis.scale, axis.from_zero) == ("log", False)


def test_plots_by_group_say_whose_their_marks_are(groups: list[Group]) -> None:
    everyone = list(range(len(groups)))
    assert [line.group for line in cell_plot(groups).marks] == everyone
    for bars in part_plot(groups).marks:
        assert list(bars.groups) == everyone


@pytest.mark.parametrize("rates", [(0.01,), (0.01, 0.02, 0.05)])
def test_what_the_air_adds_is_in_the_looks_of_the_other_plots(
    tmp_path: Path, rates: tuple[float, ...]
) -> None:
    for uplink in ("fdma", "aircomp"):
        for rate in rates:
            for method in ("hist", "hfedavg"):
                settings = (
                    f"method.name={method}",
                    f"training.learning_rate={rate}",
                    f"uplink.name={uplink}",
                )
                error = 1e-6 if uplink == "aircomp" else 0.0
                write_run(tmp_path / "+".join(settings), *settings, error=error)
    found = groups_of(gather([tmp_path]).runs)
    noisy = error_plot(found)
    assert len(noisy.marks) == 2 * len(rates)
    names = [[entry.name for entry in plot.key] for plot in (noisy, accuracy_plot(found, "round"))]
    assert names[0] == names[1]
    looks = {(line.name, line.colour, line.dash, line.group) for line in accuracy_plot(found, "round").marks}
    assert {(line.name, line.colour, line.dash, line.group) for line in noisy.marks} < looks


def test_of_arms_that_cost_the_same_the_sentence_names_the_one_that_the_table_has_first(
    tmp_path: Path,
) -> None:
    for uplink, offset in (("aircomp", 0.0), ("fdma", 0.001)):
        for method in ("hist", "hfedavg"):
            settings = f"method.name={method}", f"uplink.name={uplink}"
            write_run(tmp_path / "+".join(settings), *settings, "training.targets=[0.5]", offset=offset)
    for rate in (0.1, 0.2):
        write_run(tmp_path / f"{rate}", f"training.learning_rate={rate}", "training.targets=[0.5]", rounds=2)
    found = groups_of(gather([tmp_path]).runs)
    first = answer_table(found).rows[0][0].text
    assert first == "hist, fdma"
    assert f"To 50% accuracy, {first} sends" in answer_sentence(found)


def test_the_sentence_is_of_the_cheapest_and_its_target_stands_in_brief_tables(tmp_path: Path) -> None:
    """HFedAvg alone comes to 73 %; its ratio is larger at the smaller rate, and its cost smaller at the larger one."""
    offsets = {("hist", 0.1): 0.0, ("hist", 0.2): 0.12, ("hfedavg", 0.1): -0.08, ("hfedavg", 0.2): 0.13}
    for (method, rate), offset in offsets.items():
        settings = f"method.name={method}", f"training.learning_rate={rate}"
        write_run(tmp_path / "+".join(settings), *settings, "training.targets=[0.4,0.73]", offset=offset)
    found = groups_of(gather([tmp_path]).runs)
    table = answer_table(found)
    costs = {row[0].text: row[6] for row in table.rows}
    assert costs["hist, learning_rate=0.2"].value < costs["hist, learning_rate=0.1"].value
    said = answer_sentence(found)
    assert said.startswith("To 40% accuracy, hist, learning_rate=0.2 sends ")
    assert "hierarchical FedAvg with the same settings sends" in said
    assert [column.group for column in table.brief.columns if column.group] == ["to 40%"] * 3 + ["to 73%"] * 3


def test_a_baseline_of_other_settings_is_not_said_to_have_the_same(tmp_path: Path) -> None:
    for cells in (2, 4):
        for method, rate in (("hist", 0.1), ("hfedavg", 0.2)):
            settings = f"method.name={method}", f"network.cells={cells}", f"training.learning_rate={rate}"
            write_run(tmp_path / "+".join(settings), *settings, "training.targets=[0.4]")
    found = groups_of(gather([tmp_path]).runs)
    assert "FedAvg of the same model, data and network sends" in answer_sentence(found)
    assert "FedAvg sends" in answer_sentence([group for group in found if "cells=4" in group.name])


def test_where_no_target_is_reached_by_both_the_best_level_that_both_reach_is_compared(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "hist", "training.targets=[0.99]", offset=0.0432)
    write_run(tmp_path / "hfedavg", "method.name=hfedavg", "training.targets=[0.99]")
    found = groups_of(gather([tmp_path]).runs)
    assert targets_of(found) == ["0.6", "0.99"]  # HFedAvg's best
    assert answer_sentence(found).startswith(
        "To 60% accuracy, the best that both reach, hist sends 3.5 MB a client where hierarchical FedAvg sends 16.8 MB"
    )
    columns = [column.key for column in answer_table(found).columns]
    assert columns[-6:-3] == ["to_0.6_round", "to_0.6_megabytes_per_client", "to_0.6_simulated_seconds"]


def test_where_lower_is_better_the_level_is_the_lower_that_both_reach_and_the_lowest_come_first(
    tmp_path: Path,
) -> None:
    """Made-up losses are 3 / round: six rounds come to 0.5, five to 0.6."""
    for method, rounds in (("hist", 6), ("hfedavg", 5)):
        folder = write_run(tmp_path / method, f"method.name={method}", "training.targets=[]", rounds=rounds)
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "best_loss": summary["final_loss"]}))
    runs = gather([tmp_path]).runs
    for run in runs:
        run.__dict__["objective"] = Objective(nn.functional.cross_entropy, {"loss": Loss()}, "loss")
    found = groups_of(runs)
    assert targets_of(found) == ["0.6"]
    sentence = answer_sentence(found)
    assert sentence.startswith("To a loss of 0.6, the best that both reach, hist sends 3.5 MB a client")
    assert [group.name for group in best_first(found)] == ["hist", "hfedavg"]
    assert answer_table(found).rows[1][1].text == "0.5"


@dataclass(frozen=True)
class Loss:
    title: str = "loss"
    higher_is_better: bool = False
    is_share: bool = False

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="sum").double()

    def value(self, sums: torch.Tensor, samples: int) -> float:
        return float(sums) / samples


def test_an_interval_is_students() -> None:
    over = OverSeeds((1.0, 2.0, 3.0), 4)
    assert not over.complete
    assert (over.mean, over.deviation) == (2.0, 1.0)
    assert over.interval == pytest.approx(4.302652729696142 / 3**0.5)  # t of two degrees of freedom, 97.5 %
    one = OverSeeds((0.5,), 1)
    assert (one.mean, one.deviation, one.interval) == (0.5, None, None)


def test_the_page_shows_one_rounding_and_the_seeds(tmp_path: Path) -> None:
    for seed, offset in ((1, 0.0), (2, 0.0015)):
        write_run(
            tmp_path / f"seed{seed}", f"training.seed={seed}", "training.targets=[0.601]", offset=offset
        )
    text = report_page("t", gather([tmp_path]))
    assert "is at 60.1% accuracy" in text
    assert f">60.1%{SMALL}>± 0.1</small>{SMALL}>60.0% to 60.2%</small>" in text
    assert f"1 of 2 seeds{SMALL}>(these: 6)</small>" in text
    assert "59.1% to 61.0%" in text  # the mean's 95 % interval
    assert "0.601<" not in text
    table = answer_table(groups_of(gather([tmp_path]).runs))
    assert "1 of 2 seeds (these: 6)" in [cell.in_full for cell in table.rows[0]]  # in the terminal
    (row,) = csv.DictReader(as_csv(table).splitlines())
    assert (row["to_0.601_round"], row["to_0.601_round_seeds"]) == ("6", "1")  # of the seed that reached it


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("training.seed=1..4", ["1", "2", "3", "4"]),
        ("training.seed=7,1..2", ["7", "1", "2"]),
        ("training.targets=[0.1,0.2],[0.3]", ["0.1+0.2", "0.3"]),
    ],
)
def test_a_range_is_every_number_of_it(given: str, names: list[str]) -> None:
    found = [arm.name.partition("=")[2] for arm in arms("quickstart", [], [given])]
    assert found == names


@pytest.mark.parametrize("given", ["4..1", "1..999999999999"])
def test_ranges_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r"the lowest first, such as 1\.\.10"):
        next(arms("quickstart", [], [f"training.seed={given}"]))


def test_the_looks_in_the_page_are_those_of_the_lines(groups: list[Group]) -> None:
    looks = json.loads(looks_of(groups).as_json())
    by, dashed = looks["factors"][looks["colour"]], looks["factors"][looks["dash"]]
    for place, line in enumerate(accuracy_plot(groups, "round").marks):
        assert by["colours"][by["of"][place]] == line.colour
        assert dashed["dashes"][dashed["of"][place]] == line.dash
