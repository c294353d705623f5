"""Carry out an experiment, round by round, and keep what it says."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from histfl.data import SPLITS
from histfl.data.inputs import Inputs, chosen, mapped, named_parts
from histfl.devices import one_torch_thread, products
from histfl.errors import DivergedError, UsageError
from histfl.network import spread_evenly
from histfl.partition import has_batch_statistics, recompute_statistics
from histfl.runs.build import Experiment
from histfl.runs.config import Config
from histfl.runs.pictures import pictures
from histfl.runs.privacy import stated
from histfl.runs.records import Record, done, round_record, summarise
from histfl.runs.run import Run
from histfl.runs.store import Checkpoint, RunFolder, digest
from histfl.runs.work import network_file
from histfl.seeds import lent_to_layers
from histfl.theory import estimate
from histfl.training import State, hist
from histfl.training.evaluation import Evaluation, evaluate, evaluate_holders, spreads
from histfl.training.memory import Carried

CALIBRATION_BATCH = 500
CALIBRATION_SAMPLES = 2000  # for BatchNorm statistics; another sample moves accuracy by half a point or so
OnRound = Callable[[Record], object]  # True ends the run after that round


def execute(
    experiment: Experiment,
    folder: RunFolder | None = None,
    *,
    resume: bool = False,
    keep_model: bool = True,
    on_start: Callable[[], None] | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Run all rounds that are not done yet; with a folder, every round is on the disk before the next, and the trained
    model at the end, if it is to be kept. `on_start` is called once nothing is left that could refuse the run."""
    with products("float32"):  # the engine alone follows training.precision
        try:
            with folder.claimed(experiment.config, resume=resume) if folder else nullcontext():
                return _execute(experiment, folder, keep_model, on_start, on_round)
        finally:
            experiment.engine.close()


def _execute(
    experiment: Experiment,
    folder: RunFolder | None,
    keep_model: bool,
    on_start: Callable[[], None] | None,
    on_round: OnRound | None,
) -> Run:
    config, model = experiment.config, experiment.model
    state: State = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    carried: Carried | None = None
    records: list[Record] = []
    wall_before = 0.0
    ingredients = _ingredients_digest(experiment) if folder is not None else ""
    if folder is not None:
        checkpoint = folder.load_checkpoint(config, ingredients, _trained(experiment, state))
        records = _reopened(folder, config, checkpoint)
        if checkpoint is not None:
            state |= checkpoint.state
            carried = checkpoint.carried
            wall_before = checkpoint.wall_seconds
    if on_start is not None:
        on_start()
    started = time.perf_counter()

    def wall_seconds() -> float:
        return wall_before + time.perf_counter() - started

    outcomes = hist(
        experiment.hist,
        state,
        experiment.engine,
        first_round=len(records),
        rounds=len(records) if done(config, records) else config.training.rounds,
        carried=carried,
    )
    for outcome in outcomes:
        theory = _theory(experiment, state, outcome.round)  # of the model with which the round began
        state = outcome.state
        evaluation = _evaluate(experiment, state)
        if not math.isfinite(evaluation.loss):
            raise DivergedError(
                f"training diverged in round {outcome.round + 1}: the test loss is {evaluation.loss}",
                _too_large(experiment),
            )
        previous = records[-1] if records else None
        own_data = _own_data(experiment)
        records.append(round_record(experiment.hist, outcome, evaluation, previous) | theory | own_data)
        if folder is not None:
            folder.append(records[-1])
            folder.save_checkpoint(
                _trained(experiment, state),
                outcome.carried,
                config,
                ingredients,
                rounds_done=len(records),
                wall_seconds=wall_seconds(),
            )
        stopped = on_round is not None and on_round(deepcopy(records[-1])) is True  # its copy harms no run
        if stopped or done(config, records):
            break
    _load(model, state)
    _calibrate(experiment)
    summary = summarise(
        config,
        records,
        about=experiment.about | stated(config, experiment.hist, records),
        wall_seconds=wall_seconds(),
    )
    drawn = pictures(experiment, records[-1])
    if folder is not None:
        folder.check_undisturbed()
        if keep_model:
            frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
            folder.save_model({name: x for name, x in model.state_dict().items() if name not in frozen})
        folder.save_pictures(drawn)
        folder.save_summary(summary)
    return Run(
        name=config.method.name,
        records=records,
        summary=summary,
        config=config,
        planned_rounds=len(records),
        model=model,
        pictures=drawn,
        folder=folder.path if folder else None,
    )


def _too_large(experiment: Experiment) -> str:
    """What else of a run's settings may have let it diverge."""
    hist, config = experiment.hist, experiment.config
    chosen = {
        "cloud.learning_rate": hasattr(hist.cloud, "learning_rate"),
        "privacy.noise_multiplier": config.privacy.noise_multiplier > 0,
        "training.proximal": config.training.proximal > 0,
    }
    return " or ".join(key for key, is_chosen in chosen.items() if is_chosen)


