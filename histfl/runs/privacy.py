"""What a run promises the clients: its epsilon, as Google's dp-accounting counts it (extra `privacy`).

Two networks are neighbours where one client's data are replaced by any other. A cell's sum of updates then changes by
2 C at most, against noise of z C. What is counted is what an edge gives on, its model after every edge round, to
whoever sees all of them:

- a client is in one cell, and what other cells do is computed from what this one gave on; so cells do not add up, and
  the largest epsilon of a client is that of a cell that took part in most rounds;
- the edge rounds of all those global rounds are composed (Renyi differential privacy);
- where `network.participants` of a cell's clients are drawn in every edge round, nobody being told which ones, each is
  a sample without replacement of the smallest cell; not so where clients keep something between rounds (error
  feedback, gradient corrections), which tells of rounds before, nor where what is given on tells of who was drawn:
  submodels sized by their seconds, and the noise of the air, which grows with the weakest of them;
- lost updates hide nobody: they are no chance of ours;
- the choice of settings, training losses, evaluations on clients' own data and constants that a model took from samples
  before training are outside of it; so are rounds that a deployment does again after a kill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import nn

from histfl.errors import UsageError, missing_extra
from histfl.partition import has_batch_statistics
from histfl.runs.config import Config
from histfl.sizing import UNIFORM
from histfl.training.hist import Hist
from histfl.wireless.uplinks import kind_of

LEAST_NOISE = 1e-6


@dataclass(frozen=True)
class Promise:
    """To the clients of a run with noise of `noise_multiplier` clips, over so many `releases` of an edge's model; in
    each of them `sampled` of at least `clients` of a cell take part."""

    noise_multiplier: float
    delta: float
    releases: int
    clients: int
    sampled: int

    @property
    def epsilon(self) -> float | None:
        """None where there is no bound, or one of more than 10^12."""
        if self.noise_multiplier < LEAST_NOISE:
            return None
        return _epsilon(self.noise_multiplier, self.delta, self.releases, self.clients, self.sampled)

    @property
    def sentence(self) -> str:
        if self.epsilon is None:
            return "privacy: updates are clipped, and without noise that promises nothing"
        drawn = f", {self.sampled} of {self.clients} clients in each" if self.sampled < self.clients else ""
        return (
            f"privacy: epsilon {self.epsilon:.3g} at delta {self.delta:g} for a client whose data are replaced, over "
            f"{self.releases} edge rounds{drawn}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": "one client's data replaced",
            "noise_multiplier": self.noise_multiplier,
            "releases": self.releases,
            "clients": self.clients,
            "sampled": self.sampled,
            "sentence": self.sentence,
        }


def check_privacy(config: Config, model: nn.Module | None = None) -> None:
    """A UsageError where the promise cannot be counted, or the `model` would break it."""
    if config.privacy.noise_multiplier:
        _accounting()
    if config.privacy.clip is not None and model is not None and has_batch_statistics(model):
        raise UsageError(
            f"privacy.clip = {config.privacy.clip:g} with a model that has BatchNorm: its statistics are computed from "
            "the clients' data without noise; use another normalisation, such as GroupNorm"
        )


def _accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise missing_extra("privacy.noise_multiplier above 0", "privacy", error) from None
    return dp_accounting


@cache
def _epsilon(noise_multiplier: float, delta: float, releases: int, clients: int, sampled: int) -> float:
    dp_accounting = _accounting()
    # The noise is z C, and the sum of clipped updates moves by 2 C where one of them is replaced.
    everyone = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    events = [everyone]
    if sampled < clients:  # with little noise the bound of a sample is above that of all
        events.append(dp_accounting.SampledWithoutReplacementDpEvent(clients, sampled, everyone))
    found = []
    for event in events:
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
        accountant.compose(event, releases)
        found.append(float(accountant.get_epsilon(delta)))
    return min(found)


def promise(config: Config, run: Hist, records: Sequence[dict[str, Any]] | None = None) -> Promise | None:
    """What a run promises after its `records` (None: after all the rounds that are planned); None where nothing is
    clipped."""
    settings = config.privacy
    if settings.clip is None:
        return None
    rounds = config.training.rounds
    if records is not None:
        taken = Counter(cell for record in records for cell in record.get("active_cells") or ())
        always = sum(record.get("active_cells") is None for record in records)
        rounds = always + max(taken.values(), default=0)
    clients = int(run.network.clients_per_cell.min())
    per_cell = run.participation.per_cell
    sampled = clients if per_cell is None or _tells_who(config, run) else min(per_cell, clients)
    return Promise(
        settings.noise_multiplier, settings.delta, rounds * config.training.edge_rounds, clients, sampled
    )


def _tells_who(config: Config, run: Hist) -> bool:
    """Whether edges' models, or what clients keep, tell which clients were drawn."""
    task, sizes = run.task, config.method.sizes
    remembers = task.codec.keeps or task.local.correction is not None
    sized = isinstance(sizes, str) and sizes != UNIFORM and bool(run.plan.groups)
    # In a deployment every machine has the seed that draws them.
    return remembers or sized or kind_of(config.uplink.name).analog or task.split.elsewhere


def foretold(config: Config, run: Hist) -> tuple[str, ...]:
    """What a run says at its start, in sentences."""
    made = promise(config, run)
    return () if made is None else (made.sentence,)


def stated(config: Config, run: Hist, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a summary says of it: nothing where nothing is clipped."""
    made = promise(config, run, records)
    return {} if made is None else {"privacy": made.as_json()}
