"""A small task of every kind: a model, data and an objective that fit each other, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from histfl.data import TensorData
from histfl.data.inputs import Inputs, chosen


class Pixels(nn.Module):
    """Scores [sample, class, height, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.leave = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.leave(torch.relu(self.inner(images)))


class Tokens(nn.Module):
    """Scores [sample, place, token] of what follows each place, from it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner, self.leave = nn.Embedding(7, 6), nn.Linear(6, 12), nn.Linear(12, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.leave(torch.relu(self.inner(self.embedding(ids))))


class Masked(nn.Module):
    """A number from the mean over the places that `attention_mask` has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.leave = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, values: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mean = (values * attention_mask[..., None]).sum(dim=1) / attention_mask.sum(dim=1, keepdim=True)
        return self.leave(torch.tanh(self.inner(mean)))


class Both(nn.Module):
    """A number from two vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.leave = nn.Linear(5, 12), nn.Linear(3, 12, bias=False), nn.Linear(12, 1)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.leave(torch.relu(self.left(left) + self.right(right)))


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    inputs: Inputs
    targets: torch.Tensor
    objective: dict[str, Any]
    class_names: tuple[str, ...] = ()


def _dense(outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, outputs))


def cases(samples: int = 60) -> dict[str, Case]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(samples, *shape, dtype=torch.float64, generator=generator)

    dense, images = normal(6), normal(1, 5, 5)
    pixels = (images[:, 0] > 0).long() + (images[:, 0] > 1).long()
    pixels[:, 0, :2] = -100  # of every image, so that whole clients are not ignored
    stream = torch.randint(7, (samples * 4 + 1,), generator=generator)
    following = stream[1:].view(samples, 4).clone()
    following[3:9] = 5  # a padding that counts nowhere
    mask = torch.ones(samples, 3, dtype=torch.int64)
    mask[::2, 2] = 0
    left, right = normal(5), normal(3)
    return {
        "regression": Case(_dense(1), dense, dense[:, 0] - 2 * dense[:, 1].square(), {"name": "regression"}),
        "huber of three": Case(
            _dense(3), dense, dense[:, :3].exp(), {"name": "regression", "error": "huber"}
        ),
        "multilabel": Case(_dense(4), dense, (dense[:, :4] > 0.3).double(), {"name": "multilabel"}),
        "segmentation": Case(Pixels, images, pixels, {"name": "segmentation"}),
        "language": Case(
            Tokens,
            stream[:-1].view(samples, 4),
            following,
            {"name": "language-modelling", "ignore_index": 5},
        ),
        "a dictionary": Case(
            Masked,
            {"values": normal(3, 4), "attention_mask": mask},
            normal(1),
            {"name": "regression", "error": "absolute"},
        ),
        "a tuple": Case(Both, (left, right), left[:, :1] * right[:, :1], {"name": "regression"}),
    }


def model_of(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return case.model().to(dtype)


def halves(case: Case) -> tuple[TensorData, TensorData]:
    """Two thirds to train on, and the rest."""
    middle = 2 * len(case.targets) // 3
    each = [
        TensorData(chosen(case.inputs, part), case.targets[part], case.class_names)
        for part in (slice(middle), slice(middle, None))
    ]
    return each[0], each[1]
