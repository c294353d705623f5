"""Runs in which the cloud samples the cells of a round: records, report, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from histfl.errors import UsageError
from histfl.planning.request import PlanRequest, make_plan
from histfl.reports import gather, groups_of, write_report
from histfl.reports.bound import bound_in
from histfl.reports.figures import cell_means
from histfl.reports.pictures import partition_plot, partition_table
from histfl.reports.plots import on_screen
from histfl.runs.build import build, load_ingredients
from histfl.runs.execute import execute
from histfl.runs.loading import load_config
from histfl.runs.records import scalars
from histfl.runs.run import Run
from histfl.runs.store import RunFolder

SETTINGS = (
    "model.hidden=16",
    "network.cells=6",
    "network.clients=18",
    "network.active_cells=2",
    "training.rounds=5",
    "training.edge_rounds=1",
    "training.local_steps=1",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sampled") / "run"


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    config = load_config("quickstart", SETTINGS)
    return execute(build(config, load_ingredients(config), device="cpu"), RunFolder(folder))


def test_the_report_names_cells_by_their_number_in_the_network(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    (group,) = groups_of(gather([folder]).runs)
    cells, means = cell_means(group)
    for cell, mean in zip(cells, means, strict=True):
        own = [
            record["latency"]["cell_seconds"][record["active_cells"].index(cell)]
            for record in run.records
            if cell in record["active_cells"]
        ]
        assert mean == pytest.approx(np.mean(own))
    assert set(cells) == {cell for record in run.records for cell in record["active_cells"]}

    last, partition = run.records[-1]["active_cells"], run.pictures["partition"]
    (layer,) = partition["layers"]
    shown = np.array(on_screen(partition_plot(partition)).data[0].customdata)[0]
    assert shown.tolist() == [last[owner] for owner in layer["owner"]]
    assert [column.title for column in partition_table(partition).columns[1:]] == [f"cell {c}" for c in last]
    write_report(tmp_path / "report.html", "sampled", gather([folder]))
    assert f"cell {last[0]}" in (tmp_path / "report.html").read_text("utf-8")


def test_records_stay_small_and_scalars_have_no_cell_of_their_own(run: Run) -> None:
    assert "latency/seconds" in scalars(run.records[-1])
    assert not any("cell_0" in name for name in scalars(run.records[-1]) | scalars(run.summary))
    assert run.summary["clients_per_cell"] is None
    record = run.records[-1]
    assert len(record["latency"]["cell_seconds"]) == len(record["units"]) == 2


def test_the_theorems_and_plans_are_about_all_cells(run: Run, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"network\.active_cells = 2; the theorems"):
        bound_in(folder)
    with pytest.raises(UsageError, match=r"network\.active_cells = 2: a plan"):
        make_plan(PlanRequest("quickstart", settings=("network.active_cells=2",)))
