"""Models that do more than compute scores from inputs and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import INPUTS, TARGETS, train
from torch import nn
from torch.utils.checkpoint import checkpoint

import histfl
from histfl.errors import UsageError


class Recomputing(nn.Module):
    """One that computes a block's activations anew in the backward pass."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.enter, self.inner, self.leave = nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.again = again

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.enter(inputs))
        block = lambda values: torch.tanh(self.inner(values))  # noqa: E731
        hidden = checkpoint(block, hidden, use_reentrant=False) if self.again else block(hidden)
        outputs: torch.Tensor = self.leave(hidden)
        return outputs


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize("method", ["hist", "hfedavg"])
def test_activations_that_are_computed_anew_are_the_clients_own(method: str, engine: str) -> None:
    settings = {"method": method, "engine": engine, "rounds": 3, "learning_rate": 0.3, "theory_every": 1}
    plain, again = (train(Recomputing(again), **settings) for again in (False, True))
    assert again.loss == pytest.approx(plain.loss, rel=1e-5)
    found, expected = ([record["theory"]["smoothness"] for record in run.records] for run in (again, plain))
    assert found == pytest.approx(expected, rel=1e-4)


class Remembering(nn.Module):
    """One that keeps what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 6), nn.Linear(6, 3)
        self.seen: list[torch.Tensor] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.last = torch.relu(self.enter(inputs))
        self.seen = [self.last]
        outputs: torch.Tensor = self.leave(self.last)
        return outputs


def test_a_model_may_keep_what_a_forward_pass_computed() -> None:
    model = Remembering()
    model(INPUTS[:2])
    assert train(model).accuracy.shape == (1,)


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"optimiser": "adam"},
        {"clip_norm": 1.0},
        {"proximal": 0.1},
        {"correction": "mtgc"},
        {"theory_every": 1},
    ],
    ids=str,
)
def test_an_embedding_with_sparse_gradients_is_trained_as_another(
    settings: dict[str, Any], engine: str
) -> None:
    tokens = torch.randint(9, (40, 3), generator=torch.Generator().manual_seed(1))
    found = []
    for sparse in (True, False):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Embedding(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3)
        )
        found.append(train(model, (tokens, TARGETS), engine=engine, **settings))
        assert model[0].sparse == sparse
    assert found[0].loss.tolist() == found[1].loss.tolist()


def test_sparse_gradients_of_a_function_are_compared_as_others() -> None:
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layers = (
                nn.Parameter(torch.randn(9, 4)),
                nn.Sequential(nn.Linear(4, 6), nn.ReLU()),
            )
            self.leave = nn.Linear(6, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            found = torch.nn.functional.embedding(tokens, self.words, sparse=True).mean(dim=1)
            outputs: torch.Tensor = self.leave(self.layers(found))
            return outputs

    tokens = torch.randint(9, (40, 3), generator=torch.Generator().manual_seed(1))
    assert train(Looking(), (tokens, TARGETS)).accuracy.shape == (1,)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(inputs)
        return outputs


class ReturnsNothing(Small):
    """As overrides that keep a layer in evaluation often do."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)

    def eval(self) -> Any:
        super().train(False)


class Expanded(Small):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(1).expand(8))


class Teacher(Small):
    """A frozen copy follows the layers in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.follower = nn.Linear(8, 3).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.follower.weight.mul_(0.5)
        return super().forward(inputs) + self.follower(inputs)


class Counting(Small):
    seen = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += self.training
        return super().forward(inputs) * (1 + 0.1 * self.seen)


@pytest.mark.parametrize("kind", [ReturnsNothing, Expanded, Teacher, Counting])
def test_engines_agree_on_models_with_ways_of_their_own(kind: type[nn.Module]) -> None:
    settings: dict[str, Any] = {"method": "hfedavg", "rounds": 2}
    found = [train(kind(), engine=engine, **settings).loss for engine in ("reference", "vectorised")]
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def test_extra_state_is_left_out_of_the_model_file(tmp_path: Path) -> None:
    class Extra(Small):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

        def set_extra_state(self, state: object) -> None:
            raise AssertionError("nothing was kept")

    run = train(Extra(), out=tmp_path / "run")
    loaded = histfl.Run.load(tmp_path / "run", model=Extra())
    assert torch.equal(loaded.model.layers[0].weight, run.model.layers[0].weight)


@pytest.mark.parametrize("method", ["hist", "hfedavg"])
def test_a_forward_pass_bound_to_another_model_is_refused(method: str) -> None:
    model = Small()
    plain = model.forward
    model.forward = lambda inputs: 2 * plain(inputs)
    with pytest.raises(UsageError, match=r"none of its trainable parameters; .*by self"):
        train(model, method=method)
