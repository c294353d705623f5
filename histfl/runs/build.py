"""From a configuration to an experiment that can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from histfl import data as datasets
from histfl.data import Split, TensorData
from histfl.data.inputs import chosen, parts
from histfl.devices import choose_device, one_torch_thread
from histfl.engines import RayEngine, choose_engine
from histfl.errors import UsageError
from histfl.factories import KINDS, call_factory
from histfl.models import MODELS, build_model, check_model_size
from histfl.models.registry import check_options
from histfl.network import Network
from histfl.partition import plan, training_copy
from histfl.runs.computing import CountedStep, build_computing, computing_json, is_counted
from histfl.runs.config import Config
from histfl.runs.fit import EXAMPLES, check_fit, check_parameters, check_precision
from histfl.runs.named import build_network, build_split, few_samples, load_data, num_outputs, sample_inputs
from histfl.runs.privacy import check_privacy
from histfl.runs.serving import served
from histfl.runs.sizes import check_shares, dealer_of, size_policy
from histfl.runs.work import check_arrays, check_network
from histfl.seeds import Seeds
from histfl.settings import check_given
from histfl.sizing import Policy, policy_named
from histfl.training import Engine, Hist, LocalTraining, Participation, Task
from histfl.training.cloud import CloudStep
from histfl.training.codecs import Codec, Encoding
from histfl.training.corrections import MakeCorrection, correction_named
from histfl.training.dealers import Method
from histfl.training.dropout import key_dropout
from histfl.training.evaluation import Evaluation
from histfl.training.methods import method_named
from histfl.training.metrics import METRICS
from histfl.training.objective import Loss, Objective
from histfl.training.objectives import OBJECTIVES
from histfl.training.optimisers import Optimiser, make_optimiser
from histfl.training.scaling import scale_inputs
from histfl.training.schedules import Schedule, make_schedule
from histfl.wireless.channels import CHANNELS, Channel, build_channel
from histfl.wireless.clock import Clock, Radio
from histfl.wireless.uplinks import UPLINKS


@dataclass(frozen=True)
class Experiment:
    """Everything of one run in memory, on its device."""

    config: Config
    hist: Hist
    model: nn.Module
    test: TensorData
    engine: Engine
    step: CountedStep  # of the model, where its cycles are counted
    on_holders: Callable[[nn.Module], Sequence[Evaluation]] | None = None  # where their samples are elsewhere

    @property
    def device(self) -> torch.device:
        return self.test.device

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
            **({"lost_workers": self.engine.lost_workers} if isinstance(self.engine, RayEngine) else {}),
            "device": self.device.type,
            **served(self.config, self.hist.task.data),
            **computing_json(self.config, self.step),
        }


@dataclass(frozen=True)
class Ingredients:
    """What a user brings: a model, data, a network, and who holds which samples if that is not drawn: numbers of
    theirs, or a whole split."""

    model: nn.Module
    train: TensorData
    test: TensorData
    network: Network
    holdings: Sequence[npt.ArrayLike] | None = None  # the samples of every client, where they are given
    split: Split | None = None
    # Of the user's own, in the place of what the configuration names.
    method: Method | None = None
    optimiser: Optimiser | None = None
    schedule: Schedule | None = None
    correction: MakeCorrection | None = None
    codec: Codec | None = None
    cloud: CloudStep | None = None
    objective: Objective | None = None  # also where a metric of it is given
    uplink: Radio | None = None
    channel: Channel | None = None  # of the uplink that is named
    sizes: Policy | None = None


def prepare(
    config: Config,
    *,
    data_dir: Path | None = None,
    device: str | torch.device = "auto",
    engine: str | Engine = "auto",
    memory_gb: float | None = None,
) -> Experiment:
    """The run that a configuration describes, with the model, data and network that it names."""
    ingredients = load_ingredients(config, data_dir=data_dir)
    return build(config, ingredients, device=device, engine=engine, memory_gb=memory_gb)


def check(config: Config) -> Network:
    """The network of `config`; a UsageError where settings do not fit together, as far as that can be told
    before data are read and a model is cut, which may take long."""
    check_given("uplink.name", "uplink", config.uplink.name, UPLINKS)
    check_given("uplink.channel", "uplink", config.uplink.channel, CHANNELS)
    if isinstance(config.method.sizes, str):
        policy_named(config.method.sizes)
    for key in KINDS:
        if key != "uplink.channel" or "channel" in UPLINKS[config.uplink.name].reads:
            config.to_call(key)
    check_options(config.model.name, config.model.options)
    check_network(config)
    network = build_network(config)
    build_participation(config).check(network)
    check_privacy(config)
    check_shares(config.method, network.num_cells, dealer_of(config.method))
    config.cloud.made()
    config.codec.made()
    if given := config.objective.given:
        raise UsageError(
            f"objective.{given} = {getattr(config.objective, given)!r} is for Python, histfl.train(objective=..., "
            f"metrics=...); elsewhere take {', '.join(OBJECTIVES)} and objective.metrics of {', '.join(METRICS)}"
        )
    config.objective.made()
    build_local(config)
    return network


def load_ingredients(config: Config, *, data_dir: Path | None = None) -> Ingredients:
    """The model, data and network that a configuration names."""
    network = check(config)
    train, test = load_data(config, data_dir)
    return Ingredients(
        load_model(config, train, num_outputs(config, train), data_dir=data_dir), train, test, network
    )


def load_model(config: Config, train: TensorData, outputs: int, *, data_dir: Path | None = None) -> nn.Module:
    """The model that a configuration names, for such data, with so many `outputs` a sample or a place of one."""
    name, ours = config.to_call("model.name"), config.model.name in MODELS
    if ours and not isinstance(train.inputs, torch.Tensor):
        raise UsageError(
            f"model {config.model.name!r} takes one tensor, and the data {config.data.name!r} have "
            f"{len(parts(train.inputs))} a sample; use a model of your own, package.module:factory"
        )
    if ours and not parts(train.inputs)[0].is_floating_point() and config.model.name != "lora":
        raise UsageError(
            f"model {config.model.name!r} takes numbers, and the data {config.data.name!r} are token ids; use "
            "model.name = 'lora', or a model of your own with an embedding"
        )
    shape = tuple(parts(train.inputs)[0].shape[1:])
    check_model_size(name, config.model.options, shape, outputs)
    with one_torch_thread():
        return build_model(
            name,
            config.model.options,
            shape,
            outputs,
            seed=Seeds(config.training.seed).key("model"),
            sample_inputs=sample_inputs(train, Seeds(config.training.seed).numpy("sample inputs")),
            data_dir=data_dir,
        )


def build(
    config: Config,
    ingredients: Ingredients,
    *,
    device: str | torch.device = "auto",
    engine: str | Engine = "auto",
    memory_gb: float | None = None,
    loss: Loss | None = None,
) -> Experiment:
    """Place the ingredients on the device, split the data, plan the cut; `loss` takes the place of the objective's."""
    objective = ingredients.objective or config.objective.made()
    if loss is not None:
        objective = dataclasses.replace(objective, loss=loss)
    place = choose_device(device)
    dtype = check_parameters(ingredients.model)
    model = ingredients.model.to(place)
    check_privacy(config, model)
    check_precision(config.training.precision, dtype, place)
    train = ingredients.train.to(place, dtype)
    test = few_samples(config, ingredients.test).to(place, dtype)
    check_fit(model, train, test, objective, batch_size=config.training.batch_size)
    method = ingredients.method or method_named(config.method.name)
    network, examples = ingredients.network, chosen(train.inputs, slice(EXAMPLES))
    cut = plan(
        model,
        examples,
        scheme=method.scheme,
        include=config.method.include,
        exclude=config.method.exclude,
    )
    copy = training_copy(model)
    key_dropout(copy, examples)
    scaling = scale_inputs(copy, cut, _scale(config, model))
    step = CountedStep()
    if is_counted(config):
        step = CountedStep.of(copy, cut, examples, config.training.batch_size)
    encoding = build_encoding(config, dtype, cut.tensor_sizes, ingredients.codec)
    uplink = ingredients.uplink
    if uplink is None:
        uplink = build_uplink(config, encoding.bits_per_parameter, ingredients.channel)
    clock = Clock(build_computing(config, cut.num_parameters, step), uplink)
    split = ingredients.split or build_split(config, train, network, ingredients.holdings)
    task = Task(
        model=copy,
        data=train,
        split=split,
        local=build_local(config, ingredients.optimiser, ingredients.schedule, ingredients.correction),
        objective=objective,
        uplink=uplink,
        codec=encoding.codec,
        weighted=config.training.weights == "samples",
        privacy=config.privacy.made(),
        seeds=Seeds(config.training.seed),
        augment=datasets.augmentation(config.data.augment, train.inputs),
    )
    participation = build_participation(config)
    participation.check(network)
    dealer, num_active = dealer_of(config.method, method), participation.num_cells(network)
    check_arrays(config, network.clients_per_cell, cut, num_active, train, dealer)
    return Experiment(
        config=_with_network(config, network),
        hist=Hist(
            task=task,
            network=network,
            plan=cut,
            sizes=size_policy(
                config.method,
                cut,
                network,
                clock,
                method=method,
                dealer=dealer,
                num_active=num_active,
                encoding=encoding,
                policy=ingredients.sizes,
            ),
            participation=participation,
            edge_rounds=config.training.edge_rounds,
            dealer=dealer,
            cloud=ingredients.cloud or config.cloud.made(),
            clock=clock,
            scaling=scaling,
            encoding=encoding,
        ),
        model=model,
        test=test,
        engine=choose_engine(engine, task, memory_gb),
        step=step,
    )


