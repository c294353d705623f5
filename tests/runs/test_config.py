"""Where a configuration's keys come from: a preset or a file, and what --set changes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Answer

from histfl.planning.request import PlanRequest
from histfl.runs.config import Config, TrainingSettings
from histfl.runs.loading import load_config


@pytest.mark.parametrize(
    "settings", list(itertools.permutations(["model.width=40", "model.name=mine:net", "model.depth=2"]))
)
def test_a_named_models_options_stay_whatever_their_order(settings: tuple[str, ...]) -> None:
    model = load_config("quickstart", settings).model
    assert (model.name, model.options) == (
        "mine:net",
        {"width": 40, "depth": 2},
    )  # the preset's hidden is gone


def test_the_same_model_named_again_keeps_its_options(tmp_path: Path) -> None:
    assert load_config("quickstart", ["model.name=mlp"]).model.options == {"hidden": 300}
    unnamed = tmp_path / "config.toml"
    unnamed.write_text("[model]\nhidden = 20\n")
    assert load_config(str(unnamed), ["model.name=mlp"]).model.options == {"hidden": 20}
    assert load_config(str(unnamed), ["model.name=lenet5"]).model.options == {}


def test_a_network_file_lies_beside_the_configuration_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, histfl_command: Callable[..., Answer]
) -> None:
    for folder, cells in (("mine", 3), ("elsewhere", 2)):
        (tmp_path / folder / "networks").mkdir(parents=True)
        network = f"[[cells]]\ncount = {cells}\nclients = 2\n"
        (tmp_path / folder / "networks" / "small.toml").write_text(network)
    config = tmp_path / "mine" / "config.toml"
    config.write_text(
        "[model]\nhidden = 16\n[data]\nname = 'fashion-mnist-mini'\n[network]\nprofile = 'networks/small.toml'\n"
        "[training]\nrounds = 1\nedge_rounds = 1\nlocal_steps = 1\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    first = histfl_command("run", config, "--device", "cpu", "--out", "run", "--json")
    assert first.code == 0, first.err
    assert first.json["cells"] == 3
    monkeypatch.chdir(tmp_path)  # the kept configuration runs from anywhere
    again = histfl_command("run", "elsewhere/run/config.toml", "--device", "cpu", "--out", "again", "--json")
    assert again.json["final_accuracy"] == first.json["final_accuracy"]
    assert PlanRequest(str(config)).config().network.cells == 3


def test_a_network_file_of_a_setting_lies_below_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    config = tmp_path / "configs" / "config.toml"
    config.write_text("[network]\nprofile = 'theirs.toml'\n")
    monkeypatch.chdir(tmp_path)
    settings = ["network.profile=mine.toml"]
    for source in (str(config), "mlp"):
        assert load_config(source, settings).network.profile == str(tmp_path / "mine.toml")
    assert load_config("mlp", ["network.profile=paper"]).network.profile == "paper"


def test_a_setting_added_later_leaves_older_runs_what_they_are() -> None:
    class LaterTraining(TrainingSettings):
        added: int = 3

    class Later(Config):
        training: LaterTraining = LaterTraining()

    assert Later().fingerprint() == Config().fingerprint()
    assert Later(training=LaterTraining(added=4)).fingerprint() != Config().fingerprint()
