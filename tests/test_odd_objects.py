"""Odd Python objects: `histfl.train`, `Network` and a run's methods run, or refuse them in one line."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odd_arguments import crossed
from odd_objects import CopyFails, Items, Named, Uncopied, objects, pair
from small_training import INPUTS, TARGETS, mlp, train

import histfl
from histfl.errors import HistflError, UsageError

ATTACK = dict([*crossed(), *objects()])


def runs_or_is_refused(name: str) -> None:
    said = ""
    try:
        ATTACK[name]()
    except HistflError as error:
        said = str(error)
    except Exception as error:
        pytest.fail(f"{name} ends in {type(error).__name__}: {error}")
    assert "\n" not in said, name


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(name=st.sampled_from(sorted(ATTACK)))
def test_odd_objects(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs_or_is_refused(name)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(8))
def test_all_odd_objects(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(ATTACK) > 4000
    train()  # what is loaded once is no answer's cost
    with little_memory():
        for name in sorted(ATTACK)[part::8]:
            runs_or_is_refused(name)


@contextmanager
def little_memory() -> Iterator[None]:
    """A gigabyte above the start, and the addresses that threads reserve."""
    if sys.platform != "linux":
        yield
        return
    sizes = Path("/proc/self/statm").read_text().split()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = int(sizes[0]) * resource.getpagesize() + 3 * 2**29
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "cells as text": (
        lambda: histfl.Network.uniform(cells="4", clients=8),
        "cells = '4'; it must be a whole",
    ),  # type: ignore[arg-type]
    "cells of truth": (lambda: histfl.Network.uniform(cells=True, clients=8), "cells = True"),
    "a CPU as text": (
        lambda: histfl.Network.uniform(cells=1, clients=2, cpu_hz="2e9"),  # type: ignore[arg-type]
        "cpu_hz = '2e9'; it must be a number",
    ),
    "a list of ratios": (
        lambda: histfl.Network.uniform(cells=1, clients=2, snr_db=[30.0]),  # type: ignore[arg-type]
        r"snr_db = \[30.0\]; it must be a number",
    ),
    "a billion clients": (
        lambda: histfl.Network.uniform(cells=1, clients=10**9),
        "clients = 1000000000; it must be a whole number, at most 100000000",
    ),
    "a billion clients in cells": (
        lambda: histfl.Network.uniform(cells=1000, clients_per_cell=10**6),
        "clients_per_cell = 1000000; it must be a whole number, at most 100000",
    ),
    "a billion of the paper's": (
        lambda: histfl.Network.paper(10**9, 10**9, np.random.default_rng(1)),
        "cells = 1000000000",
    ),
    "no generator": (lambda: histfl.Network.paper(2, 4, None), "generator = None"),  # type: ignore[arg-type]
    "halves of clients": (
        lambda: histfl.Network(np.array([1.5, 1.5]), *(np.ones(3),) * 3),  # type: ignore[arg-type]
        "cell 0 has 1.5 clients",
    ),
    "billions of clients": (
        lambda: histfl.Network(np.array([10**8, 1]), *(np.ones(3),) * 3),
        "100000001 clients; at most 100000000",
    ),
    "a network file of bytes": (lambda: histfl.Network.from_toml(b"x"), "path = b'x'; give a path"),  # type: ignore[arg-type]
    "a cell outside": (lambda: histfl.Network.uniform(cells=2, clients=4).cell(-1), "cell -1: .* are 0 to 1"),
    "no engine": (lambda: train(engine=None), "engine None: use auto"),
    "engine of 3": (lambda: train(engine=3), "engine 3: use auto"),
    "a device of 3": (lambda: histfl.train(mlp(), *_sets(), network=_network(), device=3), "device 3: use"),  # type: ignore[arg-type]
    "memory as text": (lambda: train(memory_gb="4"), "memory_gb = '4'; it must be a number"),
    "endless memory": (lambda: train(memory_gb=float("inf")), "memory_gb = inf"),
    "out of 3": (lambda: train(out=3), "out = 3; give a path"),
    "out of bytes": (lambda: train(out=b"x"), "out = b'x'; give a path"),
    "out with a nul": (lambda: train(out="a\0b"), "out = .*; give a path"),
    "resume as text": (lambda: train(out="x", resume="no"), "resume='no'.*True or False"),
    "a loss of 3": (lambda: train(loss=3), r"loss=3\): give a function"),
    "meta inputs": (lambda: train(data=(INPUTS.to("meta"), TARGETS)), "inputs are on the meta device"),
    "meta targets": (lambda: train(data=(INPUTS, TARGETS.to("meta"))), "targets are on the meta device"),
    "sparse inputs": (lambda: train(data=(INPUTS.to_sparse(), TARGETS)), r"sparse_coo; give a dense tensor"),
    "quantised inputs": (
        lambda: train(data=(torch.quantize_per_tensor(INPUTS, 0.1, 0, torch.qint8), TARGETS)),
        r"quantised; give .*dequantize",
    ),
    "nested inputs": (
        lambda: train(data=(torch.nested.nested_tensor(list(INPUTS)), TARGETS)),
        "inputs are a nested tensor",
    ),
    "a model on the meta device": (lambda: train(mlp().to("meta")), "0.weight of the model is on the meta"),
    "a model of float8": (lambda: train(mlp().to(torch.float8_e4m3fn)), "float8_e4m3fn, which cannot be"),
    "a model with a generator": (lambda: train(Uncopied()), "cannot copy Uncopied .*deepcopy copies"),
    "a model of a kind": (lambda: train(CopyFails()), "cannot copy CopyFails .RuntimeError: one of a kind"),
    "a negative length": (lambda: train(data=Items(pair, -3)), "training set: Items has no length"),
    "targets beyond 64 bits": (
        lambda: train(data=Items(lambda index: (INPUTS[index], 2**70))),
        r"target of Items\[0\] is 1180591620717411303424",
    ),
    "inputs of text": (
        lambda: train(data=Items(lambda index: (np.str_("odd"), 1))),
        r"input of Items\[0\] is no tensor",
    ),
    "a number of classes": (
        lambda: train(data=Named(3)),
        "Named.classes = 3: .* a list of the classes' names",
    ),
    "an unknown column": (lambda: train().column("precision"), "column 'precision': the records have round"),
    "no column": (lambda: train().column("latency"), "column 'latency': the records have round"),
    "a page of 3": (lambda: train().write_report(3), "path = 3; give a path"),  # type: ignore[arg-type]
}


def _network() -> histfl.Network:
    return histfl.Network.uniform(cells=1, clients=2)


def _sets() -> Any:
    return (INPUTS, TARGETS), (INPUTS, TARGETS)


@pytest.mark.filterwarnings("ignore")  # torch's of nested and quantised tensors
@pytest.mark.parametrize(("call", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_named(
    call: Callable[[], object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_network_may_be_given_as_lists() -> None:
    of_lists = histfl.Network([1, 2], [1e9] * 3, [10.0] * 3, [0.1] * 3)  # type: ignore[arg-type]
    assert of_lists.cell(1).cpu_hz.tolist() == [1e9, 1e9]
    assert of_lists.offsets.tolist() == [0, 1, 3]


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_a_model_may_hold_a_sparse_buffer(engine: str, tmp_path: Path) -> None:
    class Mixing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp()
            self.register_buffer("mix", torch.eye(8).to_sparse())

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            mixed: torch.Tensor = torch.sparse.mm(self.get_buffer("mix"), inputs.T).T
            outputs: torch.Tensor = self.layers(mixed)
            return outputs

    settings = {"rounds": 2, "engine": engine, "split": "iid"}
    plain, mixed = train(**settings), train(Mixing(), **settings)
    assert mixed.loss == pytest.approx(plain.loss, rel=1e-5)
    train(Mixing(), out=tmp_path / "run", engine=engine)
    assert len(train(Mixing(), out=tmp_path / "run", engine=engine, rounds=2, resume=True).records) == 2


class InPlace(torch.nn.Module):
    """Scales its inputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(inputs.sub_(0.5).div_(2.0))
        return outputs


