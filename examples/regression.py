"""Regression: numbers instead of classes, a metric of one's own, and how the clients fare on their own data.

python examples/regression.py [rounds] [scale]
"""

import sys

import torch
from torch import nn

import histfl


def friedman(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Friedman's first function of ten uniform numbers, of which five count, and noise; scaled to a spread of about 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(samples, 10, generator=generator)
    y = (
        10 * torch.sin(torch.pi * x[:, 0] * x[:, 1])
        + 20 * (x[:, 2] - 0.5).square()
        + 10 * x[:, 3]
        + 5 * x[:, 4]
    )
    noise = torch.randn(samples, generator=generator)
    return x, ((y + noise - 14.4) / 5)[:, None]


def median_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).abs().median()


def main(rounds: int, scale: float) -> None:
    torch.manual_seed(1)
    train_set, test_set = friedman(3000, seed=1), friedman(1000, seed=2)
    run = histfl.train(
        nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)),
        train_set,
        test_set,
        network=histfl.Network.uniform(cells=3, clients_per_cell=4),
        method="hist",
        scale=scale,  # at 0 the sum of the cells' submodels, each of which learnt the whole number, is too large
        objective="regression",
        metrics={"median_error": (median_error, "min")},
        targets=[0.8, 0.55],
        split="iid",
        evaluate_per="client",
        local_steps=10,
        edge_rounds=4,
        batch_size=20,
        learning_rate=0.1,
        rounds=rounds,
        on_round=lambda record: print(
            f"round {record['round']}: RMSE {record['rmse']:.3f}, R2 {record['r2']:.3f}, "
            f"median error {record['median_error']:.3f}"
        ),
    )
    own = run.summary["own_data"]["values"]["rmse"]
    print(f"RMSE on the clients' own data: mean {own['mean']:.3f}, worst tenth {own['worst_decile']:.3f}")
    for target, reached in run.summary["to_target"].items():
        print(
            f"to an RMSE of {target}:",
            f"{reached['megabytes_per_client']:.2f} MB a client" if reached else "not reached",
        )


if __name__ == "__main__":
    given = sys.argv[1:] + ["15", "1"][len(sys.argv) - 1 :]
    main(int(given[0]), float(given[1]))
