"""Segmentation: a class a pixel, with a border that counts nowhere.

python examples/segmentation.py [rounds]
"""

import sys

import torch
from torch import nn

import histfl

SIZE, BORDER = 16, 255


def shapes(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images with a bright disc and a dark square: background is class 0, disc 1, square 2."""
    generator = torch.Generator().manual_seed(seed)
    row, column = torch.arange(SIZE)[:, None], torch.arange(SIZE)[None, :]
    images = 0.4 * torch.randn(samples, 1, SIZE, SIZE, generator=generator)
    classes = torch.zeros(samples, SIZE, SIZE, dtype=torch.int64)
    for image, pixels in zip(images, classes, strict=True):
        (top, left, up, across), radius = torch.randint(3, SIZE - 3, (4,), generator=generator), 3
        square = ((row - top).abs() < 3) & ((column - left).abs() < 3)
        disc = (row - up).square() + (column - across).square() <= radius**2
        image[0][square] -= 1
        image[0][disc] += 2
        pixels[square], pixels[disc] = 2, 1
    classes[:, [0, -1]] = BORDER
    return images, classes


def main(rounds: int) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 16, 5, padding=2), nn.ReLU()),
        nn.Conv2d(16, 3, 1),
    )
    run = histfl.train(
        model,
        shapes(400, seed=1),
        shapes(100, seed=2),
        network=histfl.Network.uniform(cells=2, clients_per_cell=4),
        objective={"name": "segmentation", "ignore_index": BORDER},
        targets=[0.5, 0.7],
        split="iid",
        local_steps=5,
        edge_rounds=2,
        batch_size=10,
        learning_rate=0.2,
        rounds=rounds,
        on_round=lambda record: print(f"round {record['round']}: mIoU {record['miou']:.3f}"),
    )
    for target, reached in run.summary["to_target"].items():
        print(
            f"to {target} mIoU:",
            f"{reached['megabytes_per_client']:.2f} MB a client" if reached else "not reached",
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
