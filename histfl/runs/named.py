"""What a configuration names: its data, its network, and who holds which samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from histfl import data as datasets
from histfl.data import Split, TensorData
from histfl.data.inputs import Inputs, chosen
from histfl.errors import DataError, UsageError
from histfl.factories import DATA, SPLIT, call_factory, find_factory
from histfl.models.lora import DEFAULT_BASE
from histfl.network import Network, spread_evenly
from histfl.runs.config import Config
from histfl.runs.work import network_file
from histfl.seeds import Seeds
from histfl.settings import GIVEN

SAMPLE_INPUTS = 64  # that a model may look at before training


def load_data(config: Config, data_dir: Path | None = None) -> tuple[TensorData, TensorData]:
    """The training and test sets: a known data set, a plugin's, or a user's `package.module:factory`."""
    name = config.to_call("data.name")
    if (source := datasets.DATASETS.get(name)) is not None:
        if source.load_text is None:
            return datasets.load(name, data_dir)
        return datasets.load_tokens(
            name,
            data_dir,
            tokenizer=_tokenizer(config),
            max_length=config.data.max_length,
            strip=config.data.strip,
        )
    factory = find_factory(DATA, name, datasets.DATASETS, ours=[datasets.load])
    pair = call_factory(factory, {}, {}, place=f"data set {name!r}")
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise DataError(f"data set {name!r} must return (train, test), not {type(pair).__name__}")
    return datasets.train_and_test(*pair)


def _tokenizer(config: Config) -> str:
    """Whose tokens the texts become."""
    if config.data.tokenizer is not None:
        return config.data.tokenizer
    if config.model.name != "lora":
        raise UsageError(
            f"data {config.data.name!r} is text: use model.name = 'lora', or name a tokenizer for your own model "
            "with data.tokenizer"
        )
    return str(config.model.options.get("base", DEFAULT_BASE))


def build_network(config: Config) -> Network:
    """The network by its profile. A network file brings its own cells and clients; where `network.cells`
    asks for another number of cells, its clients in their order are spread over that many."""
    settings = config.network
    if settings.profile == "uniform":
        return Network.uniform(
            settings.cells,
            clients=settings.clients,
            cpu_hz=settings.cpu_hz,
            snr_db=settings.snr_db,
            transmit_power_w=settings.transmit_power_w,
        )
    if settings.profile == "paper":
        generator = Seeds(config.training.seed).numpy("network")
        return Network.paper(settings.cells, settings.clients, generator)
    if (described := network_file(config)) is None:
        raise UsageError(f"network.profile = {settings.profile!r}; use uniform, paper or a NETWORK.toml")
    network = Network.from_toml(described)
    asked = {key: getattr(settings, key) for key in ("cells", "clients") if key in settings.model_fields_set}
    if asked.get("clients", network.num_clients) != network.num_clients:
        raise UsageError(
            f"network.clients = {asked['clients']}, but {settings.profile} has {network.num_clients}; "
            "leave the key out"
        )
    if asked.get("cells", network.num_cells) != network.num_cells:
        return dataclasses.replace(
            network, clients_per_cell=spread_evenly(network.num_clients, asked["cells"])
        )
    return network


def few_samples(config: Config, test: TensorData) -> TensorData:
    """As many test samples as are asked for, the same ones in every round."""
    most = config.data.test_samples
    if most is None or most >= len(test):
        return test
    generator = Seeds(config.training.seed).numpy("test samples")
    numbers = torch.from_numpy(np.sort(generator.choice(len(test), most, replace=False))).to(test.device)
    return dataclasses.replace(test, inputs=chosen(test.inputs, numbers), targets=test.targets[numbers])


def build_split(
    config: Config,
    train: TensorData,
    network: Network,
    holdings: Sequence[npt.ArrayLike] | None = None,
) -> Split:
    """Which client holds which training samples: by a rule of ours, a plugin's or the user's, or by `holdings`."""
    name = config.to_call("data.split")
    if not train.class_names and name in datasets.SPLITS and name not in datasets.WITHOUT_LABELS:
        kind = f"{train.targets.dtype} {('sample', *train.targets.shape[1:])}".replace("'", "")
        raise UsageError(
            f"data.split = {name!r} deals samples by their class, and the targets are {kind}; use "
            f"{' or '.join(map(repr, datasets.WITHOUT_LABELS))}, or say who holds what (split=[...] in Python, a function "
            "package.module:function elsewhere)"
        )
    labels = train.targets.cpu().numpy()
    generator = Seeds(config.training.seed).numpy("split")
    if name in datasets.SPLITS:
        return datasets.split(
            name,
            labels if train.class_names else np.zeros(len(train), dtype=np.int64),
            network.clients_per_cell,
            generator,
            cell_concentration=config.data.cell_concentration,
            client_concentration=config.data.client_concentration,
        )
    if name != GIVEN:
        offered = {"labels": labels, "clients_per_cell": network.clients_per_cell, "generator": generator}
        rule = find_factory(SPLIT, name, datasets.SPLITS)
        holdings = call_factory(rule, {}, offered, place=f"split {name!r}")
    elif holdings is None:
        raise UsageError(
            f"data.split = {name!r} is for Python, histfl.train(split=[...]); elsewhere name a function of your own, "
            "package.module:function, that returns the clients' samples"
        )
    return datasets.given_split(holdings, len(train), network.num_clients)


def num_outputs(config: Config, train: TensorData) -> int:
    """How many numbers a model by name returns for a sample, or a place of one."""
    objective = config.objective.made()
    objective.check_targets(train)
    return objective.outputs(train)


def sample_inputs(train: TensorData, generator: np.random.Generator) -> Inputs:
    numbers = generator.choice(len(train), min(SAMPLE_INPUTS, len(train)), replace=False)
    return chosen(train.inputs, torch.from_numpy(numbers))
