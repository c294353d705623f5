"""The constants of the theorems, estimated at one global model from the clients' data (HIST Sec. III-A).

f is the mean of the cells' losses f_j, and f_j the mean of the losses F_i of the cell's clients. Every
client draws two independent batches, whose gradients a_i and b_i have the mean grad F_i. Then
||a_i - b_i||^2 / 2 has the mean sigma_i^2, and a_i . b_k has the mean grad F_i . grad F_k for all i and k,
i = k too: no noise is squared. (||a_i||^2 would add sigma_i^2, which is why the naive estimates of
||grad f||^2, delta1^2 and delta2^2 are too large.)

For vectors g_1 .. g_n with the mean square s and the mean p of g_i . g_k over pairs i != k,

    ||mean g||^2 = s / n + (1 - 1/n) p    and    mean ||g_i - mean g||^2 = (1 - 1/n) (s - p),

and a uniform sample of the g_i gives s and p without bias. Both come from sums over the sample, since
sum_{i != k} a_i . b_k = (sum a) . (sum b) - sum_i a_i . b_i: no gradient is kept per client. The same holds
one level up, for the cells' gradients, which are the means of independent samples of clients.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from histfl.arrays import Ints
from histfl.data.inputs import called
from histfl.errors import DivergedError, UsageError
from histfl.network import Network
from histfl.partition import State, with_tensors
from histfl.seeds import lent_to_layers
from histfl.training import Task
from histfl.training.batches import BatchKeys, batch_numbers, load_batch, variants_of_clients
from histfl.training.dropout import key_names

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Samples, or variants of them, by their `batch_numbers` [sample], and the seed of random layers such as dropout."""

    numbers: torch.Tensor
    layers_seed: int


@dataclass(frozen=True)
class TaskLoss:
    """The loss of `task` as a function of the trained parameters; the others are constants."""

    task: Task
    trained: State
    constants: State

    @classmethod
    def of(cls, task: Task, state: State) -> TaskLoss:
        """At `state`, all parameters of the model."""
        names = {name for name, parameter in task.model.named_parameters() if parameter.requires_grad}
        return cls(
            task,
            {name: x.detach().clone().requires_grad_() for name, x in state.items() if name in names},
            {name: x.detach() for name, x in state.items() if name not in names},
        )

    def of_loss(self, batch: Batch, compute: Callable[[torch.Tensor], T]) -> T:
        """What `compute` makes of the mean loss on the batch, []; backward passes belong in it."""
        task = self.task
        device = task.data.device
        inputs, targets = load_batch(task, batch.numbers.to(device))
        keys = dict.fromkeys(key_names(task.model), torch.tensor(batch.layers_seed, device=device))

        def computed(model: nn.Module) -> T:
            with lent_to_layers(batch.layers_seed, device):
                outputs = called(model, inputs)
            return compute(task.loss(outputs, targets))

        return with_tensors(task.model, {**self.trained, **self.constants, **keys}, computed)

    def gradient(self, batch: Batch) -> tuple[float, torch.Tensor]:
        """The loss on the batch and its gradient, float64 [parameter]."""
        parameters = tuple(self.trained.values())

        def computed(value: torch.Tensor) -> tuple[float, tuple[torch.Tensor, ...]]:
            return value.item(), torch.autograd.grad(value, parameters, materialize_grads=True)

        value, gradients = self.of_loss(batch, computed)
        return value, torch.cat([gradient.reshape(-1) for gradient in gradients]).double()


# Top curvatures of a network's loss lie close together; ||H v|| is within per cents long before v settles.
ITERATIONS = 30
TOLERANCE = 2e-3


def largest_curvature(task_loss: TaskLoss, batch: Batch) -> float:
    """The spectral norm of the Hessian of the batch loss, by power iteration on Hessian-vector products.

    ||H v|| of a unit vector v never exceeds the norm and never falls from one iteration to the next, so
    this is a lower estimate, at curvatures of either sign. It says nothing of other points x. The batch
    goes through the model in parts as large as a training batch, so that memory is bounded alike.
    """
    parts = [
        Batch(numbers, batch.layers_seed + place)
        for place, numbers in enumerate(batch.numbers.split(task_loss.task.local.batch_size))
    ]
    size = sum(x.numel() for x in task_loss.trained.values())
    generator = torch.Generator(device="cpu").manual_seed(batch.layers_seed)
    vector = torch.randn(size, dtype=torch.float64, generator=generator)
    vector = vector.to(task_loss.task.data.device)
    largest = 0.0
    for _ in range(ITERATIONS):
        norm = torch.linalg.vector_norm(vector)
        if norm == 0:
            break
        vector = _mean_product(task_loss, parts, vector / norm)
        before, largest = largest, torch.linalg.vector_norm(vector).item()
        if largest - before <= TOLERANCE * largest:
            break
    return largest


