"""What the tests of the command line share."""

import json
from dataclasses import dataclass
from typing import Any

# A run of a second: embedded images, a small model, few clients.
SMALL = [
    "quickstart",
    *("--set", "model.hidden=16"),
    *("--set", "network.clients=8"),
    *("--set", "training.rounds=3"),
    *("--set", "training.edge_rounds=2"),
    *("--set", "training.local_steps=2"),
    *("--set", "training.batch_size=10"),
    *("--device", "cpu"),
]


@dataclass(frozen=True)
class Answer:
    """What a command line gave back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)
