"""Dealing samples so that each holder's labels follow a mix of its own, every sample exactly once."""

from __future__ import annotations

import numpy as np

from histfl.arrays import Floats, Ints


def deal_by_label_mix(
    labels: Ints, parent_of_holder: Ints, sizes: Ints, concentration: float, generator: np.random.Generator
) -> Ints:
    """Positions [sample], so that labels[result] lists holder 0's samples, then holder 1's, and so on.

    `labels` [sample] come grouped by parent, in the order of the parents; holder r, a child of
    `parent_of_holder[r]` (ascending), takes `sizes[r]` of its parent's samples, and the sizes of a
    parent's holders add up to what the parent has. Every place of a holder asks for a label drawn from
    the holder's mix. Where a parent runs out of a label, places chosen at random go without and ask
    again, by the same mix over the labels that are left; so all sizes are exact, all samples are dealt.
    """
    num_classes = int(labels.max()) + 1
    holder = np.repeat(np.arange(len(sizes)), sizes)
    parent = parent_of_holder[holder]  # of each place, and, as both are grouped alike, of each sample
    num_keys = (int(parent_of_holder[-1]) + 1) * num_classes
    keys = parent * num_classes + labels
    supply = np.bincount(keys, minlength=num_keys)
    samples = _shuffled_by_key(keys, generator)
    first = np.cumsum(supply) - supply  # of each key, the next of `samples` to give
    logs = _log_mixes(supply.reshape(-1, num_classes), parent_of_holder, concentration, generator)

    result = np.empty(len(labels), dtype=np.int64)
    places = np.arange(len(labels))
    while places.size:  # each time, all are served or some label of some parent has run out
        asking, of_asking = np.unique(holder[places], return_inverse=True)
        weights = logs[asking]
        weights[supply.reshape(-1, num_classes)[parent_of_holder[asking]] == 0] = -np.inf
        asked = _draw_labels(weights, of_asking, generator)
        keys = parent[places] * num_classes + asked
        demand = np.bincount(keys, minlength=num_keys)
        turn = _shuffled_by_key(keys, generator)
        places, keys = places[turn], keys[turn]
        rank = np.arange(len(keys)) - (np.cumsum(demand) - demand)[keys]
        served = rank < supply[keys]
        result[places[served]] = samples[(first[keys] + rank)[served]]
        given = np.minimum(demand, supply)
        supply, first, places = supply - given, first + given, places[~served]
    return result


def _log_mixes(
    supply: Ints, parent_of_holder: Ints, concentration: float, generator: np.random.Generator
) -> Floats:
    """[holder, class]: logarithms, up to a constant a row, of Dirichlet(concentration * classes * shares).

    The shares are those of the labels that the holder's parent has. Kept as logarithms of gamma
    variates, log Gamma(a) = log Gamma(a + 1) + log(U) / a in distribution, since for small `a` the
    variates themselves underflow to zero in every class.
    """
    shares = supply / supply.sum(axis=1, keepdims=True)
    alpha = (concentration * supply.shape[1] * shares)[parent_of_holder]
    logs: Floats = generator.standard_gamma(alpha + 1.0)
    np.log(logs, out=logs)
    uniform = generator.random(alpha.shape)
    np.log1p(np.negative(uniform, out=uniform), out=uniform)  # of 1 - U, which is never 0
    np.divide(uniform, alpha, out=uniform, where=alpha > 0)
    logs += uniform
    return logs


def _draw_labels(logs: Floats, row: Ints, generator: np.random.Generator) -> Ints:
    """[place]: a label for each place from its row of log weights, by inverse transform; uses up `logs`."""
    logs -= logs.max(axis=1, keepdims=True)
    cumulative = np.cumsum(np.exp(logs, out=logs), axis=1, out=logs)
    uniform = generator.random(len(row)) * cumulative[row, -1]
    labels = np.zeros(len(row), dtype=np.int64)
    for boundary in cumulative.T[:-1]:  # one pass a class keeps memory at one array of places
        labels += uniform >= boundary[row]
    return labels


def _shuffled_by_key(keys: Ints, generator: np.random.Generator) -> Ints:
    """Positions sorted by key, in random order within one."""
    shuffled = generator.permutation(len(keys))
    return shuffled[np.argsort(keys[shuffled], kind="stable")]
