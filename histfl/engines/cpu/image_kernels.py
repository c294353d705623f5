"""Convolution kernels for many small images with few channels, compiled by numba.

The images lie innermost in memory, [channel, height, width, image]. Then a tap of the filter is an offset,
the same for a whole row of pixels of all images: a long run of numbers to multiply by one weight. Two output
channels and five taps at a time keep most operands in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from histfl.engines.cpu.compiled import compiled

TAPS = 5  # that a pass over a run takes at once; their number must be a multiple


@cache
def kernels() -> tuple[Callable[..., None], Callable[..., None]]:
    """`_accumulate` and `_correlate`, compiled at their first call and kept on disk for the next process."""
    # Sums may be taken in any order; infinities and NaN stay what they are.
    loosely = {"contract", "reassoc", "nsz"}
    return compiled(_accumulate, fastmath=loosely), compiled(_correlate, fastmath=loosely)


def _accumulate(
    outputs: Any,
    bias: Any,
    weights: Any,
    inputs: Any,
    out_starts: Any,
    shifts: Any,
    in_starts: Any,
    taps: Any,
    run: int,
) -> None:
    """outputs[c, o, out_starts[r] + shifts[p] + j] +=
    sum over t of weights[c, p, o, t] * inputs[c, in_starts[r] + taps[t] + j], for j below `run`.

    With bias [c, o] the outputs begin there, without ([c, 0]) at what they are. As a convolution, the taps are
    those of a filter and there is one shift; as its gradient, the taps are the output channels and the
    shifts the places of a filter.
    """
    rows = outputs.shape[1]
    spare = np.empty(run, outputs.dtype)  # stands in for the partner of a last row
    for c in range(len(outputs)):
        for r in range(len(out_starts)):
            for p in range(len(shifts)):
                s = out_starts[r] + shifts[p]
                for o in range(0, rows, 2):
                    y = outputs[c, o, s : s + run]
                    z = outputs[c, o + 1, s : s + run] if o + 1 < rows else spare
                    partner = min(o + 1, rows - 1)
                    v, w = weights[c, p, o], weights[c, p, partner]
                    if bias.shape[1] > 0:
                        y[:] = bias[c, o]
                        z[:] = bias[c, partner]
                    for t in range(0, len(taps), 5):
                        i = in_starts[r] + taps[t]
                        a = inputs[c, i : i + run]
                        i = in_starts[r] + taps[t + 1]
                        b = inputs[c, i : i + run]
                        i = in_starts[r] + taps[t + 2]
                        d = inputs[c, i : i + run]
                        i = in_starts[r] + taps[t + 3]
                        e = inputs[c, i : i + run]
                        i = in_starts[r] + taps[t + 4]
                        f = inputs[c, i : i + run]
                        v0, v1, v2, v3, v4 = v[t], v[t + 1], v[t + 2], v[t + 3], v[t + 4]
                        w0, w1, w2, w3, w4 = w[t], w[t + 1], w[t + 2], w[t + 3], w[t + 4]
                        for j in range(run):
                            # Read once: the compiler cannot know that y and z are other memory.
                            k, m, n, x, q = a[j], b[j], d[j], e[j], f[j]
                            y[j] += v0 * k + v1 * m + v2 * n + v3 * x + v4 * q
                            z[j] += w0 * k + w1 * m + w2 * n + w3 * x + w4 * q


def _correlate(products: Any, outputs: Any, inputs: Any, in_starts: Any, taps: Any, run: int) -> None:
    """products[c, o, t] = sum over r and j of outputs[c, o, r * run + j] * inputs[c, in_starts[r] + taps[t] + j]."""
    rows = outputs.shape[1]
    zero = outputs.dtype.type(0)
    products[:] = zero
    for c in range(len(outputs)):
        for r in range(len(in_starts)):
            for o in range(0, rows, 2):
                partner = min(o + 1, rows - 1)
                y = outputs[c, o, r * run : (r + 1) * run]
                z = outputs[c, partner, r * run : (r + 1) * run]
                for t in range(0, len(taps), 5):
                    i = in_starts[r] + taps[t]
                    a = inputs[c, i : i + run]
                    i = in_starts[r] + taps[t + 1]
                    b = inputs[c, i : i + run]
                    i = in_starts[r] + taps[t + 2]
                    d = inputs[c, i : i + run]
                    i = in_starts[r] + taps[t + 3]
                    e = inputs[c, i : i + run]
                    i = in_starts[r] + taps[t + 4]
                    f = inputs[c, i : i + run]
                    v0 = v1 = v2 = v3 = v4 = w0 = w1 = w2 = w3 = w4 = zero
                    for j in range(run):
                        g, h = y[j], z[j]
                        v0 += g * a[j]
                        v1 += g * b[j]
                        v2 += g * d[j]
                        v3 += g * e[j]
                        v4 += g * f[j]
                        w0 += h * a[j]
                        w1 += h * b[j]
                        w2 += h * d[j]
                        w3 += h * e[j]
                        w4 += h * f[j]
                    sums = products[c, o]
                    sums[t] += v0
                    sums[t + 1] += v1
                    sums[t + 2] += v2
                    sums[t + 3] += v3
                    sums[t + 4] += v4
                    if partner > o:
                        sums = products[c, partner]
                        sums[t] += w0
                        sums[t + 1] += w1
                        sums[t + 2] += w2
                        sums[t + 3] += w3
                        sums[t + 4] += w4
