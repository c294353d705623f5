"""Engines agree whatever is chosen together: the registries' product, thinned out for every run of the tests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest
import torch
from tasks_for_tests import Case, cases, halves, model_of
from torch import nn

from histfl.engines import ReferenceEngine, VectorisedEngine
from histfl.network import Network
from histfl.partition import State
from histfl.runs.build import Experiment, Ingredients, build
from histfl.runs.config import Config
from histfl.settings import checked
from histfl.training import Engine, RoundOutcome, hist
from histfl.training.cloud import CLOUD_STEPS
from histfl.training.codecs import CODECS
from histfl.training.corrections import CORRECTIONS
from histfl.training.methods import METHODS
from histfl.training.optimisers import OPTIMISERS
from histfl.training.schedules import SCHEDULES


def classes() -> Case:
    inputs = torch.randn(60, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    model = lambda: nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))  # noqa: E731
    return Case(model, inputs, torch.arange(60) % 3, {"name": "classification"}, ("a", "b", "c"))


TASKS = {name: case for name, case in cases().items() if name != "a tuple"} | {"classification": classes()}
AT_CLIENTS: dict[str, dict[str, Any]] = {
    **{name: {"optimiser": name} for name in OPTIMISERS},
    **{name: {"correction": name} for name in CORRECTIONS},
    **{
        f"{name} schedule": {"schedule": name, "warmup_rounds": 1} for name in SCHEDULES if name != "constant"
    },
    "momentum": {"momentum": 0.5, "weight_decay": 0.1},
    "clipped": {"clip_norm": 0.1},
    "proximal": {"proximal": 0.3},
    "proximal adam": {"optimiser": "adam", "proximal": 0.3},
}
KINDS = [
    list(kind)
    for kind in (TASKS, AT_CLIENTS, CODECS, CLOUD_STEPS, METHODS, ("uniform", "samples"), (0.0, 0.5))
]
Choice = tuple[Any, ...]


def _pairs(choice: Choice) -> set[tuple[Any, ...]]:
    return set(combinations(enumerate(choice), 2))


def thinned() -> Iterator[Choice]:
    """Every task with every way to train it, the rest such that every two choices meet at least once."""
    others = [*product(*KINDS[2:])]
    random.Random(1).shuffle(others)
    starts = [*product(*KINDS[:2])]
    left = {
        pair for i, j in combinations(range(len(KINDS)), 2) for pair in product(_numbered(i), _numbered(j))
    }
    while starts or left:
        start = starts.pop() if starts else _start_of(min(left, key=repr))
        best = max(others, key=lambda rest: len(_pairs((*start, *rest)) & left))
        left -= _pairs((*start, *best))
        yield (*start, *best)


def _numbered(kind: int) -> list[tuple[int, Any]]:
    return [(kind, choice) for choice in KINDS[kind]]


def _start_of(pair: tuple[tuple[int, Any], ...]) -> Choice:
    """A task and a way to train it, such that both of the pair can be chosen."""
    told = dict(pair)
    return tuple(told.get(kind, KINDS[kind][0]) for kind in (0, 1))


THINNED = [*thinned()]


@pytest.mark.parametrize("choice", THINNED, ids=lambda choice: " ".join(map(str, choice)))
def test_engines_agree(choice: Choice) -> None:
    check(*choice)


@pytest.mark.exhaustive
def test_engines_agree_on_a_thousand_more() -> None:
    for choice in random.Random(2).sample([*product(*KINDS)], 1000):
        check(*choice)


def check(task: str, clients: str, codec: str, cloud: str, method: str, weights: str, scale: float) -> None:
    run = experiment(
        TASKS[task],
        codec={"name": codec},
        cloud={"name": cloud},
        method={"name": method, "scale": scale},
        training=AT_CLIENTS[clients] | {"weights": weights},
    )
    expected, found = outcomes(run, ReferenceEngine()), outcomes(run, VectorisedEngine())
    for right, other in zip(expected, found, strict=True):
        for name, value in right.state.items():
            torch.testing.assert_close(other.state[name], value, rtol=1e-7, atol=1e-8, msg=name)
        assert (right.parameters == other.parameters).all()
        assert (right.bits == other.bits).all()


def experiment(case: Case, **sections: Any) -> Experiment:
    training = {"local_steps": 2, "edge_rounds": 2, "batch_size": 3, "learning_rate": 0.05, "rounds": 2}
    tables = {
        "objective": case.objective,
        "data": {"split": "iid"},
        "uplink": {"name": "ideal"},
        "network": {"dropout": 0.3},
    }
    tables |= sections | {"training": training | sections["training"]}
    ingredients = Ingredients(model_of(case), *halves(case), Network.uniform(cells=3, clients=7))
    return build(checked(Config, tables, "test"), ingredients, device="cpu", engine="reference")


def outcomes(run: Experiment, engine: Engine) -> list[RoundOutcome]:
    state: State = {name: tensor.detach().clone() for name, tensor in run.model.named_parameters()}
    return list(hist(run.hist, state, engine, first_round=0, rounds=2))