def _reopened(folder: RunFolder, config: Config, checkpoint: Checkpoint | None) -> list[Record]:
    """The records up to the checkpoint, in a folder made ready to go on; one that cannot is left as it is."""
    rounds_done = checkpoint.rounds_done if checkpoint else 0
    if rounds_done > config.training.rounds:
        raise UsageError(
            f"{folder.path} has {rounds_done} rounds already, more than training.rounds = "
            f"{config.training.rounds}; ask for at least as many"
        )
    records = folder.truncate_rounds(checkpoint)
    described = network_file(config)
    if described is None and not records:
        folder.drop_network()
    folder.write_config(config)
    if described is not None:
        folder.keep_network(described, begun=bool(records))
    if not done(config, records):
        folder.reopen()
    return records


def _theory(experiment: Experiment, state: State, round: int) -> Record:
    """The constants of the theorems at the round's first model, in the rounds that ask for them."""
    every = experiment.config.theory.every
    if every == 0 or round % every:
        return {}
    task, network = experiment.hist.task, experiment.hist.network
    with one_torch_thread():
        return {"theory": estimate(task, network, state, round=round).as_record()}


def _ingredients_digest(experiment: Experiment) -> str:
    """What the run starts from besides its configuration: the network, the data, who holds them where that is the
    user's to say, and the first model."""
    network, data, test = experiment.hist.network, experiment.hist.task.data, experiment.test
    arrays = {
        "network.clients_per_cell": network.clients_per_cell,
        "network.cpu_hz": network.cpu_hz,
        "network.snr": network.snr,
        "network.transmit_power_w": network.transmit_power_w,
    }
    split = experiment.hist.task.split
    if experiment.config.data.split not in SPLITS and not split.elsewhere:
        arrays |= {"split.order": split.order, "split.offsets": split.offsets}
    tensors = {
        **{name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()},
        **_by_name("train.inputs", data.inputs),
        "train.targets": data.targets,
        **_by_name("test.inputs", test.inputs),
        "test.targets": test.targets,
        **{f"model.{name}": tensor for name, tensor in experiment.model.named_parameters()},
        **{f"buffer.{name}": tensor for name, tensor in experiment.model.named_buffers()},
    }
    return digest(tensors)


def _by_name(name: str, inputs: Inputs) -> dict[str, torch.Tensor]:
    return {f"{name}.{part}".rstrip("."): tensor for part, tensor in named_parts(inputs).items()}


def _trained(experiment: Experiment, state: State) -> State:
    """The parameters that training changes, in the model's order."""
    return {name: value for name, value in state.items() if name in experiment.hist.plan.trainable}


def _evaluate(experiment: Experiment, state: State) -> Evaluation:
    _load(experiment.model, state)
    _calibrate(experiment)
    return evaluate(experiment.model, experiment.test, experiment.hist.task.objective)


def _own_data(experiment: Experiment) -> Record:
    """What the model of `_evaluate` comes to on the data of each client or cell, where that is asked for."""
    if (per := experiment.config.evaluate.per) is None:
        return {}
    task, network = experiment.hist.task, experiment.hist.network
    if experiment.on_holders is not None:
        found = experiment.on_holders(experiment.model)
        return {"own_data": {"per": per, "values": spreads(found, task.objective)}} if found else {}
    offsets = task.split.offsets
    if per == "cell":
        offsets = offsets[network.offsets]
    found = evaluate_holders(experiment.model, task.data, task.objective, task.split.order, offsets)
    return {"own_data": {"per": per, "values": spreads(found, task.objective)}}


def _load(model: nn.Module, state: State) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])


def _calibrate(experiment: Experiment) -> None:
    """BatchNorm statistics of the merged model, from a fixed sample of the clients' data.

    They are those of the images that the clients train on: augmented, where training augments them. Where clients keep
    their samples, they are those of the test inputs.
    """
    if not has_batch_statistics(experiment.model):
        return
    task = experiment.hist.task
    order = np.arange(len(task.data)) if task.split.elsewhere else task.split.order
    generator = task.seeds.numpy("calibration")
    numbers = generator.choice(order, min(CALIBRATION_SAMPLES, len(order)), replace=False)
    samples = chosen(task.data.inputs, torch.from_numpy(numbers).to(experiment.device))
    if (augment := task.augment) is not None:
        variants = torch.from_numpy(generator.integers(augment.num_variants, size=len(numbers)))
        samples = mapped(lambda x: augment.apply(x, variants.to(experiment.device)), samples)
    batches = math.ceil(len(numbers) / CALIBRATION_BATCH)  # even ones: a last batch of one has no variance
    ends = np.cumsum([0, *spread_evenly(len(numbers), batches)]).tolist()
    with one_torch_thread(), lent_to_layers(task.seeds.key("calibration"), experiment.device):
        recompute_statistics(
            experiment.model, [chosen(samples, slice(*between)) for between in pairwise(ends)]
        )
