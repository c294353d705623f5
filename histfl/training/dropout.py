"""Dropout whose masks depend on who trains and when, and not on who draws first.

torch's dropout draws from one generator in the order of the calls, which no two engines share. Here a client has
a key for each of its steps, and a mask is a function of the key, the layer and the place of an entry.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from histfl.data.inputs import Inputs, called, parts
from histfl.seeds import lent_to_layers, random_bits

_BITS = 16  # an entry takes of a random word, which serves four
_WHOLE_CHANNELS = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True}


class KeyedDropout(nn.Module):
    """Dropout with the mask that the buffer `key`, int64 [], stands for; `layer` tells the layers of a model apart."""

    key: torch.Tensor

    def __init__(self, p: float, *, whole_channels: bool, layer: int) -> None:
        super().__init__()
        self.p, self.whole_channels, self.layer = p, whole_channels, layer
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return inputs
        return keyed_dropout(inputs, self.key, self.layer, self.p, self.whole_channels)


def keyed_dropout(
    inputs: torch.Tensor, keys: torch.Tensor, layer: int, p: float, whole_channels: bool
) -> torch.Tensor:
    """Inputs [batch, ...] of the client whose key is [], or [client, batch, ...] of those with keys [client]: entries,
    or whole channels, are zero with probability p, the others larger by 1 / (1 - p)."""
    return inputs * dropout_scales(inputs, keys, layer, p, whole_channels)


def dropout_scales(
    inputs: torch.Tensor, keys: torch.Tensor, layer: int, p: float, whole_channels: bool
) -> torch.Tensor:
    """What dropout multiplies the inputs by, 0 or 1 / (1 - p)."""
    shape = inputs.shape[keys.dim() :]
    if whole_channels:
        shape = torch.Size((*shape[:2], *[1] * (len(shape) - 2)))
    entries, words = shape.numel(), -(-shape.numel() * _BITS // 64)
    bits = random_bits(layer, keys.unsqueeze(-1), torch.arange(words, device=inputs.device))
    parts = bits.unsqueeze(-1) >> torch.arange(0, 64, _BITS, device=inputs.device) & (1 << _BITS) - 1
    kept = parts.flatten(-2)[..., :entries] >= round(p * (1 << _BITS))
    scale = 1 / (1 - p) if p < 1 else 0.0
    return kept.view(*keys.shape, *shape).to(inputs.dtype) * scale


def key_dropout(model: nn.Module, examples: Inputs) -> None:
    """Replace the model's dropout layers by keyed ones, where a forward pass of `examples` calls them once: one that
    is called twice would drop the same entries both times, so it stays."""
    calls: Counter[nn.Module] = Counter()
    layers = [m for m in model.modules() if type(m) in _WHOLE_CHANNELS and m.training]
    hooks = [layer.register_forward_pre_hook(lambda module, _: calls.update([module])) for layer in layers]
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), lent_to_layers(0, parts(examples)[0].device):
            model.eval()
            called(model, examples)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    for number, (name, layer) in enumerate(list(model.named_modules())):
        if calls[layer] == 1:
            owner, _, leaf = name.rpartition(".")
            kind = _WHOLE_CHANNELS[type(layer)]
            keyed = KeyedDropout(layer.p, whole_channels=kind, layer=number) if layer.p else nn.Identity()
            setattr(model.get_submodule(owner), leaf, keyed.to(parts(examples)[0].device))


def key_names(model: nn.Module) -> tuple[str, ...]:
    """The buffers that hold the keys of the model's random layers, by their names; all read the same number."""
    layers = (name for name, module in model.named_modules() if type(module) is KeyedDropout)
    return tuple(f"{name}.key" for name in layers)


def step_keys(key: int, clients: torch.Tensor, *, first_step: int, steps: int) -> torch.Tensor:
    """A key for each of several steps of `clients` [client]: [step, client]."""
    step = torch.arange(first_step, first_step + steps, device=clients.device)
    return random_bits(key, step[:, None], clients)
