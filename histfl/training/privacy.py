"""Differential privacy of clients: what one of them sends is bounded, and noise hides what it was.

A client's update over an edge round, x - x_start, is scaled to a norm of at most C over all its tensors. The sum of a
cell's updates then has Gaussian noise of standard deviation z C in every entry (McMahan et al., "Learning
Differentially Private Recurrent Language Models", arXiv 1710.06963; z is the noise multiplier): added once by an edge
that is trusted, or in equal parts by the clients of the edge round before they send, for an edge that sees nothing but
the sum. That needs updates that are sent as they are: where single ones are rounded or cut, the sum has not all of their
noise. What this promises is counted in `histfl.runs.privacy`.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from histfl.arrays import Ints
from histfl.devices import moved
from histfl.errors import UsageError
from histfl.partition import State
from histfl.seeds import random_normal
from histfl.training.optimisers import clipped

Where = Literal["client", "edge"]


@dataclass(frozen=True)
class Privacy:
    """Updates of a norm of at most `clip`, and noise of `noise_multiplier` clips on their sum, added `where` it says."""

    clip: float
    noise_multiplier: float = 0.0
    where: Where = "edge"

    def __post_init__(self) -> None:
        if not 0 < self.clip < math.inf:
            raise UsageError(f"privacy.clip = {self.clip}; it must be positive and finite")
        if not 0 <= self.noise_multiplier < math.inf:
            raise UsageError(
                f"privacy.noise_multiplier = {self.noise_multiplier}; it must be at least 0 and finite"
            )

    def clipped(self, start: State, finals: State) -> State:
        """The clients' models [client, ...] with updates of the norm that is allowed."""
        updates = clipped([final - start[name] for name, final in finals.items()], self.clip, stacked=True)
        return {name: start[name] + update for name, update in zip(finals, updates, strict=True)}

    def sent(self, start: State, finals: State, clients: Ints, key: int, senders: int) -> State:
        """What clients send of their models where they protect themselves: each adds its part of the noise of all
        `senders` of the edge round. Chance comes from `key` and the client's number alone."""
        who = moved(torch.from_numpy(clients), next(iter(finals.values())).device)
        deviation = self.noise_multiplier * self.clip / math.sqrt(senders)
        return _noisy(self.clipped(start, finals), who, key, deviation)

    def averaged(self, mean: State, key: int, arrived: int) -> State:
        """The mean of `arrived` models as an edge that protects them gives it on."""
        one = {name: tensor.unsqueeze(0) for name, tensor in mean.items()}
        nobody = torch.zeros(1, dtype=torch.int64, device=next(iter(mean.values())).device)
        noisy = _noisy(one, nobody, key, self.noise_multiplier * self.clip / arrived)
        return {name: tensor.squeeze(0) for name, tensor in noisy.items()}


@dataclass(frozen=True)
class UnseededPrivacy(Privacy):
    """The same privacy, with noise that nobody else can draw again."""

    def sent(self, start: State, finals: State, clients: Ints, key: int, senders: int) -> State:
        return super().sent(start, finals, clients, secrets.randbits(63), senders)

    def averaged(self, mean: State, key: int, arrived: int) -> State:
        return super().averaged(mean, secrets.randbits(63), arrived)


def unseeded(privacy: Privacy | None) -> Privacy | None:
    """For a machine of a deployment: all chance of a simulation follows from the run's seed, which every machine knows,
    and whoever knows the noise can take it away."""
    return privacy and UnseededPrivacy(**asdict(privacy))


def _noisy(models: State, who: torch.Tensor, key: int, deviation: float) -> State:
    """Models [model, ...] with noise in every entry, by the number `who` [model]."""
    if deviation == 0:
        return models
    found: State = {}
    first = 0
    for name, tensor in models.items():
        size = tensor[0].numel()
        entries = torch.arange(first, first + size, device=tensor.device)
        noise = random_normal(key, who[:, None], entries).view_as(tensor)
        found[name] = (tensor + deviation * noise).to(tensor.dtype)
        first += size
    return found
