"""Metrics, each against its definition written out in numpy, whole and in batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from histfl.data import TensorData
from histfl.training.evaluation import Evaluation, evaluate, evaluate_holders, spreads
from histfl.training.metrics import (
    METRICS,
    R2,
    ExactMatch,
    FunctionMetric,
    MeanAbsolute,
    MeanIoU,
    Metric,
    MicroF1,
    Perplexity,
    PlaceAccuracy,
    RootMeanSquare,
    bounds_of,
)
from histfl.training.objective import Objective
from histfl.training.objectives import OBJECTIVES, language_modelling, regression

G = torch.Generator().manual_seed(3)
REAL, GUESS = (torch.randn(37, 3, generator=G) + 1000.0 * k for k in (1, 1))
LABELS, SCORES = (torch.rand(37, 4, generator=G) > 0.7).float(), torch.randn(37, 4, generator=G)
PIXELS, PIXEL_SCORES = torch.randint(4, (37, 5, 5), generator=G), torch.randn(37, 5, 5, 5, generator=G)
PIXELS[:, 0] = -100
TOKENS, TOKEN_SCORES = torch.randint(6, (37, 5), generator=G), torch.randn(37, 5, 6, generator=G)
TOKENS[4:9] = -100


def r2(outputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    rest = ((targets - outputs) ** 2).sum(axis=0)
    around = ((targets - targets.mean(axis=0)) ** 2).sum(axis=0)
    return float((1 - rest / around).mean())


def f1(outputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    said, true = outputs > 0, targets > 0
    precision, recall = (said & true).sum() / said.sum(), (said & true).sum() / true.sum()
    return float(2 * precision * recall / (precision + recall))


def iou(outputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    said, counted = outputs.argmax(axis=1), targets != -100
    each = [
        ((said == c) & (targets == c) & counted).sum() / (((said == c) | (targets == c)) & counted).sum()
        for c in range(5)
    ]
    return float(np.mean(each))


def perplexity(outputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    outputs, targets = outputs.reshape(-1, 6), targets.reshape(-1)
    p = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    counted = targets != -100
    return float(np.exp(-np.log(p[counted, targets[counted]]).mean()))


def right(axis: int) -> Callable[..., float]:
    return lambda outputs, targets: float(
        (outputs.argmax(axis=axis) == targets).sum() / (targets != -100).sum()
    )


ORACLES: list[tuple[Metric, torch.Tensor, torch.Tensor, Callable[..., float]]] = [
    (RootMeanSquare(), GUESS, REAL, lambda o, t: float(np.sqrt(((o - t) ** 2).mean()))),
    (MeanAbsolute(), GUESS, REAL, lambda o, t: float(np.abs(o - t).mean())),
    (R2(), GUESS, REAL, r2),
    (MicroF1(), SCORES, LABELS, f1),
    (ExactMatch(), SCORES, LABELS, lambda o, t: float(((o > 0) == (t > 0)).all(axis=1).mean())),
    (MeanIoU(), PIXEL_SCORES, PIXELS, iou),
    (PlaceAccuracy(1), PIXEL_SCORES, PIXELS, right(1)),
    (PlaceAccuracy(), TOKEN_SCORES, TOKENS, right(2)),
    (Perplexity(), TOKEN_SCORES, TOKENS, perplexity),
]


@pytest.mark.parametrize(("metric", "outputs", "targets", "oracle"), ORACLES, ids=lambda x: type(x).__name__)
def test_a_metric_is_its_definition_whole_and_in_batches(
    metric: Metric, outputs: torch.Tensor, targets: torch.Tensor, oracle: Callable[..., float]
) -> None:
    expected = oracle(outputs.double().numpy(), targets.numpy())
    whole = metric.sums(outputs, targets)
    assert whole.dtype in (torch.int64, torch.float64)
    parts = [metric.sums(*pair) for pair in zip(outputs.split(5), targets.split(5), strict=True)]
    for sums in (whole, torch.stack(parts).sum(dim=0)):
        assert metric.value(sums, len(targets)) == pytest.approx(expected, rel=1e-6)
    lowest, highest = bounds_of(metric)
    assert lowest <= expected <= highest


def test_metrics_of_extremes_are_numbers() -> None:
    same = torch.ones(5, 1)
    assert R2().value(R2().sums(same, same), 5) == 1
    assert R2().value(R2().sums(0 * same, same), 5) == 0
    assert MicroF1().value(MicroF1().sums(-same, 0 * same), 5) == 0
    assert math.isfinite(Perplexity().value(torch.tensor([1e9, 1.0]), 1))
    for metric in (MeanIoU(), PlaceAccuracy(1)):
        nothing = metric.sums(torch.zeros(2, 3, 2, 2), torch.full((2, 2, 2), -100))
        assert metric.value(nothing, 2) == 0


def test_every_registered_metric_has_a_name_and_a_direction() -> None:
    for name, make in METRICS.items():
        metric = make()
        assert (name, isinstance(metric.title, str)) == (name, True)
        assert isinstance(metric.higher_is_better, bool)
    for make_objective in OBJECTIVES.values():
        objective = make_objective()
        assert objective.goal in objective.metrics
        better, worse = (0.5, 0.1) if objective.aim.higher_is_better else (0.1, 0.5)
        assert objective.reaches(better, worse)
        assert objective.best([worse, better]) == better


class Double(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * inputs


DATA = TensorData(torch.arange(20.0).view(20, 1), torch.linspace(0, 30, 20).view(20, 1))
ORDER, OFFSETS = np.random.default_rng(1).permutation(20), np.array([0, 1, 9, 10, 20])


def with_function(objective: Objective) -> Objective:
    def most(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).abs().max()

    return Objective(objective.loss, {**objective.metrics, "most": FunctionMetric("most", most)}, "most")


@pytest.mark.parametrize("batch_size", [3, 1000])
def test_holders_are_evaluated_as_each_alone(batch_size: int) -> None:
    objective = with_function(regression())
    found = evaluate_holders(Double(), DATA, objective, ORDER, OFFSETS, batch_size=batch_size)
    assert len(found) == 4
    for holder, evaluation in enumerate(found):
        own = torch.from_numpy(ORDER[OFFSETS[holder] : OFFSETS[holder + 1]])
        alone = evaluate(Double(), TensorData(DATA.inputs[own], DATA.targets[own]), objective)
        assert evaluation.loss == pytest.approx(alone.loss)
        assert evaluation.metrics == pytest.approx(alone.metrics)


class Alike(torch.nn.Module):
    """Scores of tokens from the one before alone."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.sin(ids[..., None] + torch.arange(6.0))


