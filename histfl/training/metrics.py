"""Numbers that tell how good a model is on a data set: what its batches add up to, or a function of all outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

IGNORED = -100  # torch's own: the class of places that count in no loss and no metric


class Measure(Protocol):
    """What targets may speak of."""

    @property
    def title(self) -> str:
        """Its name in words, such as accuracy."""
        ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def is_share(self) -> bool:
        """Whether it is a part of a whole, from 0 to 1, which is shown in per cent."""
        ...


class Metric(Measure, Protocol):
    """A number of a data set, from what its batches add up to. One that says `bounds`, (lowest, highest), has targets
    within them."""

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What a batch adds, in int64 or float64, of any shape."""
        ...

    def value(self, sums: torch.Tensor, samples: int) -> float:
        """The metric of all samples, from the sums over their batches."""
        ...


@dataclass(frozen=True)
class FunctionMetric:
    """`function` of all outputs and targets at once, which are kept until the last batch is through."""

    title: str
    function: Callable[[torch.Tensor, torch.Tensor], Any]
    higher_is_better: bool = True
    is_share: bool = False


@dataclass(frozen=True)
class TestLoss:
    """The loss itself, as a goal."""

    title: str = "loss"
    higher_is_better: bool = False
    is_share: bool = False


LONGEST_TITLE = 80


def is_title(text: object) -> bool:
    """Whether it can stand in the heads of figures and tables: a few words in one line."""
    return isinstance(text, str) and bool(text.strip()) and text.isprintable() and len(text) <= LONGEST_TITLE


def bounds_of(measure: Measure) -> tuple[float, float]:
    """The values that it can have."""
    share = (0.0, 1.0) if measure.is_share else (-math.inf, math.inf)
    lowest, highest = getattr(measure, "bounds", share)
    return float(lowest), float(highest)


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers."""

    title: str = "accuracy"
    higher_is_better: bool = True
    is_share: bool = True

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(dim=1) == targets).sum()

    def value(self, sums: torch.Tensor, samples: int) -> float:
        return float(sums.item()) / samples


@dataclass(frozen=True)
class RootMeanSquare:
    """The root of the mean squared error over all entries of the targets."""

    title: str = "RMSE"
    higher_is_better: bool = False
    is_share: bool = False
    bounds: tuple[float, float] = (0.0, math.inf)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        error = outputs.reshape(targets.shape).double() - targets
        return torch.stack([error.square().sum(), error.new_tensor(error.numel())])

    def value(self, sums: torch.Tensor, samples: int) -> float:
        total, entries = sums.tolist()
        return float(math.sqrt(total / entries))


@dataclass(frozen=True)
class MeanAbsolute:
    """The mean absolute error over all entries of the targets."""

    title: str = "mean absolute error"
    higher_is_better: bool = False
    is_share: bool = False
    bounds: tuple[float, float] = (0.0, math.inf)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        error = outputs.reshape(targets.shape).double() - targets
        return torch.stack([error.abs().sum(), error.new_tensor(error.numel())])

    def value(self, sums: torch.Tensor, samples: int) -> float:
        total, entries = sums.tolist()
        return float(total / entries)


@dataclass(frozen=True)
class R2:
    """1 - squared error / squared distance from the mean, the mean over the entries of a target; an entry that never
    changes has 1 where it is always met, and else 0."""

    title: str = "R2"
    higher_is_better: bool = True
    is_share: bool = False
    bounds: tuple[float, float] = (-math.inf, 1.0)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        y = targets.reshape(len(targets), -1).double()
        error = outputs.reshape(y.shape).double() - y
        return torch.stack([y.sum(dim=0), y.square().sum(dim=0), error.square().sum(dim=0)])

    def value(self, sums: torch.Tensor, samples: int) -> float:
        total, squares, errors = sums
        around = squares - total.square() / samples
        varies = around > 1e-12 * squares  # less is rounding
        shares = torch.where(varies, 1 - errors / around, (errors == 0).double())
        return float(shares.mean())


@dataclass(frozen=True)
class MicroF1:
    """2 right / (2 right + wrong + missed), over all samples and labels; a label is predicted where its output is
    above 0, a probability above a half."""

    title: str = "F1"
    higher_is_better: bool = True
    is_share: bool = False
    bounds: tuple[float, float] = (0.0, 1.0)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        said, true = outputs > 0, targets > 0.5
        return torch.stack([(said & true).sum(), (said != true).sum()])

    def value(self, sums: torch.Tensor, samples: int) -> float:
        right, apart = sums.tolist()
        return float(2 * right / (2 * right + apart)) if right else 0.0


@dataclass(frozen=True)
class ExactMatch:
    """The share of samples of which every label is right."""

    title: str = "exact match"
    higher_is_better: bool = True
    is_share: bool = True

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs > 0) == (targets > 0.5)).flatten(start_dim=1).all(dim=1).sum()

    def value(self, sums: torch.Tensor, samples: int) -> float:
        return float(sums.item()) / samples


@dataclass(frozen=True)
class PlaceAccuracy:
    """The share of places, `ignored` ones left out, with the right class; `axis` is that of the classes."""

    axis: int = -1
    ignored: int = IGNORED
    title: str = "accuracy"
    higher_is_better: bool = True
    is_share: bool = True

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        counted = targets != self.ignored
        right = (outputs.argmax(dim=self.axis) == targets) & counted
        return torch.stack([right.sum(), counted.sum()])

    def value(self, sums: torch.Tensor, samples: int) -> float:
        right, counted = sums.tolist()
        return float(right / counted) if counted else 0.0


@dataclass(frozen=True)
class MeanIoU:
    """Intersection over union of the places of a class, predicted and true, the mean over the classes that occur.
    Outputs are scores [sample, class, ...], targets classes [sample, ...], of which `ignored` ones are left out."""

    ignored: int = IGNORED
    title: str = "mIoU"
    higher_is_better: bool = True
    is_share: bool = False
    bounds: tuple[float, float] = (0.0, 1.0)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        classes, counted = outputs.shape[1], targets != self.ignored
        said, true = outputs.argmax(dim=1)[counted], targets[counted]
        both, of_said, of_true = (
            torch.bincount(x, minlength=classes) for x in (true[said == true], said, true)
        )
        return torch.stack([both, of_said + of_true - both])

    def value(self, sums: torch.Tensor, samples: int) -> float:
        both, union = sums
        occurs = union > 0
        return float((both[occurs] / union[occurs].double()).mean()) if bool(occurs.any()) else 0.0


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean of -log p(target) over all places, `ignored` ones left out; p is the softmax of the outputs
    [sample, place, class]."""

    ignored: int = IGNORED
    title: str = "perplexity"
    higher_is_better: bool = False
    is_share: bool = False
    bounds: tuple[float, float] = (1.0, math.inf)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        scores = outputs.flatten(end_dim=-2)
        total = F.cross_entropy(scores, targets.flatten(), ignore_index=self.ignored, reduction="sum")
        return torch.stack([total.double(), (targets != self.ignored).sum().double()])

    def value(self, sums: torch.Tensor, samples: int) -> float:
        total, counted = sums.tolist()
        return math.exp(min(total / max(counted, 1), 700.0))  # beyond it there is no such number


METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "rmse": RootMeanSquare,
    "mae": MeanAbsolute,
    "r2": R2,
    "f1": MicroF1,
    "exact-match": ExactMatch,
    "miou": MeanIoU,
    "perplexity": Perplexity,
}
