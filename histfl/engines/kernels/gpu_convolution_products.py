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
def _source(
    row, tap, MULTIPLY: tl.constexpr, ADD: tl.constexpr, STEP: tl.constexpr, DIVIDE: tl.constexpr,
    LENGTH: tl.constexpr,
):  # fmt: skip
    """Where rows find their source at a tap along one axis, and whether they do."""
    place = row * MULTIPLY + ADD + tap * STEP
    if DIVIDE == 1:
        return place, (place >= 0) & (place < LENGTH)
    whole = place // DIVIDE
    return whole, (place >= 0) & (place % DIVIDE == 0) & (whole < LENGTH)


@triton.jit
def gathered_product(
    source, kernel, bias, result, means, squares, batch,
    kernel_in, kernel_tap, kernel_out, kernel_client,
    SOURCE_HEIGHT: tl.constexpr, SOURCE_WIDTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    TAPS_HIGH: tl.constexpr, TAPS_WIDE: tl.constexpr,
    MULTIPLY: tl.constexpr, ADD: tl.constexpr, STEP: tl.constexpr, DIVIDE: tl.constexpr,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, FEW: tl.constexpr,
    BIAS: tl.constexpr, MOMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """result[row, out] = sum over taps and channels of source[at row and tap, channel] * kernel.

    With MOMENTS, also the means and sums of squared deviations of every tile's rows.
    """
    client = tl.program_id(2).to(tl.int64)
    source += client * batch * SOURCE_HEIGHT * SOURCE_WIDTH * CHANNELS
    result += client * batch * HEIGHT * WIDTH * OUT
    kernel += client * kernel_client
    # Rows of one remainder by DIVIDE stand together, since they share the taps at which they have a source:
    # every DIVIDE-th one (with DIVIDE > 1, `STEP` is -1).
    high, wide = (HEIGHT + DIVIDE - 1) // DIVIDE, (WIDTH + DIVIDE - 1) // DIVIDE
    tiles = tl.cdiv(batch * high * wide, ROWS)
    rest = tl.program_id(0) // tiles
    row = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    image = row // (high * wide)
    y = (row // wide % high) * DIVIDE + rest // DIVIDE
    x = (row % wide) * DIVIDE + rest % DIVIDE
    inside = (image < batch) & (y < HEIGHT) & (x < WIDTH)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first_y, first_x = (rest // DIVIDE + ADD) % DIVIDE, (rest % DIVIDE + ADD) % DIVIDE
    some_high = (TAPS_HIGH - first_y + DIVIDE - 1) // DIVIDE
    some_wide = (TAPS_WIDE - first_x + DIVIDE - 1) // DIVIDE
    blocks: tl.constexpr = 1 if FEW else (CHANNELS + INNER - 1) // INNER
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for turn in range(0, some_high * some_wide * blocks):
        tap_y = first_y + turn // blocks // some_wide * DIVIDE
        tap_x = first_x + turn // blocks % some_wide * DIVIDE
        from_y, here_y = _source(y, tap_y, MULTIPLY, ADD, STEP, DIVIDE, SOURCE_HEIGHT)
        from_x, here_x = _source(x, tap_x, MULTIPLY, ADD, STEP, DIVIDE, SOURCE_WIDTH)
        known = inside & here_y & here_x
        values_at = source + ((image * SOURCE_HEIGHT + from_y) * SOURCE_WIDTH + from_x) * CHANNELS
        weights_at = kernel + (tap_y * TAPS_WIDE + tap_x) * kernel_tap + column * kernel_out
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
    found = total.to(result.dtype.element_ty)
    to = ((image * HEIGHT + y) * WIDTH + x)[:, None] * OUT + column[None, :]
    tl.store(result + to, found, mask=inside[:, None] & (column < OUT)[None, :])
    if MOMENTS:
        total = tl.where(inside[:, None], found.to(tl.float32), 0.0)
        mean = tl.sum(total, axis=0) / tl.sum(inside.to(tl.float32), axis=0)
        apart = tl.where(inside[:, None], total - mean[None, :], 0.0)
        at = (client * tiles + tl.program_id(0)) * OUT + column
        tl.store(means + at, mean, mask=column < OUT)
        tl.store(squares + at, tl.sum(apart * apart, axis=0), mask=column < OUT)


@triton.jit
def summed_product(
    images, gradient, result,
    clients, batch, rows_each, learning_rate, keep,
    SOURCE_HEIGHT: tl.constexpr, SOURCE_WIDTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    TAPS_HIGH: tl.constexpr, TAPS_WIDE: tl.constexpr,
    MULTIPLY: tl.constexpr, ADD: tl.constexpr, STEP: tl.constexpr,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, IN_PLACE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """result[part, client, out, tap and channel] = sum over the part's rows of gradient * image, or, IN_PLACE and
    with one part, what an SGD step with that gradient makes of it."""
    client = (tl.program_id(2) % clients).to(tl.int64)
    part = tl.program_id(2) // clients
    images += client * batch * SOURCE_HEIGHT * SOURCE_WIDTH * CHANNELS
    gradient += client * batch * HEIGHT * WIDTH * OUT
    to = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    entries: tl.constexpr = TAPS_HIGH * TAPS_WIDE * CHANNELS
    both = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if CHANNELS % COLUMNS == 0:  # all columns have one tap
        tap = (tl.program_id(1) * COLUMNS // CHANNELS + tl.arange(0, 1))[None, :]
    else:
        tap = (both // CHANNELS)[None, :]
    tap_y, tap_x = tap // TAPS_WIDE * STEP + ADD, tap % TAPS_WIDE * STEP + ADD
    taps_at = (tap_y * SOURCE_WIDTH + tap_x) * CHANNELS + (both % CHANNELS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    last = tl.minimum((part + 1) * rows_each, batch * HEIGHT * WIDTH)
    for first in range(part * rows_each, last, INNER):
        row = first + tl.arange(0, INNER)
        inside = (row < last)[:, None]
        image, y, x = row // (HEIGHT * WIDTH), row // WIDTH % HEIGHT * MULTIPLY, row % WIDTH * MULTIPLY
        grads = tl.load(
            gradient + row[:, None] * OUT + to[None, :], mask=inside & (to < OUT)[None, :], other=0.0
        )
        from_y, from_x = y[:, None] + tap_y, x[:, None] + tap_x
        known = (from_y >= 0) & (from_y < SOURCE_HEIGHT) & (from_x >= 0) & (from_x < SOURCE_WIDTH) & inside
        rows_at = ((image * SOURCE_HEIGHT + y) * SOURCE_WIDTH + x) * CHANNELS
        values = tl.load(
            images + rows_at[:, None] + taps_at, mask=known & (both < entries)[None, :], other=0.0
        )
        total = tl.dot(tl.trans(grads), values, total, input_precision=PRECISION)
    at = result + (part * clients + client) * OUT * entries + to[:, None] * entries + both[None, :]
    known = (to < OUT)[:, None] & (both < entries)[None, :]
    if IN_PLACE:
        total = keep * tl.load(at, mask=known, other=0.0) - learning_rate * total
    tl.store(at, total, mask=known)
