"""From a configuration to an experiment that can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from histfl import data as datasets
from histfl.data import Split, TensorData
from histfl.devices import choose_device, one_torch_thread
from histfl.engines import choose_engine
from histfl.errors import DataError, UsageError
from histfl.factories import DATA, KINDS, SPLIT, call_factory, find_factory
from histfl.models import MODELS, build_model, check_model_size
from histfl.models.lora import DEFAULT_BASE
from histfl.models.registry import check_options
from histfl.network import Network, spread_evenly
from histfl.partition import plan, training_copy
from histfl.runs import work as estimates
from histfl.runs.computing import CountedStep, build_computing, computing_json, is_counted
from histfl.runs.config import Config
from histfl.runs.fit import EXAMPLES, check_fit, check_parameters, check_precision
from histfl.runs.sizes import check_shares, dealer_of, size_policy
from histfl.seeds import Seeds
from histfl.training import Engine, Hist, LocalTraining, Participation, Task, Uplink
from histfl.training.dropout import key_dropout
from histfl.training.methods import METHODS
from histfl.training.objective import Loss, Objective
from histfl.training.optimisers import Optimiser, make_optimiser
from histfl.wireless.channels import build_channel
from histfl.wireless.clock import Clock, Radio
from histfl.wireless.uplinks import UPLINKS

SAMPLE_INPUTS = 64  # that a model may look at before training


@dataclass(frozen=True)
class Experiment:
    """Everything of one run in memory, on its device."""

    config: Config
    hist: Hist
    model: nn.Module
    test: TensorData
    bits_per_parameter: float
    engine: Engine
    step: CountedStep  # of the model, where its cycles are counted

    @property
    def device(self) -> torch.device:
        return self.test.inputs.device

    @property
    def about(self) -> dict[str, Any]:
        """What a summary says of the run besides its configuration and its records."""
        network = self.hist.network
        # Cells are sampled from so many that a list tells little.
        sampled = isinstance(self.hist.participation.active_cells, int)
        return {
            "cells": network.num_cells,
            "clients": network.num_clients,
            "clients_per_cell": None if sampled else network.clients_per_cell.tolist(),
            "parameters": self.hist.plan.num_parameters,
            "cut": [group.name for group in self.hist.plan.groups],
            "engine": self.engine.name,
            "device": self.device.type,
            **computing_json(self.config, self.step),
        }


@dataclass(frozen=True)
class Ingredients:
    """What a user brings: a model, data, a network, and who holds which samples if that is not drawn."""

    model: nn.Module
    train: TensorData
    test: TensorData
    network: Network
    holdings: Sequence[npt.ArrayLike] | None = None  # the samples of every client, where they are given
    optimiser: Optimiser | None = None  # of the clients, where it is given


def prepare(
    config: Config,
    *,
    data_dir: Path | None = None,
    device: str | torch.device = "auto",
    engine: str = "auto",
    memory_gb: float | None = None,
) -> Experiment:
    """The run that a configuration describes, with the model, data and network that it names."""
    ingredients = load_ingredients(config, data_dir=data_dir)
    return build(config, ingredients, device=device, engine=engine, memory_gb=memory_gb)


def check(config: Config) -> Network:
    """The network of `config`; a UsageError where settings do not fit together, as far as that can be told
    before data are read and a model is cut, which may take long."""
    for key in KINDS:
        if key != "uplink.channel" or "channel" in UPLINKS[config.uplink.name].reads:
            config.to_call(key)
    check_options(config.model.name, config.model.options)
    estimates.check_network(config)
    network = build_network(config)
    build_participation(config).check(network)
    check_shares(config.method, network.num_cells)
    config.cloud.made()
    config.codec.made()
    config.objective.made()
    build_optimiser(config)
    return network


def load_ingredients(config: Config, *, data_dir: Path | None = None) -> Ingredients:
    """The model, data and network that a configuration names."""
    network = check(config)
    train, test = load_data(config, data_dir)
    if not train.inputs.is_floating_point() and config.model.name in MODELS and config.model.name != "lora":
        raise UsageError(
            f"model {config.model.name!r} takes numbers, and the data {config.data.name!r} are token ids; use "
            "model.name = 'lora', or a model of your own with an embedding"
        )
    name, shape = config.to_call("model.name"), tuple(train.inputs.shape[1:])
    check_model_size(name, config.model.options, shape, train.num_classes)
    with one_torch_thread():
        model = build_model(
            name,
            config.model.options,
            shape,
            train.num_classes,
            seed=Seeds(config.training.seed).key("model"),
            sample_inputs=_sample(train, Seeds(config.training.seed).numpy("sample inputs")),
            data_dir=data_dir,
        )
    return Ingredients(model, train, test, network)


def _sample(train: TensorData, generator: np.random.Generator) -> torch.Tensor:
    chosen = generator.choice(len(train), min(SAMPLE_INPUTS, len(train)), replace=False)
    return train.inputs[torch.from_numpy(chosen)]


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
    if (described := estimates.network_file(config)) is None:
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


def _few(config: Config, test: TensorData) -> TensorData:
    """As many test samples as are asked for, the same ones in every round."""
    most = config.data.test_samples
    if most is None or most >= len(test):
        return test
    generator = Seeds(config.training.seed).numpy("test samples")
    chosen = torch.from_numpy(np.sort(generator.choice(len(test), most, replace=False))).to(
        test.targets.device
    )
    return dataclasses.replace(test, inputs=test.inputs[chosen], targets=test.targets[chosen])


def build_split(
    config: Config,
    train: TensorData,
    network: Network,
    holdings: Sequence[npt.ArrayLike] | None = None,
) -> Split:
    """Which client holds which training samples: by a rule of ours, a plugin's or the user's, or by `holdings`."""
    name, labels = config.to_call("data.split"), train.targets.cpu().numpy()
    generator = Seeds(config.training.seed).numpy("split")
    if name in datasets.SPLITS:
        return datasets.split(
            name,
            labels,
            network.clients_per_cell,
            generator,
            cell_concentration=config.data.cell_concentration,
            client_concentration=config.data.client_concentration,
        )
    if name != datasets.GIVEN:
        offered = {"labels": labels, "clients_per_cell": network.clients_per_cell, "generator": generator}
        rule = find_factory(SPLIT, name, datasets.SPLITS)
        holdings = call_factory(rule, {}, offered, place=f"split {name!r}")
    elif holdings is None:
        raise UsageError(
            f"data.split = {name!r} is for Python, histfl.train(split=[...]); elsewhere name a function of your own, "
            "package.module:function, that returns the clients' samples"
        )
    return datasets.given_split(holdings, len(train), network.num_clients)


def build(
    config: Config,
    ingredients: Ingredients,
    *,
    device: str | torch.device = "auto",
    engine: str = "auto",
    memory_gb: float | None = None,
    loss: Loss | None = None,
) -> Experiment:
    """Place the ingredients on the device, split the data, plan the cut; `loss` takes the place of the objective's."""
    objective = config.objective.made()
    if loss is not None:
        objective = dataclasses.replace(objective, loss=loss)
    place = choose_device(device)
    dtype = check_parameters(ingredients.model)
    model = ingredients.model.to(place)
    check_precision(config.training.precision, dtype, place)
    train = ingredients.train.to(place, dtype)
    test = _few(config, ingredients.test).to(place, dtype)
    check_fit(model, train, test, objective, batch_size=config.training.batch_size)
    network, bits = ingredients.network, bits_per_parameter(config, dtype)
    cut = plan(
        model,
        train.inputs[:EXAMPLES],
        scheme=METHODS[config.method.name].scheme,
        include=config.method.include,
        exclude=config.method.exclude,
    )
    copy = training_copy(model)
    key_dropout(copy, train.inputs[:EXAMPLES])
    step = CountedStep()
    if is_counted(config):
        step = CountedStep.of(copy, cut, train.inputs[:EXAMPLES], config.training.batch_size)
    uplink = build_uplink(config, bits)
    clock = Clock(build_computing(config, cut.num_parameters, step), uplink)
    split = build_split(config, train, network, ingredients.holdings)
    optimiser = ingredients.optimiser or build_optimiser(config)
    task = _task(config, copy, train, split, uplink, objective, optimiser)
    participation = build_participation(config)
    participation.check(network)
    dealer, num_active = dealer_of(config.method), participation.num_cells(network)
    estimates.check_arrays(config, network.clients_per_cell, cut, num_active, train)
    return Experiment(
        config=_with_network(config, network),
        hist=Hist(
            task=task,
            network=network,
            plan=cut,
            sizes=size_policy(
                config.method, cut, network, clock, shared=dealer.shared, num_active=num_active
            ),
            participation=participation,
            edge_rounds=config.training.edge_rounds,
            dealer=dealer,
            cloud=config.cloud.made(),
            clock=clock,
        ),
        model=model,
        test=test,
        bits_per_parameter=bits,
        engine=choose_engine(engine, task, memory_gb),
        step=step,
    )