@pytest.mark.parametrize("batch_size", [3, 1000])
def test_the_loss_is_the_mean_over_the_places_that_count(batch_size: int) -> None:
    """However samples of unlike lengths fall into batches, for all of them and for each holder."""
    ids = torch.randint(6, (20, 5), generator=G)
    following = torch.randint(6, (20, 5), generator=G)
    for sample in range(20):
        following[sample, sample % 4 + 1 :] = -100
    data, objective = TensorData(ids, following), language_modelling()
    whole = evaluate(Alike(), data, objective, batch_size=batch_size)
    assert whole.loss == pytest.approx(math.log(whole.metrics["perplexity"]), rel=1e-6)
    for each in evaluate_holders(Alike(), data, objective, ORDER, OFFSETS, batch_size=batch_size):
        assert each.loss == pytest.approx(math.log(each.metrics["perplexity"]), rel=1e-6)
    nothing = TensorData(ids, torch.full_like(following, -100))
    assert evaluate(Alike(), nothing, objective, batch_size=batch_size).loss == 0


def test_the_worst_decile_and_the_spread_follow_the_direction() -> None:
    objective = regression()
    values = np.arange(1.0, 12.0)  # eleven holders: two are the worst tenth
    found = [
        Evaluation(x, {"rmse": x, "mae": x, "r2": -x}) for x in np.random.default_rng(1).permutation(values)
    ]
    told = spreads(found, objective)
    for name in ("loss", "rmse"):
        assert told[name] == pytest.approx({"mean": 6.0, "worst_decile": 10.5, "spread": values.std()})
    assert told["r2"]["worst_decile"] == pytest.approx(-10.5)


def test_a_function_is_given_all_outputs_of_a_model_with_several() -> None:
    class Both(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> dict[str, Any]:
            return {"number": inputs[:, 0], "more": (inputs, None)}

    def both(outputs: dict[str, Any], targets: torch.Tensor) -> torch.Tensor:
        assert outputs["more"][1] is None
        assert len(outputs["more"][0]) == len(targets)
        return (outputs["number"] - targets[:, 0]).abs().mean()

    objective = Objective(
        lambda outputs, targets: targets.sum() * 0, {"both": FunctionMetric("both", both)}, "both"
    )
    data = TensorData(GUESS, REAL)
    found = [evaluate(Both(), data, objective, batch_size=size).metrics["both"] for size in (7, 37)]
    assert found == pytest.approx([(GUESS - REAL)[:, 0].abs().mean().item()] * 2, rel=1e-5)
