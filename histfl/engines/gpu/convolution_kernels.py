"""The products of stacked convolutions, as programs for a GPU: one computes a tile of one client's.

All of a layer's gather rows of a source at every tap of the kernel. With the source position of row r at tap k,
along either axis, being (multiply * r + add + step * k) / divide where that is whole:

    outputs             rows are outputs, the source is the images     multiply = stride, add = -padding
    gradient of images  rows are images, the source is the gradient    divide = stride, add = padding, step < 0
    gradient of kernels as outputs, summed over rows
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _source(row, tap, multiply, add, step, divide: tl.constexpr, length):
    """Where rows find their source at a tap along one axis, and whether they do."""
    place = row * multiply + add + tap * step
    if divide == 1:
        return place, (place >= 0) & (place < length)
    whole = place // divide
    return whole, (place >= 0) & (place % divide == 0) & (whole < length)


@triton.jit
def gathered_product(
    source, kernel, bias, result,
    batch, source_height, source_width, height, width,
    taps_high, taps_wide,
    multiply, add, step,
    kernel_in, kernel_tap, kernel_out, kernel_client,
    DIVIDE: tl.constexpr, CHANNELS: tl.constexpr, OUT: tl.constexpr, FEW: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """result[row, out] = sum over taps and channels of source[at row and tap, channel] * kernel."""
    client = tl.program_id(2).to(tl.int64)
    source += client * batch * source_height * source_width * CHANNELS
    result += client * batch * height * width * OUT
    kernel += client * kernel_client
    # Rows of one remainder by DIVIDE stand together, since they share the taps at which they have a source:
    # every DIVIDE-th one (with DIVIDE > 1, `step` is -1).
    high, wide = (height + DIVIDE - 1) // DIVIDE, (width + DIVIDE - 1) // DIVIDE
    tiles = tl.cdiv(batch * high * wide, ROWS)
    rest = tl.program_id(0) // tiles
    row = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    image = row // (high * wide)
    y = (row // wide % high) * DIVIDE + rest // DIVIDE
    x = (row % wide) * DIVIDE + rest % DIVIDE
    inside = (image < batch) & (y < height) & (x < width)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first_y, first_x = (rest // DIVIDE + add) % DIVIDE, (rest % DIVIDE + add) % DIVIDE
    some_high = (taps_high - first_y + DIVIDE - 1) // DIVIDE
    some_wide = (taps_wide - first_x + DIVIDE - 1) // DIVIDE
    blocks: tl.constexpr = 1 if FEW else (CHANNELS + INNER - 1) // INNER
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for turn in range(0, some_high * some_wide * blocks):
        tap_y = first_y + turn // blocks // some_wide * DIVIDE
        tap_x = first_x + turn // blocks % some_wide * DIVIDE
        from_y, here_y = _source(y, tap_y, multiply, add, step, DIVIDE, source_height)
        from_x, here_x = _source(x, tap_x, multiply, add, step, DIVIDE, source_width)
        known = inside & here_y & here_x
        values_at = source + ((image * source_height + from_y) * source_width + from_x) * CHANNELS
        weights_at = kernel + (tap_y * taps_wide + tap_x) * kernel_tap + column * kernel_out
        if FEW:  # too few CHANNELS for tensor cores
            for channel in tl.static_range(CHANNELS):
                value = tl.load(values_at + channel, mask=known, other=0.0)
                weight = tl.load(weights_at + channel * kernel_in, mask=column < OUT, other=0.0)
                total += value[:, None].to(tl.float32) * weight[None, :].to(tl.float32)
        else:
            channel = turn % blocks * INNER + tl.arange(0, INNER)
            values = tl.load(
                values_at[:, None] + channel[None, :],
                mask=known[:, None] & (channel < CHANNELS)[None, :],
                other=0.0,
            )
            weights = tl.load(
                weights_at[None, :] + (channel * kernel_in)[:, None],
                mask=(channel < CHANNELS)[:, None] & (column < OUT)[None, :],
                other=0.0,
            )
            total = tl.dot(values, weights, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + client * OUT + column, mask=column < OUT, other=0.0).to(tl.float32)[None, :]
    to = ((image * height + y) * width + x)[:, None] * OUT + column[None, :]
    tl.store(result + to, total.to(result.dtype.element_ty), mask=inside[:, None] & (column < OUT)[None, :])


@triton.jit
def summed_product(
    images, gradient, result,
    clients, batch, source_height, source_width, height, width, channels, out,
    taps_high, taps_wide,
    multiply, add, step,
    rows_each,
    learning_rate, keep,
    STEP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """result[part, client, out, tap and channel] = sum over the part's rows of gradient * image, or, with STEP
    and one part, what an SGD step with that gradient makes of it."""
    client = (tl.program_id(2) % clients).to(tl.int64)
    part = tl.program_id(2) // clients
    images += client * batch * source_height * source_width * channels
    gradient += client * batch * height * width * out
    to = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    both = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    columns = taps_high * taps_wide * channels
    tap = both // channels
    tap_y, tap_x = tap // taps_wide * step + add, tap % taps_wide * step + add
    taps_at = (tap_y * source_width + tap_x) * channels + both % channels
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    last = tl.minimum((part + 1) * rows_each, batch * height * width)
    for first in range(part * rows_each, last, INNER):
        row = first + tl.arange(0, INNER)
        inside = row < last
        image, y, x = row // (height * width), row // width % height * multiply, row % width * multiply
        pulls = tl.load(
            gradient + row[:, None] * out + to[None, :],
            mask=inside[:, None] & (to < out)[None, :],
            other=0.0,
        )
        from_y, from_x = y[:, None] + tap_y[None, :], x[:, None] + tap_x[None, :]
        known = (from_y >= 0) & (from_y < source_height) & (from_x >= 0) & (from_x < source_width)
        rows_at = ((image * source_height + y) * source_width + x) * channels
        values = tl.load(
            images + rows_at[:, None] + taps_at[None, :],
            mask=known & inside[:, None] & (both < columns)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(pulls), values, total, input_precision=PRECISION)
    at = result + (part * clients + client) * out * columns + to[:, None] * columns + both[None, :]
    known = (to < out)[:, None] & (both < columns)[None, :]
    if STEP:
        total = keep * tl.load(at, mask=known, other=0.0) - learning_rate * total
    tl.store(at, total, mask=known)