def _scale(config: Config, model: nn.Module) -> float:
    """The power by which submodels are scaled: as given, or the model's own."""
    given = config.method.scale
    return float(getattr(model, "scale_of_submodels", 0.0)) if given is None else given


def build_local(
    config: Config,
    optimiser: Optimiser | None = None,
    schedule: Schedule | None = None,
    correction: MakeCorrection | None = None,
) -> LocalTraining:
    """How the clients train: by the objects that are given, the rest by name."""
    settings = config.training
    return LocalTraining(
        local_steps=settings.local_steps,
        batch_size=settings.batch_size,
        optimiser=optimiser
        or make_optimiser(settings.optimiser, config.optimiser.options, settings.model_dump()),
        clip_norm=settings.clip_norm,
        precision=settings.precision,
        proximal=settings.proximal,
        correction=correction or correction_named(settings.correction),
        schedule=schedule or make_schedule(settings.schedule, settings.values()),
        warmup_rounds=settings.warmup_rounds,
    )


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


def build_encoding(
    config: Config, dtype: torch.dtype, sizes: tuple[int, ...], codec: Codec | None = None
) -> Encoding:
    """What a client sends: a parameter in as many bits as it is stored in, where nothing else is said, in the form
    that the codec gives it; the model's tensors have `sizes` numbers."""
    plain = config.uplink.bits_per_parameter or 8.0 * dtype.itemsize
    return Encoding(codec or config.codec.made(), plain, sizes)


def build_uplink(config: Config, bits: float, channel: Channel | None = None) -> Radio:
    """The uplink by its name, from the settings that it reads, with the `channel` that is given or the one they name."""
    settings = config.uplink
    check_given("uplink.name", "uplink", settings.name, UPLINKS)
    kind = UPLINKS[settings.name]
    offered = {**settings.values(), "bits_per_parameter": bits}
    if "channel" in kind.reads:
        if channel is None:
            channel = build_channel(config.to_call("uplink.channel"), settings.k_factor_db)
        offered["channel"] = channel
    uplink: Radio = call_factory(kind.make, {}, offered, place=f"uplink {settings.name!r}")
    return uplink
