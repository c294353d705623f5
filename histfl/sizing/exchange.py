"""Moves and swaps of units between the slowest cell and another one, while that makes it faster."""

from __future__ import annotations

import numpy as np

from histfl.network.network import Ints
from histfl.sizing.problem import SizingProblem

MAX_STEPS = 400
MAX_EXCHANGES = 2000  # kinds of exchange tried a step; bounds the work where there are many layers


def relieve_bottleneck(problem: SizingProblem, counts: Ints, caps: Ints, *, good_enough: float) -> Ints:
    """Counts [cell, layer] at least as fast as those given.

    A step takes the slowest cell, lets it give m units of one layer to some cell and take m' units of
    another layer back (m' = 0: a move), and keeps the exchange after which the slower of the two is
    fastest, if both beat the old slowest. Each step leaves fewer cells at the old maximum, so it ends.
    """
    layers = problem.layers
    weights = layers.parameters_per_unit
    gives, takes, saved = _exchanges(weights)
    counts = counts.copy()
    sizes = layers.parameters(counts)
    for _ in range(MAX_STEPS):
        seconds = problem.cost.seconds(sizes)
        slow = int(seconds.argmax())
        if seconds[slow] <= good_enough:
            break
        change = gives - takes  # [exchange, layer], off the slow cell and onto the other
        allowed = ((counts[slow] - change >= 1) & (counts[slow] - change <= caps)).all(axis=1)
        if not allowed.any():
            break
        change, delta = change[allowed], saved[allowed]
        trial = sizes + delta[:, None]  # [exchange, cell]
        trial[:, slow] = sizes[slow] - delta
        after = problem.cost.seconds(trial)
        pair = np.maximum(after, after[:, [slow]])
        pair[:, slow] = np.inf
        pair[~_fits(counts, change, caps)] = np.inf
        best, other = np.unravel_index(int(pair.argmin()), pair.shape)
        if not pair[best, other] < seconds[slow]:
            break
        counts[slow] -= change[best]
        counts[other] += change[best]
        sizes[slow] -= delta[best]
        sizes[other] += delta[best]
    return counts


def _exchanges(weights: Ints) -> tuple[Ints, Ints, Ints]:
    """Units given and taken [exchange, layer], and the parameters saved by it [exchange], all positive."""
    num_layers = len(weights)
    most = max(1, int(np.sqrt(MAX_EXCHANGES) / num_layers))
    give_layer, take_layer, give_units, take_units = (
        axis.ravel()
        for axis in np.meshgrid(
            np.arange(num_layers),
            np.arange(num_layers),
            np.arange(1, most + 1),
            np.arange(most + 1),
            indexing="ij",
        )
    )
    saved = give_units * weights[give_layer] - take_units * weights[take_layer]
    plain_move = (take_units == 0) & (take_layer == give_layer)  # kept once, not once for every take_layer
    keep = (saved > 0) & (plain_move | ((take_units > 0) & (take_layer != give_layer)))
    one_hot = np.eye(num_layers, dtype=np.int64)
    gives = give_units[keep, None] * one_hot[give_layer[keep]]
    takes = take_units[keep, None] * one_hot[take_layer[keep]]
    return gives, takes, saved[keep]


def _fits(counts: Ints, change: Ints, caps: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[exchange, cell]: whether the cell stays within one unit and the cap of every layer.

    Layer by layer, so that no [exchange, cell, layer] array is made.
    """
    fits = np.ones((len(change), len(counts)), dtype=np.bool_)
    for layer, cap in enumerate(caps):
        after = change[:, layer, None] + counts[None, :, layer]
        fits &= (after >= 1) & (after <= cap)
    return fits
