"""Runs on texts: from the configuration to token ids, a LoRA model and its folder."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_transformers import classifier, save, tokens

from histfl.data import TensorData
from histfl.errors import UsageError
from histfl.network import Network
from histfl.runs.build import Ingredients, build, load_ingredients
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.runs.named import load_data
from histfl.runs.store import RunFolder
from histfl.settings import checked


def config(**sections: dict[str, Any]) -> Config:
    tables: dict[str, Any] = {
        "data": {"split": "iid"},
        "network": {"cells": 2, "clients": 4},
        "training": {"local_steps": 2, "edge_rounds": 1, "batch_size": 3, "rounds": 1},
    }
    for section, keys in sections.items():
        tables[section] = tables.get(section, {}) | keys
    return checked(Config, tables, "test")


def texts(samples: int) -> TensorData:
    return TensorData(tokens(samples), torch.arange(samples) % 3, ("a", "b", "c"))


def test_a_folder_keeps_what_was_trained_and_resumes(tmp_path: Path) -> None:
    """The frozen base is not written again; a run goes on from what is kept."""

    def run(folder: str, rounds: int) -> dict[str, torch.Tensor]:
        ingredients = Ingredients(classifier("llama"), texts(30), texts(9), Network.uniform(2, clients=4))
        made = build(config(training={"rounds": rounds}), ingredients, device="cpu")
        execute(made, RunFolder(tmp_path / folder), resume=True)
        return load_file(tmp_path / folder / "model.safetensors")

    run("twice", 1)
    kept, whole = run("twice", 2), run("once", 2)
    pairs = {name for name in kept if ".lora_" in name}
    assert kept.keys() - pairs == {"head.weight", "head.bias", "mean", "spread"}
    assert len(pairs) == 2 * 2 * 2  # two layers, query and value, A and B
    assert all(torch.equal(kept[name], value) for name, value in whole.items())


def test_a_part_of_the_test_set() -> None:
    ingredients = Ingredients(classifier("bert"), texts(30), texts(20), Network.uniform(2, clients=4))
    few, again, all_ = (
        build(config(data={"test_samples": most}), ingredients, device="cpu").test for most in (7, 7, 20)
    )
    assert len(few) == 7
    assert torch.equal(few.inputs, again.inputs)
    assert torch.equal(all_.inputs, ingredients.test.inputs)
    rows = {tuple(row) for row in ingredients.test.inputs.tolist()}
    assert all(tuple(row) in rows for row in few.inputs.tolist())


def test_texts_need_a_tokenizer() -> None:
    with pytest.raises(UsageError, match=r"'20newsgroups' is text: use model\.name = 'lora'"):
        load_data(config(data={"name": "20newsgroups"}))


@pytest.mark.skipif(
    not os.environ.get("HISTFL_DATA"), reason="HISTFL_DATA names no folder with the data sets"
)
def test_the_newsgroups_in_the_models_own_tokens(tmp_path: Path) -> None:
    save("gpt2", tmp_path, ["the", "of", "From:", "Subject:"])
    asked = config(
        data={"name": "20newsgroups", "max_length": 12, "test_samples": 40},
        model={"name": "lora", "base": str(tmp_path), "rank": 4},
    )
    ingredients = load_ingredients(asked)
    assert ingredients.train.inputs.shape == (11_314, 12)
    assert set(ingredients.train.inputs[:, 0].tolist()) <= {-1, 0, 1, 2, 3, 4}
    run = execute(build(asked, ingredients, device="cpu"))
    assert run.summary["submodel_parameters"] == [2 * 2 * (12 + 36) + 20 * 13] * 2
