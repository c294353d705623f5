"""What a global round takes, estimated from below before anything is drawn: client steps and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from histfl.arrays import Ints
from histfl.data import DATASETS, SPLITS, TensorData
from histfl.data.inputs import bytes_of_a_sample
from histfl.errors import UsageError
from histfl.limits import check_memory
from histfl.network import read_description, spread_evenly
from histfl.partition import Plan, shared_units
from histfl.runs.config import Config
from histfl.runs.sizes import uniform_counts
from histfl.training.dealers import Dealer
from histfl.wireless.uplinks import kind_of

MOST_CLIENT_STEPS = 10**12  # a round: at a million a second, more than eleven days of nothing on the disk
BYTES_A_CLIENT = 24  # three float64s
BYTES_A_TRANSMISSION = 100  # a dozen numbers of its time and energy
BYTES_AN_EDGE_ROUND = 300  # in a cell: its losses, its error, its place in lists
BYTES_A_SAMPLE_NUMBER = 24  # of a batch: where it stands in the client's stream, its own number, the data's
BYTES_A_CHANNEL = 16  # one complex128 an antenna


@dataclass(frozen=True)
class Work:
    """Of a global round: the transmissions of all edge rounds, their local steps, and bytes of memory."""

    transmissions: int
    client_steps: int
    bytes: int

    @property
    def sentence(self) -> str:
        return f"{self.client_steps:,} client steps"


def network_file(config: Config) -> Path | None:
    """The file that the network's profile names, if it names one."""
    return Path(config.network.profile) if config.network.profile.endswith(".toml") else None


def described_cells(config: Config) -> Ints:
    """The clients of each cell [cell], before any of them is drawn."""
    settings, described = config.network, network_file(config)
    if described is None:
        return spread_evenly(settings.clients, settings.cells)
    own = read_description(described).clients_per_cell
    if "cells" not in settings.model_fields_set or settings.cells == len(own):
        return own
    return spread_evenly(int(own.sum()), settings.cells)


def check_clients(config: Config, clients_per_cell: Ints, *, data: bool = True) -> None:
    """A UsageError where the network has more clients than the machine can hold or, as far as that is known before
    they are read, than the `data` can serve."""
    clients = int(clients_per_cell.sum())
    source = DATASETS.get(config.data.name)
    samples = source.train_samples if data and source is not None else None
    if samples is not None and config.data.split in SPLITS and clients > samples:
        raise UsageError(
            f"{samples} samples cannot serve {clients} clients; use at most {samples} clients or more data"
        )
    check_memory(f"a network of {clients:,} clients", clients * BYTES_A_CLIENT, "use fewer clients")


def work_of_a_round(config: Config, clients_per_cell: Ints) -> Work:
    """What a global round of `config` takes at least in a network with so many clients in each cell, [cell]."""
    training = config.training
    sending = _senders(config, clients_per_cell)
    slots = len(sending) * training.edge_rounds
    transmissions = int(sending.sum()) * training.edge_rounds
    kind = kind_of(config.uplink.name)
    drawn = transmissions if kind.redrawn else int(sending.max())
    channels = drawn * config.uplink.antennas * BYTES_A_CHANNEL if "antennas" in kind.reads else 0
    batches = training.local_steps * training.batch_size * BYTES_A_SAMPLE_NUMBER
    return Work(
        transmissions=transmissions,
        client_steps=transmissions * training.local_steps,
        bytes=int(clients_per_cell.sum()) * BYTES_A_CLIENT
        + transmissions * BYTES_A_TRANSMISSION
        + slots * BYTES_AN_EDGE_ROUND
        + channels
        + batches,
    )


def check_round(config: Config, clients_per_cell: Ints) -> None:
    """A UsageError where a round of training is more than this machine can hold, or any can finish."""
    work = work_of_a_round(config, clients_per_cell)
    training = config.training
    about = (
        f"training.edge_rounds = {training.edge_rounds:,}, training.local_steps = {training.local_steps:,}"
    )
    remedy = "lower these or training.batch_size, or let fewer clients take part (network.clients, network.participants)"
    if work.client_steps > MOST_CLIENT_STEPS:
        raise UsageError(
            f"{about}: a global round would have {work.client_steps:,} client steps, and nothing is kept before it "
            f"ends; {remedy}"
        )
    check_memory(f"{about}: a global round of {work.client_steps:,} client steps", work.bytes, remedy)


def check_network(config: Config, *, data: bool = True) -> int:
    """A UsageError where the network that `config` describes, or a round on it, is too large; its number of cells."""
    cells = described_cells(config)
    check_clients(config, cells, data=data)
    check_round(config, cells)
    return len(cells)


def check_arrays(
    config: Config, clients_per_cell: Ints, plan: Plan, num_cells: int, train: TensorData, dealer: Dealer
) -> None:
    """A UsageError where a round, or a batch with what the model makes of it, or the submodels that the `dealer` gives
    a round's `num_cells` cells, before and after it, are more than the machine can hold."""
    check_round(config, clients_per_cell)
    if train.device.type != "cpu":  # a GPU has memory of its own
        return
    size = config.training.batch_size
    check_memory(
        f"training.batch_size = {size:,}: a batch",
        2 * size * bytes_of_a_sample(train.inputs),
        "lower it",
    )
    units = uniform_counts(plan, num_cells, dealer) + shared_units(plan, dealer.shared)
    numbers = int(plan.sizes(units).sum())
    check_memory(
        f"the submodels of {num_cells:,} cells ({numbers:,} parameters), before and after a round,",
        2 * numbers * 2,  # bytes, of the smallest format
        "let fewer cells take part (network.active_cells), or take a smaller model",
    )


def _senders(config: Config, clients_per_cell: Ints) -> Ints:
    """[cell]: how many clients send in an edge round of each cell that takes part; of cells that are sampled, the
    smallest ones."""
    settings = config.network
    counts = clients_per_cell
    if isinstance(settings.active_cells, int):
        counts = np.sort(counts)[: settings.active_cells]
    elif settings.active_cells != "all":
        listed = [cell for cell in settings.active_cells if 0 <= cell < len(counts)]
        counts = counts[listed or [0]]  # another list is refused by those who look at it
    return counts if settings.participants == "all" else np.minimum(counts, settings.participants)
