"""Clients whose samples the user names, from Python and by a function on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import SMALL, Answer
from small_training import INPUTS, NETWORK, TARGETS, mlp, train

from histfl.data import split
from histfl.errors import CheckpointError, UsageError
from histfl.seeds import Seeds

# One client has a single sample; sample 2 is with two clients, with the last one twice.
UNEVEN = [range(17), [17], torch.arange(18, 25), np.array([39, 2, 30, 2])]
FUNCTION = """
def by_turns(labels, clients_per_cell):
    clients = int(clients_per_cell.sum())
    return [range(client, len(labels), clients) for client in range(clients)]


def at_random(labels, clients_per_cell, generator):
    return [generator.choice(len(labels), 20) for _ in range(clients_per_cell.sum())]


def too_few(labels):
    return [[0, 1]]
"""


@pytest.fixture
def _functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of split functions, `own_splits`."""
    (tmp_path / "own_splits.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_splits", raising=False)


def test_a_given_split_trains_as_the_same_one_by_name() -> None:
    dealt = split("shards", TARGETS.numpy(), NETWORK.clients_per_cell, Seeds(1).numpy("split"))
    named = train(split="shards", rounds=2)
    given = train(split=[dealt.client(client) for client in range(4)], rounds=2)
    assert [record["loss"] for record in given.records] == [record["loss"] for record in named.records]
    assert (named.summary["split"], given.summary["split"]) == ("shards", "given")


def test_clients_of_different_sizes_train_alike_in_every_engine() -> None:
    data = (INPUTS.double(), TARGETS)
    plain, fast = (
        train(mlp().double(), data, split=UNEVEN, rounds=3, engine=engine).model
        for engine in ("reference", "vectorised")
    )
    for one, other in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_client_trains_on_its_samples_alone() -> None:
    held = [[0, 3], [6, 9], [12, 15], [18, 21]]
    changed = INPUTS + 100
    changed[np.ravel(held)] = INPUTS[np.ravel(held)]
    first, second = (
        train(data=(inputs, TARGETS), test=(INPUTS, TARGETS), split=held).model
        for inputs in (INPUTS, changed)
    )
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("holdings", "message"),
    [
        (3, "of type int; give a list"),
        (iter(UNEVEN), "give a list"),
        (dict(enumerate(UNEVEN)), "of type dict; give a list"),
        (UNEVEN[:3], "3 clients and the network 4"),
        ([*UNEVEN[:3], []], "client 3 holds no sample"),
        ([*UNEVEN[:3], [40]], "client 3 holds sample 40; the training set has 0 to 39"),
        ([*UNEVEN[:3], [-1]], "client 3 holds sample -1"),
        ([*UNEVEN[:3], [0.5]], "client 3 has float64"),
        ([*UNEVEN[:3], [True] * 40], "client 3 has bool"),
        ([*UNEVEN[:3], [[1], [2, 3]]], "client 3: ValueError"),
        ([*UNEVEN[:3], 7], "client 3 has int64 of shape ()"),
        ("given", "histfl.train(split=[...])"),
        ("shard", "did you mean 'shards'?"),
    ],
)
def test_a_split_that_cannot_be_is_named(holdings: object, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        train(split=holdings)
    assert message in str(raised.value)


def test_a_run_goes_on_with_the_same_clients_alone(tmp_path: Path) -> None:
    train(split=UNEVEN, out=tmp_path / "run")
    assert len(train(split=UNEVEN, out=tmp_path / "run", resume=True).records) == 1
    with pytest.raises(CheckpointError, match="other data"):
        train(split=[*UNEVEN[:3], [1, 2]], out=tmp_path / "run", resume=True)


@pytest.mark.usefixtures("_functions")
@pytest.mark.parametrize("name", ["by_turns", "at_random"])
def test_a_function_of_the_users_deals_the_samples(
    name: str, histfl_command: Callable[..., Answer], tmp_path: Path
) -> None:
    answers = [
        histfl_command(
            "run", *SMALL, "--set", f"data.split=own_splits:{name}", "--out", str(tmp_path / out), "--json"
        )
        for out in ("one", "two")
    ]
    assert [answer.code for answer in answers] == [0, 0]
    assert answers[0].json["split"] == f"own_splits:{name}"
    assert (tmp_path / "one/rounds.jsonl").read_bytes() == (tmp_path / "two/rounds.jsonl").read_bytes()
    shown = histfl_command("data", "show", *SMALL[:-2], "--set", f"data.split=own_splits:{name}")
    assert shown.code == 0


@pytest.mark.usefixtures("_functions")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_splits:too_few", "the split has 1 clients and the network"),
        ("own_splits:nothing", "cannot be imported"),
        ("given", "is for Python"),
        ("by_turns", "known splits: shards"),
    ],
)
def test_a_function_that_cannot_serve_is_one_line(
    name: str, message: str, histfl_command: Callable[..., Answer], tmp_path: Path
) -> None:
    answer = histfl_command("run", *SMALL, "--set", f"data.split={name}", "--out", str(tmp_path / "run"))
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.strip().splitlines()) == 1