class OutOfPlace(InPlace):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers((inputs - 0.5) / 2.0)
        return outputs


@pytest.mark.parametrize("method", ["hist", "hfedavg"])
@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_a_model_may_work_on_its_inputs_in_place(method: str, engine: str) -> None:
    samples = INPUTS.clone()
    settings = {"rounds": 2, "method": method, "engine": engine}
    found = train(InPlace(), (samples, TARGETS), **settings)
    assert torch.equal(samples, INPUTS)
    assert found.loss.tolist() == train(OutOfPlace(), **settings).loss.tolist()


def test_random_numbers_of_an_evaluation_are_the_same_in_every_run() -> None:
    class Noisy(OutOfPlace):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs + torch.randn_like(inputs))

    model, before = Noisy(), torch.get_rng_state()
    first, second = train(model, rounds=2), train(model, rounds=2)
    assert first.loss.tolist() == second.loss.tolist()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_a_submodel_too_small_for_the_model_is_said_in_one_line(engine: str) -> None:
    class Largest(torch.nn.Module):
        """The two largest of six units, which one unit does not have."""

        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = torch.nn.Linear(8, 6), torch.nn.Linear(6, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = torch.relu(self.enter(inputs))
            outputs: torch.Tensor = self.leave(hidden * (hidden >= hidden.topk(2).values[:, -1:]))
            return outputs

    with pytest.raises(UsageError, match=r"local step .RuntimeError: selected index.*method\.exclude"):
        train(Largest(), network=histfl.Network.uniform(cells=6, clients_per_cell=1), engine=engine)


@pytest.mark.parametrize(("part", "where"), [("train", "a client's local step"), ("test", "an evaluation")])
def test_a_sample_that_the_model_does_not_take_is_said_in_one_line(part: str, where: str) -> None:
    """Beyond the first ones, which are tried before the first round."""
    words = torch.arange(40)[:, None].expand(40, 4) % 11
    odd = words.clone()
    odd[20:] = 11
    model = torch.nn.Sequential(torch.nn.Embedding(11, 6), torch.nn.Flatten(), torch.nn.Linear(24, 3))
    sets = {"train": words, "test": words} | {part: odd}
    with pytest.raises(UsageError, match=f"fails in {where} .IndexError: index out of range.*the samples"):
        train(model, (sets["train"], TARGETS), (sets["test"], TARGETS), method="hfedavg", local_steps=4)


def _empties(record: dict[str, Any]) -> None:
    record["latency"].clear()
    record.clear()


def _changes(record: dict[str, Any]) -> None:
    record["latency"]["seconds"] = record["accuracy"] = "x"
    record |= {"round": 99, "extra": object()}


@pytest.mark.parametrize("follower", [_empties, _changes])
def test_a_follower_that_changes_its_record_harms_no_run(
    follower: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    for out in ("alone", "followed"):
        train(rounds=2, out=tmp_path / out, on_round=None if out == "alone" else follower)
    alone, followed = ((tmp_path / out / "rounds.jsonl").read_bytes() for out in ("alone", "followed"))
    assert followed == alone


def test_a_follower_that_raises_is_named_and_the_run_goes_on_later(tmp_path: Path) -> None:
    whole = train(rounds=3, out=tmp_path / "whole")

    def failing(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyError("mine")

    with pytest.raises(UsageError, match="as on_round failed after round 2: KeyError: 'mine'") as raised:
        train(rounds=3, out=tmp_path / "run", on_round=failing)
    assert isinstance(raised.value.__cause__, KeyError)
    assert f"train(..., out={str(tmp_path / 'run')!r}, resume=True)" in str(raised.value)
    resumed = train(rounds=3, out=tmp_path / "run", resume=True)
    assert resumed.records == whole.records
    with pytest.raises(UsageError, match="nothing of the run is kept"):
        train(rounds=3, on_round=failing)


def test_the_keyboard_still_interrupts(tmp_path: Path) -> None:
    def interrupted(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(rounds=3, out=tmp_path / "run", on_round=interrupted)
    assert len(train(rounds=3, out=tmp_path / "run", resume=True).records) == 3
