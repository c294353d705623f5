"""A client: it trains its cell's submodel on its own samples, which never leave it.

It is started before or after its edge, and may be killed at any time: an edge round that it did not end is asked of it
again, as long as its edge waits. It writes nothing to the disk, but for what it keeps where its codec sends a part.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from safetensors import SafetensorError
from torch import nn

from histfl.data import Split, TensorData, as_tensor_data
from histfl.data.accepted import accepted
from histfl.data.inputs import named_parts
from histfl.deploy.caller import Caller, JoinAnew, Over
from histfl.deploy.kits import Kit
from histfl.deploy.messages import Message, check_like
from histfl.deploy.protocol import (
    ClientRound,
    RunInfo,
    check_cut,
    client_answer,
    evaluation_answer,
    is_evaluation,
    network_of,
    structure_of,
)
from histfl.deploy.residuals import Residuals
from histfl.devices import one_torch_thread, products
from histfl.engines.reference import ReferenceEngine, train_client
from histfl.errors import DataError, UsageError, in_one_line
from histfl.factories import DATA, call_factory, find_factory
from histfl.files import read_bytes, write_whole
from histfl.partition import State
from histfl.runs.build import Ingredients, build, load_model
from histfl.training import Task
from histfl.training.codecs import written
from histfl.training.evaluation import evaluate
from histfl.training.jobs import codec_key, protected
from histfl.training.privacy import unseeded

_log = logging.getLogger(__name__)
SAMPLES = "samples.safetensors"
# One client of a process at a time: torch's threads and its chance are the process's.
_training = threading.Lock()
Say = Callable[[str], None]


def load_samples(kit: Kit, source: str | None) -> Any:
    """A client's own samples: of a file with the tensors `inputs` and `targets`, or of a `package.module:function`,
    which may take `client` and `cell`; without a `source`, of the kit's samples.safetensors."""
    if source is not None and not source.endswith(".safetensors"):
        if ":" not in source:
            raise UsageError(f"--data {source}: give package.module:load, or FILE.safetensors")
        factory = find_factory(DATA, source, {})
        offered = {"client": kit.about.client, "cell": kit.about.cell}
        return call_factory(factory, {}, offered, place=f"--data {source}")
    path = kit.folder / SAMPLES if source is None else Path(source)
    if source is None and not path.exists():
        raise UsageError(
            f"{kit.name} has no samples; give --data package.module:load or --data FILE.safetensors (tensors inputs and "
            "targets)"
        )
    try:
        tensors = safetensors.torch.load(read_bytes(path))
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {in_one_line(error)}") from None
    inputs = {name.partition(".")[2]: x for name, x in tensors.items() if name.partition(".")[0] == "inputs"}
    if not inputs or "targets" not in tensors:
        raise DataError(
            f"{path} has {', '.join(tensors) or 'nothing'}; it needs the tensors inputs and targets"
        )
    return inputs.get("", inputs), tensors["targets"]


def save_samples(path: Path, data: TensorData) -> None:
    """As `load_samples` reads them."""
    tensors = {f"inputs.{name}".rstrip("."): x.contiguous() for name, x in named_parts(data.inputs).items()}
    write_whole(path, safetensors.torch.save(tensors | {"targets": data.targets.contiguous()}))


@dataclass(frozen=True)
class ClientSettings:
    """Of this machine: where its samples are, on which device it trains, and whose code its operator trusts."""

    data: str | None = None
    device: str = "cpu"
    trust: tuple[str, ...] = ()
    data_dir: Path | None = None


def serve_client(kit: Kit, settings: ClientSettings, say: Say) -> None:
    """Until the edge says that all is done."""
    samples = load_samples(kit, settings.data)
    count = len(as_tensor_data(accepted(samples)))
    caller, run, before = Caller(kit, say), None, None
    say(f"{kit.name}: {count} samples, calling {kit.parent.name}")
    while True:
        try:
            info = RunInfo.of(caller.join())
            if run is None or info != before:
                run, before = _prepared(kit, info, samples, settings), info
                say(f"{kit.name}: ready")
            _serve(kit, run, caller, count)
        except JoinAnew:
            continue
        except Over:
            say(f"{kit.name}: all is done")
            return
        finally:
            caller.close()


@dataclass(frozen=True)
class ClientRun:
    """The run as a client has it: the module, what is trained of it, what it does with its own samples, and what it
    keeps, where its codec does."""

    model: nn.Module
    whole: State
    task: Task
    residuals: Residuals | None = None