def _mean_product(task_loss: TaskLoss, parts: list[Batch], vector: torch.Tensor) -> torch.Tensor:
    """H v, float64 [parameter], H the mean over all samples of the parts' Hessians."""
    total = torch.zeros_like(vector)
    for part in parts:
        total += _product(task_loss, part, vector) * len(part.numbers)
    return total / sum(len(part.numbers) for part in parts)


def _product(task_loss: TaskLoss, batch: Batch, vector: torch.Tensor) -> torch.Tensor:
    parameters = tuple(task_loss.trained.values())

    def computed(value: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        gradients = torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        if not flat.requires_grad:  # a loss that is linear in the parameters
            return None
        return torch.autograd.grad(flat, parameters, vector.to(flat), materialize_grads=True)

    try:
        with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels cannot be differentiated twice
            products = task_loss.of_loss(batch, computed)
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        raise UsageError(
            f"the smoothness constant needs second derivatives, which the model does not have ({error}); "
            "set theory.every = 0"
        ) from None
    if products is None:
        return torch.zeros_like(vector)
    return torch.cat([product.reshape(-1) for product in products]).double()


@dataclass(frozen=True)
class Sampling:
    """How much of a large network is looked at: so many cells, so many clients in each of them, and the
    curvature of so many clients on so many samples of each. At least two cells and clients are needed
    to tell how they differ."""

    cells: int = 20
    clients_per_cell: int = 20
    curvature_clients: int = 4
    curvature_samples: int = 200

    def __post_init__(self) -> None:
        for name, least in (("cells", 2), ("clients_per_cell", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} = {getattr(self, name)}; it must be at least {least}")
        for name in ("curvature_clients", "curvature_samples"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)}; it must be at least 1")


@dataclass(frozen=True)
class Estimates:
    """What the theorems' constants are at one model x; all unbiased but `smoothness`.

    Unbiased estimates of small quantities may be negative: average them over rounds before use.
    `smoothness` is local and a lower estimate: the largest curvature of some clients' losses at x.
    """

    loss: float  # f(x)
    gradient_norm: float  # ||grad f(x)||^2
    cell_divergence: float  # mean over cells of ||grad f_j - grad f||^2 (Assumption 5)
    client_divergence: tuple[float, ...]  # [cell], mean over its clients of ||grad F_i - grad f_j||^2
    gradient_variance: tuple[float, ...]  # [cell], mean over its clients of sigma_i^2 (Assumption 4)
    smoothness: float  # L (Assumption 2)
    model_norm: float  # ||x||^2
    parameters: int  # d, the entries of x: the trained parameters

    def as_record(self) -> dict[str, float | int | list[float]]:
        """Plain numbers and lists, as they are written."""
        values = dataclasses.asdict(self)
        return {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}


def estimate(
    task: Task, network: Network, state: State, *, round: int, sampling: Sampling | None = None
) -> Estimates:
    """The constants of HIST Sec. III-A at the global model `state` (all parameters), before global round `round`.

    Batches have the size and the distribution of training, so sigma^2 is that of a training step; x is
    the vector of all trained parameters. Streams of their own leave the training as it is. The cells
    that are looked at stay the same in all rounds, so that their lists can be averaged over rounds; the
    clients change.
    """
    chosen = sampling or Sampling()
    task_loss = TaskLoss.of(task, state)
    cells = _choose(task.seeds.numpy("theory-cells"), network.num_cells, chosen.cells)
    total = _Sums()
    losses, squares, divergences, variances = [], [], [], []
    for index in cells:
        size = int(network.clients_per_cell[index])
        generator = task.seeds.numpy("theory-clients", round, int(index))
        positions = _choose(generator, size, chosen.clients_per_cell)
        cell = _cell_sums(task_loss, network.offsets[index] + positions, round)
        square, divergence = _split(size, cell.mean_product, cell.pair_product)
        losses.append(cell.loss / cell.count)
        squares.append(square)
        divergences.append(divergence)
        variances.append(cell.difference / cell.count / 2)
        total.add(cell.left / cell.count, cell.right / cell.count)
    gradient_norm, cell_divergence = _split(
        network.num_cells, math.fsum(squares) / len(cells), total.pair_product
    )
    estimates = Estimates(
        loss=math.fsum(losses) / len(cells),
        gradient_norm=gradient_norm,
        cell_divergence=cell_divergence,
        client_divergence=tuple(divergences),
        gradient_variance=tuple(variances),
        smoothness=max(largest_curvature(task_loss, batch) for batch in _whole(task, round, chosen)),
        model_norm=math.fsum(x.double().square().sum().item() for x in task_loss.trained.values()),
        parameters=sum(x.numel() for x in task_loss.trained.values()),
    )
    _check_finite(estimates, round)
    return estimates


@dataclass
class _Sums:
    """Sums over a sample of pairs (left_i, right_i) of vectors [parameter], float64."""

    count: int = 0
    left: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    right: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    product: float = 0.0  # of left_i . right_i
    difference: float = 0.0  # of ||left_i - right_i||^2
    loss: float = 0.0

    def add(self, left: torch.Tensor, right: torch.Tensor, loss: float = 0.0) -> None:
        self.left = left + self.left.to(left.device)
        self.right = right + self.right.to(right.device)
        self.product += torch.dot(left, right).item()
        self.difference += (left - right).square().sum().item()
        self.loss += loss
        self.count += 1

    @property
    def mean_product(self) -> float:
        """The mean of left_i . right_i."""
        return self.product / self.count

    @property
    def pair_product(self) -> float:
        """The mean of left_i . right_k over pairs i != k; 0 where there is none, and none is asked for."""
        pairs = self.count * (self.count - 1)
        return (torch.dot(self.left, self.right).item() - self.product) / pairs if pairs else 0.0


def _split(size: int, mean_square: float, pair_product: float) -> tuple[float, float]:
    """||mean g||^2 and mean ||g_i - mean g||^2 of `size` vectors; see the formulas above."""
    rest = 1 - 1 / size
    return mean_square / size + rest * pair_product, rest * (mean_square - pair_product)


def _cell_sums(task_loss: TaskLoss, clients: Ints, round: int) -> _Sums:
    """Two independent batches a client, one client after another."""
    task, seeds, sums = task_loss.task, task_loss.task.seeds, _Sums()
    # Two streams and not two steps of one: batches of one epoch exclude each other.
    streams = [
        BatchKeys(seeds.key("theory-batches", round, which), seeds.key("theory-variants", round, which))
        for which in range(2)
    ]
    for client in clients.tolist():
        pair = []
        for which, keys in enumerate(streams):
            numbers = batch_numbers(task, np.array([client]), keys, first_step=0, steps=1)
            layers = seeds.key("theory-layers", round, client, which)
            pair.append(task_loss.gradient(Batch(numbers[0, 0], layers)))
        (left_loss, left), (right_loss, right) = pair
        sums.add(left, right, (left_loss + right_loss) / 2)
    return sums


def _whole(task: Task, round: int, sampling: Sampling) -> Iterator[Batch]:
    """All samples of some clients, or a bounded number of them; of each, a variant that its client may train on."""
    generator = task.seeds.numpy("theory-curvature", round)
    for client in _choose(generator, task.split.num_clients, sampling.curvature_clients).tolist():
        samples = task.split.client(client)
        positions = _choose(generator, len(samples), sampling.curvature_samples)
        numbers = torch.from_numpy(samples[positions])
        if task.augment is not None:
            key, who = task.seeds.key("theory-curvature-variants", round), torch.tensor([client])
            (variants,) = variants_of_clients(
                key, who, task.augment.num_variants, first_step=0, steps=1, batch_size=len(numbers)
            )
            numbers = numbers + len(task.data) * variants[0]
        yield Batch(numbers, task.seeds.key("theory-curvature-layers", round, client))


def _choose(generator: np.random.Generator, total: int, most: int) -> Ints:
    """All of 0 .. total - 1 in order, or `most` of them, drawn uniformly without replacement."""
    if total <= most:
        return np.arange(total, dtype=np.int64)
    return np.sort(generator.choice(total, most, replace=False)).astype(np.int64)


def _check_finite(estimates: Estimates, round: int) -> None:
    for name, value in estimates.as_record().items():
        if not np.isfinite(value).all():
            raise DivergedError(
                f"the estimate of {name} before round {round + 1} is {value} (theory.every = 0 takes none)"
            )
