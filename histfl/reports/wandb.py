"""A run in Weights & Biases: its settings, and every number of its records and its summary."""

from __future__ import annotations

import os
import secrets
from functools import cached_property
from pathlib import Path
from typing import Any

from histfl.errors import missing_extra
from histfl.files import read_text, write_whole
from histfl.runs.config import Config
from histfl.runs.records import Record, scalars
from histfl.runs.run import Run

PROJECT = "histfl"  # unless WANDB_PROJECT names another
RUN_ID = "wandb.txt"  # in the run's folder: a resumed run goes on in the same line


class WandB:
    """Logs below `folder`/wandb, and from there to the server that the user is logged in to (none with
    WANDB_MODE=offline; `wandb sync` sends it later)."""

    def __init__(self, name: str, config: Config, folder: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # a run tells nobody but the given server
        try:
            import wandb
        except ImportError as error:
            raise missing_extra("--wandb", "wandb", error) from None
        self._wandb, self._name, self._config, self._folder = wandb, name, config, folder

    @cached_property
    def _run(self) -> Any:
        """Begun by the first round: until then the folder may still turn out to be another run's."""
        settings = self._wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
        return self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self._name,
            id=self._id(),
            resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
            dir=self._folder,
            config=self._config.model_dump(mode="json", exclude_none=True),
            settings=settings,
        )

    def _id(self) -> str:
        kept = self._folder / RUN_ID
        if not kept.exists():
            write_whole(kept, secrets.token_hex(8).encode())
        return read_text(kept).strip()

    def on_round(self, record: Record) -> None:
        if record["round"] >= self._run.step:  # those before are on the server already
            self._run.log(scalars(record), step=record["round"])

    def on_end(self, run: Run) -> None:
        self._run.summary.update(scalars(run.summary, "summary/"))

    def close(self, *, finished: bool) -> None:
        if "_run" in vars(self):
            self._run.finish(exit_code=0 if finished else 1)
