"""What a client has not sent yet, where its codec sends a part of an update (error feedback): it stays on its disk.

In the whole model's coordinates, since a cell holds other units in every round. A client may be asked for an edge round
again, after it, its edge or the cloud was killed, and is then to know what it kept before that very round: so there is
a file an edge round, of those that may be asked again.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from histfl.deploy.messages import BadMessage, check_like, packed
from histfl.deploy.protocol import ClientRound, RunInfo
from histfl.errors import CheckpointError, in_one_line
from histfl.files import read_bytes, storage_errors, write_whole
from histfl.partition import Plan, State, Submodel, extract, put_back

FOLDER = "kept"


@dataclass(frozen=True)
class Residuals:
    """The files of one run in `folder`, named ROUND-EDGEROUND; `whole` has the whole model's tensors."""

    folder: Path
    plan: Plan
    whole: State

    @classmethod
    def of(cls, kit: Path, info: RunInfo, plan: Plan, whole: State) -> Residuals:
        """Of the run that is `info`; what other runs left goes away."""
        name = info.config("the run").fingerprint()[:16]  # the same for more rounds of it
        folder = kit / FOLDER / name
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for other in folder.parent.iterdir():
                if other != folder:
                    shutil.rmtree(other)
        return cls(folder, plan, whole)

    def before(self, asked: ClientRound) -> State:
        """What the client kept until that edge round, of the submodel's entries: tensors [1, ...]."""
        own = extract(self._last_before(asked), Submodel(self.plan, asked.job.units))
        return {name: own[name].unsqueeze(0).to(asked.state[name].device) for name in asked.state}

    def keep(self, asked: ClientRound, after: State) -> None:
        """What it keeps from then on; what no round can ask for any more goes away."""
        before, own = self._last_before(asked), Submodel(self.plan, asked.job.units)
        one = {name: tensor[0].cpu() for name, tensor in after.items()}
        here = (asked.job.round, asked.edge_round)
        write_whole(self._path(here), safetensors.torch.save(packed(put_back(before, own, one))))
        numbers = self._numbers()
        needed = max((each for each in numbers if each < (here[0], 0)), default=None)
        for each in numbers:
            if each > here or (needed is not None and each < needed):
                with suppress(FileNotFoundError):
                    self._path(each).unlink()

    def _last_before(self, asked: ClientRound) -> State:
        earlier = [each for each in self._numbers() if each < (asked.job.round, asked.edge_round)]
        if not earlier:
            return {name: torch.zeros_like(tensor, device="cpu") for name, tensor in self.whole.items()}
        path = self._path(max(earlier))
        try:
            found: State = safetensors.torch.load(read_bytes(path))
            check_like(found, self.whole, "it")
        except (OSError, SafetensorError, BadMessage) as error:
            raise CheckpointError(f"{path} cannot be read: {in_one_line(error)}; delete it") from None
        return found

    def _numbers(self) -> list[tuple[int, int]]:
        found = [path.stem.split("-") for path in self.folder.glob("[0-9]*-[0-9]*.safetensors")]
        return sorted((int(round), int(edge_round)) for round, edge_round in found)

    def _path(self, number: tuple[int, int]) -> Path:
        return self.folder / f"{number[0]}-{number[1]}.safetensors"
