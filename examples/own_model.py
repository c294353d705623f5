"""Cut and train a model of your own: a small residual network on the embedded images.

python examples/own_model.py [rounds]
"""

import sys

import torch
from torch import nn

import histfl
from histfl.data import load
from histfl.partition import draw, even_counts, num_parameters, plan
from histfl.seeds import Seeds


class SmallResidualNetwork(nn.Module):
    """A stem, a residual block whose inner channels can be cut, and a classifier with a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 5, stride=4)
        self.inner = nn.Conv2d(8, 24, 3, padding=1)
        self.norm = nn.BatchNorm2d(24)
        self.outer = nn.Conv2d(24, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 36, 64)
        self.output = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        stream = torch.relu(self.stem(images))
        stream = stream + self.outer(torch.relu(self.norm(self.inner(stream))))
        return self.output(torch.relu(self.hidden(stream.flatten(1))))


def main(rounds: int) -> None:
    torch.manual_seed(1)
    model = SmallResidualNetwork()
    train_set, test_set = load("fashion-mnist-mini")

    cut = plan(model, train_set.inputs[:2])
    print("cut:", {group.name: group.num_units for group in cut.groups})
    print("left whole:", dict(cut.uncut))
    submodels = draw(cut, even_counts(cut, num_cells=4), Seeds(1).numpy("partition"))
    print("parameters:", cut.num_parameters, "in full,", [num_parameters(s) for s in submodels], "a cell")

    run = histfl.train(
        model,
        train_set,
        test_set,
        network=histfl.Network.uniform(cells=4, clients_per_cell=3),
        method="hist",
        local_steps=10,
        edge_rounds=2,
        rounds=rounds,
        learning_rate=0.05,
        on_round=lambda record: print(f"round {record['round']}: accuracy {record['accuracy']:.3f}"),
    )
    print(
        f"{run.megabytes_per_client[-1]:.2f} MB a client and {run.simulated_seconds[-1]:.2f} simulated seconds "
        f"for an accuracy of {run.accuracy[-1]:.3f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
