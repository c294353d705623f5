"""What the machine can do: one large square product, counted in operations a second."""

from __future__ import annotations

import json
import time

import torch
from turns import contender_options, requests, set_arithmetic, synchronise

SIDES = {"cpu": 2048, "cuda": 8192}
PRODUCTS = 5


def main() -> None:
    options = contender_options()
    torch.set_num_threads(options.threads)
    settings = json.loads((options.job / "settings.json").read_text("utf-8"))
    dtype = torch.bfloat16 if settings["precision"] == "bf16" else torch.float32
    set_arithmetic(settings["precision"])
    side = SIDES[settings["device"]]
    left, right = torch.randn(2, side, side, dtype=dtype, device=settings["device"])
    for _, answer in requests(options.socket):
        synchronise()
        start = time.perf_counter()
        for _ in range(PRODUCTS):
            left @ right
        synchronise()
        seconds = (time.perf_counter() - start) / PRODUCTS
        answer({"seconds": seconds, "operations_per_second": 2 * side**3 / seconds})


if __name__ == "__main__":
    main()
