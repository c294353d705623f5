"""Settings that several artefacts share."""

from __future__ import annotations

from typing import Any

from histfl.reproduce.artefact import Choice, Scale
from histfl.reproduce.results import Repeats, Results

LOAD, LOAD_LABEL = "megabytes_per_client", "MB sent by a client"
Setting = tuple[str, int]  # split, cells

METHODS = {"hist": "HIST", "hfedavg": "HFedAvg"}
SPLITS = {"shards": "fully non-i.i.d.", "cell-iid": "cell i.i.d., client non-i.i.d."}

# HIST Sec. VI-B: the two-layer network on Fashion-MNIST, 60 clients.
MLP: dict[str, Any] = {
    "model.name": "mlp",
    "model.hidden": 300,
    "data.name": "fashion-mnist",
    "network.clients": 60,
    "training.edge_rounds": 5,
    "training.local_steps": 20,
    "training.batch_size": 50,
    "training.learning_rate": 0.01,
}
OPTIMISER = Choice(
    "plain SGD, batch 50, learning rate 0.01, no momentum, inputs normalised by (0.5, 0.5), no dropout",
    "the paper names none of them; these are the settings of the authors' public code, less its dropout, which "
    "the paper does not mention",
)
HFEDAVG_LAST = "HFedAvg of the last cell alone"
LAST_CELL = Choice(
    f"{HFEDAVG_LAST} is run beside HFedAvg, a client's load counted as if all cells sent",
    "the first version of the authors' public code empties the list of the edges' models for every cell, so that the "
    "cloud takes over the last cell's model alone; a later version has that mended. Whether the paper's numbers come from "
    "the first cannot be known, but they can be compared",
)
BYTES = Choice(
    "a megabyte is 2^20 bytes, 4 bytes a parameter, client to edge alone",
    "the paper says parameters transmitted per client and gives the model as 0.91 MB, which is 238,510 x 4 / 2^20",
)


def of(results: Results, method: str, setting: Setting, **more: Any) -> Repeats:
    """The runs of a method, with all cells and the artefact's own alpha but where `more` labels say otherwise."""
    labels = {"active_cells": None, "alpha": None, **more}
    return results.of(method=method, split=setting[0], cells=setting[1], **labels)


def quick_images(scale: Scale) -> str:
    """Fashion-MNIST where this machine has it, else the images inside the package."""
    return "fashion-mnist" if "fashion-mnist" in scale.here else "fashion-mnist-mini"


def quick_mlp(scale: Scale) -> dict[str, Any]:
    """The quick scale's network: 20 clients and a larger step, so that few rounds tell the methods apart."""
    return {
        **MLP,
        "data.name": quick_images(scale),
        "network.clients": 20,
        "training.learning_rate": 0.05,
    }


def quick_words(scale: Scale, *further: str) -> str:
    """What the quick scale makes smaller, in a sentence."""
    images = "Fashion-MNIST" if quick_images(scale) == "fashion-mnist" else "14,000 embedded images"
    return ", ".join((images, "20 clients in place of 60", "learning rate 0.05", *further)) + "."
