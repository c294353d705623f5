"""The two-level splits of HIST Sec. VI-A: who is dealt which samples, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from histfl.arrays import Floats, Ints
from histfl.data.holdings import Split, checked_labels, offsets_of
from histfl.errors import UsageError, did_you_mean
from histfl.network import spread_evenly

SHARDS_PER_CLIENT = 2
DEFAULT_CONCENTRATION = 0.5  # of the Dirichlet split


@dataclass(frozen=True)
class Concentrations:
    """How even the label mixes of `dirichlet` are: small is skewed, large is like the level above.

    At 1.0 with balanced labels the mix is Dirichlet(1, ..., 1), uniform over all mixes.
    """

    cell: float = DEFAULT_CONCENTRATION
    client: float = DEFAULT_CONCENTRATION

    def __post_init__(self) -> None:
        for name, value in (("cell_concentration", self.cell), ("client_concentration", self.client)):
            if not (np.isfinite(value) and value > 0):
                raise UsageError(f"{name} = {value}; it must be positive and finite")


def split(
    name: str,
    labels: npt.ArrayLike,
    clients_per_cell: npt.ArrayLike,
    generator: np.random.Generator,
    *,
    cell_concentration: float = DEFAULT_CONCENTRATION,
    client_concentration: float = DEFAULT_CONCENTRATION,
) -> Split:
    """The samples with `labels` [sample] dealt to the clients of each cell, [cell], by the named rule (HIST Sec. VI-A).

    No sample goes to two clients and every client gets at least one. The concentrations are read by
    `dirichlet` alone.
    """
    if name not in SPLITS:
        hint = did_you_mean(name, SPLITS, f"known splits: {', '.join(SPLITS)}")
        raise UsageError(f"unknown split {name!r}; {hint}")
    concentrations = Concentrations(cell_concentration, client_concentration)
    return SPLITS[name](checked_labels(labels), _checked_clients(clients_per_cell), generator, concentrations)


def _shards(labels: Ints, clients: Ints, generator: np.random.Generator, _: Concentrations) -> Split:
    """Fully non-i.i.d. (Sec. VI-A): sort by label, cut into 2K equal shards, two random ones a client."""
    everybody = np.array([clients.sum()])
    return _sort_and_deal(labels, everybody, everybody, generator)


def _cell_shards(labels: Ints, clients: Ints, generator: np.random.Generator, _: Concentrations) -> Split:
    """Cells of few labels: the sorted shards go to the cells in order, and inside a cell two random ones a client.

    Sec. VI-B says of the fully non-i.i.d. split that cells have fewer class labels as N grows. By the rule of
    `shards` almost all labels are in every cell; by this one a cell has 10 / N of ten, or one more.
    """
    return _sort_and_deal(labels, np.array([clients.sum()]), clients, generator)


def _cell_iid(labels: Ints, clients: Ints, generator: np.random.Generator, _: Concentrations) -> Split:
    """Cell-i.i.d. (Sec. VI-A): the set split uniformly at random over cells, shards inside each cell."""
    return _sort_and_deal(labels, clients, clients, generator)


def _iid(labels: Ints, clients: Ints, generator: np.random.Generator, _: Concentrations) -> Split:
    """Every sample, in random order, in parts that differ by at most one."""
    sizes = _even_sizes(len(labels), int(clients.sum()))
    return Split(generator.permutation(len(labels)), offsets_of(sizes))


def _dirichlet(
    labels: Ints, clients: Ints, generator: np.random.Generator, concentrations: Concentrations
) -> Split:
    """Every sample, in parts that differ by at most one, with Dirichlet label mixes at both levels.

    Each cell's mix is centred on the whole set's, each client's on its cell's holding.
    """
    sizes = _even_sizes(len(labels), int(clients.sum()))
    first_client = offsets_of(clients)
    cell_sizes = np.add.reduceat(sizes, first_client[:-1])
    cells = np.zeros(len(clients), dtype=np.int64)
    order = np.arange(len(labels))
    order = order[deal_by_label_mix(labels, cells, cell_sizes, concentrations.cell, generator)]
    cell_of_client = np.repeat(np.arange(len(clients)), clients)
    order = order[deal_by_label_mix(labels[order], cell_of_client, sizes, concentrations.client, generator)]
    return Split(order, offsets_of(sizes))


Splitter: TypeAlias = Callable[[Ints, Ints, np.random.Generator, Concentrations], Split]

SPLITS: dict[str, Splitter] = {
    "shards": _shards,
    "cell-shards": _cell_shards,
    "cell-iid": _cell_iid,
    "iid": _iid,
    "dirichlet": _dirichlet,
}
READ_CONCENTRATIONS = ("dirichlet",)
WITHOUT_LABELS = ("iid",)  # splits that look at no label, and so fit targets of every kind


def _sort_and_deal(
    labels: Ints, sorted_within: Ints, dealt_within: Ints, generator: np.random.Generator
) -> Split:
    """Random equal shares of the samples to each group of `sorted_within`, sorted by label in it and cut into
    shards; these, in order, to the groups of `dealt_within`, and at random to its clients. Both have the number
    of clients of every group.

    One shard size serves all groups: floor(floor(n * n_j / K) / (2 n_j)) = floor(n / 2K).
    Deviation: the samples left over are drawn at random, where cutting them off the sorted end would
    take them all from the last class.
    """
    num_clients = int(dealt_within.sum())
    num_shards = SHARDS_PER_CLIENT * num_clients
    shard_size = len(labels) // num_shards
    if shard_size == 0:
        raise UsageError(
            f"{len(labels)} samples cannot fill {num_shards} shards, {SHARDS_PER_CLIENT} for each of "
            f"{num_clients} clients; use at most {len(labels) // SHARDS_PER_CLIENT} clients, or split = 'iid'"
        )

    def group_of_shard(clients: Ints) -> Ints:
        return np.repeat(np.arange(len(clients)), SHARDS_PER_CLIENT * clients)

    drawn = generator.permutation(len(labels))[: num_shards * shard_size]
    group = np.repeat(group_of_shard(sorted_within), shard_size)
    shards = drawn[np.lexsort((drawn, labels[drawn], group))].reshape(num_shards, shard_size)
    dealt = np.lexsort((generator.random(num_shards), group_of_shard(dealt_within)))
    offsets = np.arange(num_clients + 1, dtype=np.int64) * (SHARDS_PER_CLIENT * shard_size)
    return Split(shards[dealt].reshape(-1), offsets)


def _even_sizes(samples: int, clients: int) -> Ints:
    """[client]; the clients with one sample more are the first."""
    if samples < clients:
        raise UsageError(
            f"{samples} samples cannot serve {clients} clients; use at most {samples} clients or more data"
        )
    return spread_evenly(samples, clients)


def _checked_clients(clients_per_cell: npt.ArrayLike) -> Ints:
    array = np.asarray(clients_per_cell)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer) or array.min() < 1:
        raise UsageError(f"clients_per_cell = {clients_per_cell!r:.80}; give one positive number a cell")
    return array.astype(np.int64, copy=False)


def deal_by_label_mix(
    labels: Ints, parent_of_holder: Ints, sizes: Ints, concentration: float, generator: np.random.Generator
) -> Ints:
    """Positions [sample], so that labels[result] lists holder 0's samples, then holder 1's, and so on.

    `labels` [sample] come grouped by parent, in the order of the parents; holder r, a child of
    `parent_of_holder[r]` (ascending), takes `sizes[r]` of its parent's samples, and the sizes of a
    parent's holders add up to what the parent has. Every place of a holder asks for a label drawn from
    the holder's mix. Where a parent runs out of a label, places chosen at random go without and ask
    again, by the same mix over the labels that are left; so all sizes are exact, all samples are dealt.
    """
    num_classes = int(labels.max()) + 1
    holder = np.repeat(np.arange(len(sizes)), sizes)
    parent = parent_of_holder[holder]  # of each place, and, as both are grouped alike, of each sample
    num_keys = (int(parent_of_holder[-1]) + 1) * num_classes
    keys = parent * num_classes + labels
    supply = np.bincount(keys, minlength=num_keys)
    samples = _shuffled_by_key(keys, generator)
    first = np.cumsum(supply) - supply  # of each key, the next of `samples` to give
    logs = _log_mixes(supply.reshape(-1, num_classes), parent_of_holder, concentration, generator)

    result = np.empty(len(labels), dtype=np.int64)
    places = np.arange(len(labels))
    while places.size:  # each time, all are served or some label of some parent has run out
        asking, of_asking = np.unique(holder[places], return_inverse=True)
        weights = logs[asking]
        weights[supply.reshape(-1, num_classes)[parent_of_holder[asking]] == 0] = -np.inf
        asked = _draw_labels(weights, of_asking, generator)
        keys = parent[places] * num_classes + asked
        demand = np.bincount(keys, minlength=num_keys)
        turn = _shuffled_by_key(keys, generator)
        places, keys = places[turn], keys[turn]
        rank = np.arange(len(keys)) - (np.cumsum(demand) - demand)[keys]
        served = rank < supply[keys]
        result[places[served]] = samples[(first[keys] + rank)[served]]
        given = np.minimum(demand, supply)
        supply, first, places = supply - given, first + given, places[~served]
    return result


def _log_mixes(
    supply: Ints, parent_of_holder: Ints, concentration: float, generator: np.random.Generator
) -> Floats:
    """[holder, class]: logarithms, up to a constant a row, of Dirichlet(concentration * classes * shares).

    The shares are those of the labels that the holder's parent has. Kept as logarithms of gamma
    variates, log Gamma(a) = log Gamma(a + 1) + log(U) / a in distribution, since for small `a` the
    variates themselves underflow to zero in every class.
    """
    shares = supply / supply.sum(axis=1, keepdims=True)
    alpha = (concentration * supply.shape[1] * shares)[parent_of_holder]
    logs: Floats = generator.standard_gamma(alpha + 1.0)
    np.log(logs, out=logs)
    uniform = generator.random(alpha.shape)
    np.log1p(np.negative(uniform, out=uniform), out=uniform)  # of 1 - U, which is never 0
    np.divide(uniform, alpha, out=uniform, where=alpha > 0)
    logs += uniform
    return logs


def _draw_labels(logs: Floats, row: Ints, generator: np.random.Generator) -> Ints:
    """[place]: a label for each place from its row of log weights, by inverse transform; uses up `logs`."""
    logs -= logs.max(axis=1, keepdims=True)
    cumulative = np.cumsum(np.exp(logs, out=logs), axis=1, out=logs)
    uniform = generator.random(len(row)) * cumulative[row, -1]
    labels = np.zeros(len(row), dtype=np.int64)
    for boundary in cumulative.T[:-1]:  # one pass a class keeps memory at one array of places
        labels += uniform >= boundary[row]
    return labels


def _shuffled_by_key(keys: Ints, generator: np.random.Generator) -> Ints:
    """Positions sorted by key, in random order within one."""
    shuffled = generator.permutation(len(keys))
    return shuffled[np.argsort(keys[shuffled], kind="stable")]
