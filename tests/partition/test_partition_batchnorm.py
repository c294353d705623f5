"""Running statistics: none in training, recomputed from data before evaluation."""

from __future__ import annotations

import models_for_tests as models
import pytest
import torch
from torch import nn

from histfl.errors import UsageError
from histfl.partition import has_batch_statistics, recompute_statistics, training_copy


def test_training_tracks_nothing() -> None:
    model = models.MobileNet()
    runner = training_copy(model)
    assert not has_batch_statistics(runner)
    assert dict(runner.named_buffers()) == {}
    runner(models.images(3, 16))
    assert dict(runner.named_buffers()) == {}
    assert has_batch_statistics(model)


def test_recomputed_statistics_are_the_averages_over_the_batches() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[1].running_mean.fill_(99.0)
    batches = [torch.randn(8, 3) * scale for scale in (1.0, 2.0, 3.0)]
    recompute_statistics(model, batches)
    assert torch.allclose(model[1].running_mean, torch.stack([b.mean(0) for b in batches]).mean(0), atol=1e-6)
    assert torch.allclose(model[1].running_var, torch.stack([b.var(0) for b in batches]).mean(0), atol=1e-5)
    assert model[1].num_batches_tracked == 3


def test_instance_normalisation_gets_its_statistics_too() -> None:
    model = nn.Sequential(nn.InstanceNorm1d(3, affine=True, track_running_stats=True))
    batches = [torch.randn(8, 3, 20) * scale + scale for scale in (1.0, 2.0, 3.0)]
    recompute_statistics(model, batches)
    means, variances = (
        torch.stack([moment.mean(dim=0) for moment in moments]).mean(dim=0)
        for moments in ([b.mean(dim=2) for b in batches], [b.var(dim=2) for b in batches])
    )
    assert torch.allclose(model[0].running_mean, means, atol=1e-5)
    assert torch.allclose(model[0].running_var, variances, rtol=1e-5)


def test_recomputing_leaves_modes_momentum_and_parameters_as_they_were() -> None:
    model = models.MobileNet().train()
    model.head.eval()
    model.stem[1].momentum = 0.3
    modes = [module.training for module in model.modules()]
    parameters = [value.clone() for value in model.parameters()]
    recompute_statistics(model, [models.images(3, 16)])
    assert [module.training for module in model.modules()] == modes
    assert model.stem[1].momentum == 0.3
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(value.grad is None for value in model.parameters())


def test_one_batch_makes_evaluation_equal_training_on_it() -> None:
    # With the unbiased variance in evaluation and the biased one in training, up to n/(n-1).
    model = models.ResNet((8, 16), 1).double()
    batch = models.images(3, 8, batch=64).double()
    recompute_statistics(model, [batch])
    assert torch.allclose(model.eval()(batch), training_copy(model)(batch), rtol=2e-2, atol=1e-2)


def test_no_data_is_an_error() -> None:
    with pytest.raises(UsageError, match="at least one batch"):
        recompute_statistics(models.MobileNet(), [])


def test_a_model_without_statistics_reads_no_data() -> None:
    def never():
        raise AssertionError("must not be read")
        yield

    recompute_statistics(models.LeNet5(), never())
    assert not has_batch_statistics(models.LeNet5())
