"""What a run keeps for its report, against what it did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from histfl.data import label_mix
from histfl.runs import pictures as module
from histfl.runs.build import Experiment, build, load_ingredients
from histfl.runs.execute import execute
from histfl.runs.loading import load_config
from histfl.runs.pictures import NOBODY, SHARED, label_picture, partition_picture
from histfl.runs.schema import Pictures
from histfl.runs.store import RunFolder
from histfl.training import hist

SMALL = ("model.hidden=16", "network.clients=8", "training.edge_rounds=1", "training.local_steps=1")


def experiment(*settings: str) -> Experiment:
    config = load_config("quickstart", [*SMALL, "training.rounds=2", *settings])
    return build(config, load_ingredients(config), device="cpu")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("method.name=overlap",),
        ("method.name=hfedavg",),
        ("method.name=rolling", "method.roll=3", "method.sizes=[0.5,0.25,0.25,0.1]"),
        ("method.name=nested",),
    ],
)
def test_the_partition_drawn_is_the_one_trained(settings: tuple[str, ...], tmp_path: Path) -> None:
    made = experiment(*settings)
    start = {name: tensor.detach().clone() for name, tensor in made.model.named_parameters()}
    *_, last = hist(made.hist, start, made.engine, first_round=0, rounds=2)
    run = execute(made, RunFolder(tmp_path / "run"))
    kept = json.loads((tmp_path / "run" / "pictures.json").read_text())
    assert kept == run.pictures
    assert Pictures.model_validate(kept).partition.round == 2
    assert len(kept["partition"]["layers"]) == len(made.hist.plan.groups)
    for index, layer in enumerate(kept["partition"]["layers"]):
        for unit, owner in enumerate(layer["owner"]):
            holders = [cell for cell, sub in enumerate(last.submodels) if unit in sub.kept[index].tolist()]
            assert len(holders) > 1 if owner == SHARED else holders == ([] if owner == NOBODY else [owner])
        assert layer["held"] == [len(submodel.kept[index]) for submodel in last.submodels]


def test_the_label_mix_drawn_is_the_splits() -> None:
    made = experiment()
    picture = label_picture(made)
    mix = label_mix(made.hist.task.split, made.hist.task.data.targets.numpy(), 10)
    assert picture["client_counts"] == mix.tolist()
    assert picture["cell_counts"] == mix.reshape(4, 2, 10).sum(axis=1).tolist()
    assert picture["shown_cells"] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_large_pictures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, bound in (("UNITS", 5), ("CLIENTS", 3), ("CLASSES", 4), ("CELLS", 2)):
        monkeypatch.setattr(module, name, bound)
    made = experiment()
    (layer,) = partition_picture(made, {"round": 1, "units": [[4]] * 4})["layers"]
    assert (layer["units"], len(layer["owner"])) == (16, 5)
    assert sum(layer["held"]) == 5 - sum(owner > 1 for owner in layer["owner"])  # of the first two cells
    labels = label_picture(made)
    assert labels["shown_clients"] == [0, 3, 7]
    assert np.array(labels["client_counts"]).shape == (3, 4)
    assert np.array(labels["cell_counts"]).shape == (2, 4)
    assert (labels["clients"], labels["classes"]) == (8, 10)
