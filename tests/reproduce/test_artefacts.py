"""The artefacts as they are written down: the paper's settings, and no verdict before a run."""

from pathlib import Path

import pytest

from histfl.errors import UsageError
from histfl.reproduce import TITLES
from histfl.reproduce.artefact import Artefact, Scale
from histfl.reproduce.fig4_fig5 import rounds_for
from histfl.reproduce.files import run_folder
from histfl.reproduce.registry import ARTEFACTS, artefacts, chosen_arms, scale_for
from histfl.reproduce.results import Results
from histfl.reproduce.runner import jobs_of
from histfl.runs.config import without

FULL, QUICK = Scale(), Scale(quick=True, seeds=(1,))


@pytest.mark.parametrize("name", TITLES)
@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["paper", "quick"])
def test_before_any_run_every_claim_is_open(name: str, scale: Scale) -> None:
    artefact = ARTEFACTS[name](scale)
    nothing = Results((), tuple(arm.labels for arm in artefact.arms))
    rows = artefact.rows(nothing)
    assert {row.verdict for row in rows} <= {"not yet run", ""}
    assert any(row.verdict == "not yet run" for row in rows)
    assert all(not panel.marks for panel in artefact.panels(nothing))
    assert bool(artefact.smaller) == scale.quick
    assert artefact.choices
    assert artefact.paper


def test_every_artefact_has_a_command() -> None:
    assert ARTEFACTS.keys() == TITLES.keys()


@pytest.mark.parametrize("name", TITLES)
def test_arms_are_told_apart_by_their_labels(name: str) -> None:
    artefact = ARTEFACTS[name](FULL)
    assert {arm.config.training.seed for arm in artefact.arms} == {1, 2, 3}
    assert len({arm.name for arm in artefact.arms}) == len(artefact.arms)
    assert len({run_folder(Path(), arm.config) for arm in artefact.arms}) == len(artefact.arms)
    for arm in artefact.arms:
        same = [other for other in artefact.arms if other.labels == arm.labels]
        assert same == [arm]


def test_figures_that_ask_for_the_same_run_share_it() -> None:
    fig4, fig5, fig6, fig7 = artefacts(["fig4", "fig5", "fig6", "fig7"], FULL)
    together = jobs_of([*fig4.arms, *fig5.arms], Path())
    # N in {2, 4, 6} are the fourth figure's arms too, but for the nine in which one cell trains.
    assert len(together) == len(fig5.arms) + 9
    shared = [work for work in together if len(work.configs) == 2]
    assert len(shared) == len(fig4.arms) - 9
    for work in shared:
        first, second = work.configs
        assert first.identity() == second.identity()
        assert first.training.rounds != second.training.rounds
    assert len(jobs_of([*fig6.arms, *fig7.arms], Path())) == len(fig6.arms) + len(fig7.arms) - 6


def test_runs_of_the_first_seed_come_first() -> None:
    works = jobs_of(ARTEFACTS["fig7"](FULL).arms, Path())
    seeds = [work.configs[0].training.seed for work in works]
    assert seeds == sorted(seeds)


def test_methods_are_compared_on_equal_terms() -> None:
    for name in ("fig4", "fig5", "table1", "table2"):
        arms = ARTEFACTS[name](FULL).arms
        ends = [("training", "rounds"), ("method", "name")]
        settings = {
            method: [
                without(arm.config.model_dump(mode="json"), ends)
                for arm in arms
                if arm.labels["method"] == method and "active_cells" not in arm.labels
            ]
            for method in ("hist", "hfedavg")
        }
        assert settings["hist"] == settings["hfedavg"]


def test_hfedavg_of_the_last_cell_differs_in_that_alone() -> None:
    for name, settings in (("fig4", 3), ("table1", 4)):
        arms = ARTEFACTS[name](FULL).arms
        alone = [arm for arm in arms if "active_cells" in arm.labels]
        assert len(alone) == 3 * settings
        for arm in alone:
            assert arm.config.network.active_cells == (arm.config.network.cells - 1,)
            whole = arm.config.network.model_copy(update={"active_cells": "all"})
            assert arm.config.model_copy(update={"network": whole}) in [other.config for other in arms]


def test_an_equal_load_is_an_equal_number_of_megabytes() -> None:
    whole = 5 * 238_510 * 4 / 2**20
    assert rounds_for(whole, "hfedavg", 4) == 1
    assert rounds_for(whole, "hist", 2) == 2
    assert rounds_for(whole, "hist", 4) == 4
    assert rounds_for(200, "hfedavg", 2) == 44


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_the_papers_entries_agree_with_each_other(name: str) -> None:
    """Its rounds times one cost ratio a round for each N give its cost ratios."""
    rows = ARTEFACTS[name](FULL).rows(Results((), ()))
    rounds = {row.what: int(row.paper.split(" and ")[1]) for row in rows if "global rounds" in row.what}
    ratios = {row.what: float(row.paper) for row in rows if row.what.endswith("HFedAvg over HIST's to 80%")}
    a_round: dict[str, list[float]] = {}
    for what, ratio in ratios.items():
        setting = what.partition(": cost")[0]
        pair = [
            next(number for name, number in rounds.items() if name.startswith(f"{setting}: {method},"))
            for method in ("HIST", "HFedAvg")
        ]
        a_round.setdefault(setting[-1], []).append(ratio * pair[0] / pair[1])
    assert a_round.keys() == {"2", "4"}
    for cells, values in a_round.items():
        assert max(values) / min(values) < 1.01
        assert 0.85 * int(cells) < values[0] <= 1.01 * int(cells)


def test_only_chooses_arms_by_name() -> None:
    both = artefacts(["fig4", "fig5"], FULL)
    assert len(chosen_arms(both, None)) == 45 + 60
    assert {arm.name for arm in chosen_arms(both, "hist-N4-shards-seed?")} == {
        f"hist-N4-shards-seed{seed}" for seed in (1, 2, 3)
    }
    assert len(chosen_arms(both, "fig4/*")) == 45
    with pytest.raises(UsageError, match="matches none of 105 arms"):
        chosen_arms(both, "nothing")


def test_the_scale_of_a_command() -> None:
    assert scale_for().seeds == (1, 2, 3)
    assert scale_for(quick=True).seeds == (1,)
    assert scale_for(seeds="4,5,4").seeds == (4, 5)
    with pytest.raises(UsageError, match="--seeds 'a'"):
        scale_for(seeds="a")
    with pytest.raises(UsageError, match="--precision 'half'"):
        scale_for(precision="half")
    table: Artefact = artefacts(["table2"], scale_for(precision="bf16"))[0]
    assert {arm.config.training.precision for arm in table.arms} == {"bf16"}