def _prepared(kit: Kit, info: RunInfo, samples: Any, settings: ClientSettings) -> ClientRun:
    config = info.config(f"the run of {kit.parent.name}", settings.trust)
    names = info.class_names or None
    data = as_tensor_data(accepted(samples), class_names=names)
    with _training:
        model = load_model(config, data, info.outputs, data_dir=settings.data_dir)
        structure, fixed = structure_of(model)
        if structure != dict(info.structure):
            different = sorted(
                name
                for name in {*structure, *info.structure}
                if structure.get(name) != info.structure.get(name)
            )
            raise UsageError(
                f"the model {config.model.name!r} of this machine is not the cloud's: {different[0]} is "
                f"{structure.get(different[0])} here and {info.structure.get(different[0])} there; install the same version "
                "of its code"
            )
        if fixed != info.fixed:
            raise UsageError(
                f"the model {config.model.name!r} of this machine has other frozen parameters or buffers than the cloud's; "
                "install the same version of its code and of its weights"
            )
        network = network_of(kit.about.cells)
        assert kit.about.client is not None
        own = Split.of_one(kit.about.client, network.num_clients, len(data))
        ingredients = Ingredients(model, data, data, network, split=own)
        experiment = build(config, ingredients, device=settings.device, engine=ReferenceEngine())
    task, plan = experiment.hist.task, experiment.hist.plan
    task = dataclasses.replace(task, privacy=unseeded(task.privacy))
    whole = {name: x.detach() for name, x in model.named_parameters() if name in plan.trainable}
    if not task.codec.keeps:
        return ClientRun(model, whole, task)
    return ClientRun(model, whole, task, Residuals.of(kit.folder, info, plan, whole))


def _serve(kit: Kit, run: ClientRun, caller: Caller, samples: int) -> None:
    client, cell = kit.about.client, network_of(kit.about.cells).cell(kit.about.cell or 0)
    assert client is not None
    while True:
        work = caller.next_work({"samples": samples})
        if work is None:
            continue
        with caller.alive(), _training:
            if is_evaluation(work):
                answer = _evaluate(run, work)
            else:
                asked = ClientRound.of(work, run.task, cell)
                check_cut(asked.state, run.whole)
                answer = _train(asked, client, run.residuals)
        caller.answer(Message({**answer.about, "work": work.about["work"]}, answer.tensors))


def _train(asked: ClientRound, client: int, residuals: Residuals | None = None) -> Message:
    """An edge round's local steps, and what is sent of them."""
    began, device = time.monotonic(), asked.job.task.data.device
    state = {name: tensor.to(device) for name, tensor in asked.state.items()}
    constants = {name: tensor.to(device) for name, tensor in asked.job.constants.items()}
    given = asked.correction and {name: tensor.to(device) for name, tensor in asked.correction.items()}
    job, who = dataclasses.replace(asked.job, start=state, constants=constants), np.array([client])
    with products(job.task.local.precision), one_torch_thread():
        final, loss = train_client(job, state, asked.edge_round, client, given)
        final = protected(job, asked.edge_round, state, final, who)
        before = residuals.before(asked) if residuals else {}
        key = codec_key(job, asked.edge_round)
        update, after = written(job.task.codec, state, final, who, key, before)
        if residuals:
            residuals.keep(asked, after)
    return client_answer(update, loss, time.monotonic() - began)


def _evaluate(run: ClientRun, work: Message) -> Message:
    """What the whole model comes to on this client's samples."""
    state, like = work.of_kind("model"), dict(run.model.state_dict())
    check_like(state, {name: tensor.cpu() for name, tensor in like.items()}, "the model")
    run.model.load_state_dict(state)
    return evaluation_answer(evaluate(run.model, run.task.data, run.task.objective))


def serve_clients(kits: Sequence[Kit], settings: ClientSettings, say: Say) -> None:
    """Several clients in one process, as on a testbed: they share its memory, and train one at a time."""
    if len(kits) == 1:
        serve_client(kits[0], settings, say)
        return
    failed: list[BaseException] = []

    def serve(kit: Kit) -> None:
        try:
            serve_client(kit, settings, say)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=serve, args=(kit,), daemon=True) for kit in kits]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not failed:
        time.sleep(0.2)
    if failed:
        raise failed[0]
