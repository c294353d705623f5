"""Dealing samples so that each holder's labels follow a mix of its own, every sample exactly once."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


def deal_by_label_mix(
    labels: Ints, parent_of_holder: Ints, sizes: Ints, concentration: float, generator: np.random.Generator
) -> Ints:
    """Positions [sample], so that labels[result] lists holder 0's samples, then holder 1's, and so on.

    `labels` [sample] come grouped by parent, in the order of the parents; holder r, a child of
    `parent_of_holder[r]` (ascending), takes `sizes[r]` of its parent's samples, and the sizes of a
    parent's holders add up to what the parent has. Each place of a holder asks for a label drawn from
    the holder's mix. Places that ask for a label their parent has run out of take what is left, at
    random, so all sizes are exact and every sample is dealt.
    """
    num_classes = int(labels.max()) + 1
    holder = np.repeat(np.arange(len(sizes)), sizes)
    parent = parent_of_holder[holder]  # of each place, and, as both are grouped alike, of each sample
    num_keys = (int(parent_of_holder[-1]) + 1) * num_classes
    supply = np.bincount(parent * num_classes + labels, minlength=num_keys)

    mixes = _dirichlet_mixes(supply.reshape(-1, num_classes), parent_of_holder, concentration, generator)
    asked = _draw_labels(mixes, holder, generator)
    demand = np.bincount(parent * num_classes + asked, minlength=num_keys)

    places, place_rank = _shuffled_by_key(parent * num_classes + asked, demand, generator)
    samples, sample_rank = _shuffled_by_key(parent * num_classes + labels, supply, generator)
    served = place_rank < np.repeat(supply, demand)
    taken = sample_rank < np.repeat(demand, supply)

    result = np.empty(len(labels), dtype=np.int64)
    result[places[served]] = samples[taken]  # both in key order, min(demand, supply) of each key
    left = samples[~taken]
    left = left[np.lexsort((generator.random(len(left)), parent[left]))]
    result[places[~served]] = left
    return result


def _dirichlet_mixes(
    supply: Ints, parent_of_holder: Ints, concentration: float, generator: np.random.Generator
) -> Floats:
    """[holder, class]: rows drawn from Dirichlet(concentration * classes * the parent's shares).

    Gamma variates by their logarithms, log Gamma(a) = log Gamma(a + 1) + log(U) / a in distribution,
    since for small `a` the variates themselves underflow to zero in every class.
    """
    shares = supply / supply.sum(axis=1, keepdims=True)
    alpha = (concentration * supply.shape[1] * shares)[parent_of_holder]
    logs: Floats = np.log(generator.standard_gamma(alpha + 1.0))
    uniform = 1.0 - generator.random(alpha.shape)  # in (0, 1]
    np.log(uniform, out=uniform)
    np.divide(uniform, alpha, out=uniform, where=alpha > 0)
    logs += uniform
    logs[alpha == 0] = -np.inf  # the parent has no sample of that class
    logs -= logs.max(axis=1, keepdims=True)
    np.exp(logs, out=logs)
    logs /= logs.sum(axis=1, keepdims=True)
    return logs


def _draw_labels(mixes: Floats, holder: Ints, generator: np.random.Generator) -> Ints:
    """[place]: one label from each place's holder's mix, by inverting its distribution function."""
    cumulative = np.cumsum(mixes, axis=1)
    uniform = generator.random(len(holder)) * cumulative[holder, -1]
    labels = np.zeros(len(holder), dtype=np.int64)
    for boundary in cumulative.T[:-1]:  # one pass a class keeps memory at one array of places
        labels += uniform >= boundary[holder]
    return labels


def _shuffled_by_key(keys: Ints, counts: Ints, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Positions sorted by key, in random order within one, and each one's rank within its key."""
    shuffled = generator.permutation(len(keys))
    positions = shuffled[np.argsort(keys[shuffled], kind="stable")]
    starts = np.cumsum(counts) - counts
    return positions, np.arange(len(keys)) - np.repeat(starts, counts)
