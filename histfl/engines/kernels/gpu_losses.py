"""Cross-entropies of many clients on a GPU, with their gradient, in one launch; torch's operations take eight."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MOST_CLASSES = 1024
ENTRIES = 2048  # of a batch, in registers at once


@triton.jit
def _cross_entropy(
    outputs, targets, losses, grad, batch, classes,
    client_step, row_step, class_step,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A program has one client. Where the target's p is close to 1, p - 1 is minus the sum of the others."""
    client = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDE)[None, :]
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(0, batch, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = row < batch
        known = inside[:, None] & (column < classes)
        at = client * client_step + row[:, None] * row_step + column * class_step
        target = tl.load(targets + client * batch + row, mask=inside, other=0)
        values = tl.load(outputs + at, mask=known, other=-float("inf"))
        values = tl.where(inside[:, None], values, 0.0)
        values -= tl.max(values, axis=1)[:, None]
        parts = tl.exp(values)
        whole = tl.sum(parts, axis=1)
        right = column == target[:, None]
        total += tl.where(inside, tl.log(whole) - tl.sum(tl.where(right, values, 0.0), axis=1), 0.0)
        others = tl.sum(tl.where(right, 0.0, parts), axis=1)
        share = tl.where(right, -others[:, None], parts) / (whole[:, None] * batch)
        tl.store(grad + (client * batch + row[:, None]) * classes + column, share, mask=known)
    tl.store(losses + client, tl.sum(total, axis=0) / batch)


def cross_entropies(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of outputs [client, batch, class]: the clients' losses, [client], and the gradient of the outputs."""
    clients, batch, classes = outputs.shape
    losses, grad = outputs.new_empty(clients), outputs.new_empty(clients, batch, classes)
    wide = triton.next_power_of_2(classes)
    rows = min(max(ENTRIES // wide, 1), triton.next_power_of_2(batch))
    _cross_entropy[(clients,)](
        outputs, targets.contiguous(), losses, grad, batch, classes, *outputs.stride(), ROWS=rows, WIDE=wide
    )
    return losses, grad
