import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from histfl.cli import main

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


@pytest.fixture
def histfl_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs the command line in this process."""

    def command(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return command
