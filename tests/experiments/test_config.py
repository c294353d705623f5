"""Where a configuration's keys come from: a preset or a file, and what --set changes of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from histfl.experiments.config import load_config


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