def _task(
    config: Config,
    model: nn.Module,
    train: TensorData,
    split: Split,
    uplink: Uplink,
    objective: Objective,
    optimiser: Optimiser,
) -> Task:
    """What the clients do, with a `model` that takes compact tensors."""
    settings = config.training
    return Task(
        model=model,
        data=train,
        split=split,
        local=LocalTraining(
            local_steps=settings.local_steps,
            batch_size=settings.batch_size,
            optimiser=optimiser,
            clip_norm=settings.clip_norm,
            precision=settings.precision,
        ),
        objective=objective,
        uplink=uplink,
        codec=config.codec.made(),
        seeds=Seeds(settings.seed),
        augment=datasets.augmentation(config.data.augment, train.inputs),
    )


def build_optimiser(config: Config) -> Optimiser:
    """The clients' optimiser by its name."""
    return make_optimiser(config.training.optimiser, config.optimiser.options, config.training.model_dump())


def build_participation(config: Config) -> Participation:
    """Who takes part in a round."""
    settings = config.network
    return Participation(
        per_cell=None if settings.participants == "all" else settings.participants,
        dropout=settings.dropout,
        active_cells=None if settings.active_cells == "all" else settings.active_cells,
    )


def _with_network(config: Config, network: Network) -> Config:
    """`config` with the cells and clients that a network file brought."""
    actual = {"cells": network.num_cells, "clients": network.num_clients}
    return config.model_copy(update={"network": config.network.model_copy(update=actual)})


def bits_per_parameter(config: Config, dtype: torch.dtype) -> float:
    """What a client sends for a parameter: as many bits as it is stored in, where nothing else is said, in the form
    that the codec gives it."""
    return config.codec.made().bits_per_parameter(config.uplink.bits_per_parameter or 8.0 * dtype.itemsize)


def build_uplink(config: Config, bits: float) -> Radio:
    """The uplink by its name, from the settings that it reads."""
    settings, kind = config.uplink, UPLINKS[config.uplink.name]
    offered = {**settings.values(), "bits_per_parameter": bits}
    if "channel" in kind.reads:
        offered["channel"] = build_channel(config.to_call("uplink.channel"), settings.k_factor_db)
    uplink: Radio = call_factory(kind.make, {}, offered, place=f"uplink {settings.name!r}")
    return uplink
