"""Running statistics: none while training, all of them anew before evaluation.

A running mean of a channel that is trained in another cell every round, next to other channels, is a
mean over different models. So (as in HeteroFL's static batch normalisation) training uses the
statistics of each batch and keeps none, cells exchange none, and the merged model's statistics are
computed from data once, before it is evaluated. InstanceNorm layers with running statistics are
treated alike; GroupNorm and LayerNorm have none.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from histfl.errors import UsageError
from histfl.partition.forward import copy_of
from histfl.partition.layers import take_sizes_from_tensors

_Normalisation = nn.modules.batchnorm._NormBase


def training_copy(model: nn.Module) -> nn.Module:
    """A copy of `model` to run compact tensors through with `torch.func.functional_call`.

    It is in train mode, its BatchNorm layers use batch statistics and have no buffers for others, and
    its layers take their sizes from the tensors. `model` itself does not change.
    """
    copy = copy_of(model).train()
    for layer in _tracking(copy):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    take_sizes_from_tensors(copy)
    return copy


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether `model` has running statistics that must be recomputed before it is evaluated."""
    return bool(_tracking(model))


def recompute_statistics(model: nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """Set every running mean and variance of `model` to its average over `batches`, in place.

    Every batch has the same weight, whatever its size. Only the normalisation layers are in train mode
    meanwhile, so that dropout is off; `torch.optim.swa_utils.update_bn` would leave it on. A model
    without running statistics does not read `batches`.
    """
    layers = _tracking(model)
    if not layers:
        return
    modes = {module: module.training for module in model.modules()}
    momenta = [layer.momentum for layer in layers]
    seen = 0
    try:
        model.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.train()
        with torch.no_grad():
            for batch in batches:
                seen += 1
                for layer in layers:  # a cumulative average; of momentum None only BatchNorm makes one
                    layer.momentum = 1 / seen
                model(batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    if seen == 0:
        raise UsageError("running statistics need at least one batch of data, and there was none")


def _tracking(model: nn.Module) -> list[_Normalisation]:
    return [m for m in model.modules() if isinstance(m, _Normalisation) and m.track_running_stats]
