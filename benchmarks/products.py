"""The products of clients' linear layers on one core: by compiled register tiles and by torch.

    python benchmarks/products.py

GFLOP/s of a layer's outputs, of its inputs' gradient and of its step, compiled / torch. The rules of
histfl/engines/kernels/linear.py were read off such a table.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from histfl.engines.kernels.linear import TorchProducts
from histfl.engines.kernels.linear_tiles import linear_kernels

# Clients, batch, inputs and units: the MLP's layers (full, HIST with 2, 4 and 12 cells), those of LeNet-5, others.
SHAPES = [
    (5, 50, 784, 300),
    (8, 50, 784, 150),
    (15, 50, 784, 75),
    (15, 50, 784, 25),
    (5, 50, 300, 10),
    (15, 50, 75, 10),
    (5, 50, 400, 120),
    (5, 50, 120, 84),
    (5, 50, 84, 10),
    (15, 10, 784, 75),
    (16, 50, 64, 64),
    (8, 50, 128, 128),
    (4, 50, 512, 512),
    (4, 50, 1024, 1024),
]
TURNS, TURN_S = 9, 0.01
SMALL = 1e-9  # a learning rate that keeps the weights where they are


def seconds(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Best of both, which take turns."""
    best = [float("inf")] * 2
    for _ in range(TURNS):
        for place, work in enumerate((first, second)):
            work()
            count, start = 0, time.perf_counter()
            while (spent := time.perf_counter() - start) < TURN_S:
                work()
                count += 1
            best[place] = min(best[place], spent / count)
    return best[0], best[1]


def rates(clients: int, batch: int, width: int, units: int) -> list[str]:
    """GFLOP/s of the three products, compiled / torch."""
    inputs, gradient = torch.randn(clients, batch, width), torch.randn(clients, batch, units)
    weight, bias = torch.randn(clients, units, width), torch.randn(clients, units)
    outputs, back = torch.empty_like(gradient).numpy(), torch.empty_like(inputs).numpy()
    x, g, w, b = (tensor.numpy() for tensor in (inputs, gradient, weight, bias))
    add_products, affine = linear_kernels("float32")
    plain = TorchProducts()
    timed = (
        seconds(lambda: affine(outputs, x, w, b), lambda: plain.outputs(inputs, weight, bias)),
        seconds(lambda: add_products(back, g, w, 0.0, 1.0), lambda: plain.for_inputs(gradient, weight)),
        seconds(
            lambda: add_products(w, g.swapaxes(1, 2), x, 1.0, SMALL),
            lambda: plain.add(weight, gradient, inputs, keep=1.0, scale=SMALL),
        ),
    )
    work = 2e-9 * clients * batch * width * units
    return [f"{work / ours:.0f} / {work / torchs:.0f}" for ours, torchs in timed]


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'clients, batch, inputs, units':30s}{'outputs':>18s}{'for inputs':>18s}{'step':>18s}")
    for shape in SHAPES:
        print(
            f"{', '.join(map(str, shape)):30s}" + "".join(f"{rate:>18s}" for rate in rates(*shape)),
            flush=True,
        )


if __name__ == "__main__":
    main()
