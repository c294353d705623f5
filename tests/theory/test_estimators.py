"""The estimators against exact values, on models small enough to compute those."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from histfl.data import Split, TensorData
from histfl.data.augment import CropFlip
from histfl.errors import UsageError
from histfl.network import Network
from histfl.partition import State, training_copy
from histfl.seeds import Seeds
from histfl.theory import Estimates, Sampling, estimate
from histfl.theory.estimators import Batch, TaskLoss, largest_curvature
from histfl.training import LocalTraining, Task
from histfl.training.objectives import classification
from histfl.wireless.uplinks import Ideal

SAMPLES = 12  # of every client


@dataclass(frozen=True)
class Case:
    """A network of cells with `clients` clients, whose labels and inputs differ by cell and client."""

    task: Task
    network: Network
    state: State

    def at_seed(self, seed: int) -> Case:
        return replace(self, task=replace(self.task, seeds=Seeds(seed)))

    def estimate(self, round: int = 0, sampling: Sampling | None = None) -> Estimates:
        return estimate(self.task, self.network, self.state, round=round, sampling=sampling)

    def gradients(self) -> np.ndarray:
        """Of every client's whole loss, [client, parameter]."""
        task_loss = TaskLoss.of(self.task, self.state)
        split = self.task.split
        clients = range(split.num_clients)
        wholes = [Batch(torch.from_numpy(split.client(client)), 0) for client in clients]
        return np.stack([task_loss.gradient(whole)[1].numpy() for whole in wholes])


@dataclass(frozen=True)
class Exact:
    gradient_norm: float
    cell_divergence: float
    client_divergence: np.ndarray  # [cell]
    gradient_variance: np.ndarray  # [cell]

    @classmethod
    def of(cls, case: Case) -> Exact:
        variances = [[batch_variance(case, i) for i in cell] for cell in clients_of(case.network)]
        return replace(
            cls.of_whole_batches(case), gradient_variance=np.array([np.mean(v) for v in variances])
        )

    @classmethod
    def of_whole_batches(cls, case: Case) -> Exact:
        """Every batch is the client's whole data, so that gradients have no noise."""
        cells = np.split(case.gradients(), case.network.offsets[1:-1])
        means = np.stack([cell.mean(axis=0) for cell in cells])
        return cls(
            gradient_norm=float((means.mean(axis=0) ** 2).sum()),
            cell_divergence=float(((means - means.mean(axis=0)) ** 2).sum(axis=1).mean()),
            client_divergence=np.array([((c - c.mean(axis=0)) ** 2).sum(axis=1).mean() for c in cells]),
            gradient_variance=np.zeros(len(cells)),
        )


def clients_of(network: Network) -> list[range]:
    return [range(a, b) for a, b in zip(network.offsets[:-1], network.offsets[1:], strict=True)]


def batch_variance(case: Case, client: int) -> float:
    """sigma_i^2 of a batch drawn without replacement: S^2 / B (1 - B / n), S^2 over n - 1."""
    task_loss = TaskLoss.of(case.task, case.state)
    samples = torch.from_numpy(case.task.split.client(client))
    each = np.stack([task_loss.gradient(Batch(sample[None], 0))[1].numpy() for sample in samples])
    spread = ((each - each.mean(axis=0)) ** 2).sum() / (len(each) - 1)
    size = case.task.local.batch_size
    return float(spread / size * (1 - size / len(each)))


def make_case(
    clients_per_cell: tuple[int, ...] = (4, 3, 5),
    *,
    batch_size: int = 3,
    model: nn.Module | None = None,
    spread: float = 1.0,
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    counts = np.array(clients_per_cell)
    clients = int(counts.sum())
    cell = np.repeat(np.arange(len(counts)), counts)
    centres = torch.randn(len(counts), 3, generator=generator)[torch.from_numpy(cell)]
    centres = spread * (centres + 0.7 * torch.randn(clients, 3, generator=generator))
    inputs = centres[:, None] + torch.randn(clients, SAMPLES, 3, generator=generator)
    labels = torch.randint(3, (clients, SAMPLES), generator=generator)
    data = TensorData(inputs.reshape(-1, 3).double(), labels.reshape(-1), ("a", "b", "c"))
    torch.manual_seed(seed)
    model = (model or nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))).double()
    order = np.random.default_rng(seed).permutation(clients * SAMPLES)
    split = Split(np.sort(order), np.arange(clients + 1) * SAMPLES)
    task = Task(
        model=training_copy(model),
        data=data,
        split=split,
        local=LocalTraining(batch_size=batch_size),
        objective=classification(),
        uplink=Ideal(),
        seeds=Seeds(seed),
    )
    ones = np.ones(clients)
    network = Network(clients_per_cell=counts, cpu_hz=ones, snr=ones, transmit_power_w=ones)
    return Case(task, network, dict(model.named_parameters()))


def columns(estimates: list[Estimates]) -> dict[str, np.ndarray]:
    """Each quantity over the draws, [draw] or [draw, cell]."""
    records = [each.as_record() for each in estimates]
    return {name: np.array([record[name] for record in records]) for name in records[0]}


def naive(case: Case, round: int) -> tuple[float, float, np.ndarray]:
    """||grad f||^2, delta1^2 and delta2^2 [cell] by squares of one batch's gradients."""
    task_loss = TaskLoss.of(case.task, case.state)
    generator = np.random.default_rng(round)
    cells = []
    for clients in clients_of(case.network):
        batches = [
            generator.choice(case.task.split.client(i), case.task.local.batch_size, replace=False)
            for i in clients
        ]
        cells.append(
            np.stack([task_loss.gradient(Batch(torch.from_numpy(b), 0))[1].numpy() for b in batches])
        )
    means = np.stack([cell.mean(axis=0) for cell in cells])
    whole = means.mean(axis=0)
    within = np.array([((c - c.mean(axis=0)) ** 2).sum(axis=1).mean() for c in cells])
    return float((whole**2).sum()), float(((means - whole) ** 2).sum(axis=1).mean()), within


def assert_unbiased(values: np.ndarray, exact: np.ndarray | float, *, within: float) -> None:
    """The mean over draws [draw, ...] lies near the exact value, and no further than its own noise says."""
    error = values.mean(axis=0) - exact
    assert (np.abs(error) <= within * np.abs(exact)).all()
    assert (np.abs(error) <= 4 * values.std(axis=0) / np.sqrt(len(values))).all()


def test_estimates_are_unbiased_and_naive_ones_are_not() -> None:
    case = make_case(spread=0.3, batch_size=6)
    exact = Exact.of(case)
    rounds = range(120)
    ours = columns([case.estimate(round, Sampling(curvature_clients=1)) for round in rounds])
    for name in ("gradient_norm", "cell_divergence", "client_divergence", "gradient_variance"):
        assert_unbiased(ours[name], getattr(exact, name), within=0.2)

    gradient_norm, cell_divergence, client_divergence = (
        np.mean(values, axis=0) for values in zip(*(naive(case, r) for r in rounds), strict=True)
    )
    assert gradient_norm > 1.25 * exact.gradient_norm
    assert cell_divergence > 1.8 * exact.cell_divergence
    assert (client_divergence > 1.6 * exact.client_divergence).all()


def test_estimates_from_some_cells_and_clients_are_unbiased() -> None:
    case = make_case((6, 5, 7, 4), batch_size=6)
    exact = Exact.of(case)
    some = Sampling(cells=2, clients_per_cell=3, curvature_clients=1, curvature_samples=1)
    ours = columns([case.at_seed(seed).estimate(sampling=some) for seed in range(250)])
    assert_unbiased(ours["gradient_norm"], exact.gradient_norm, within=0.2)
    assert_unbiased(ours["cell_divergence"], exact.cell_divergence, within=0.2)
    assert_unbiased(ours["client_divergence"].mean(axis=1), exact.client_divergence.mean(), within=0.2)


@settings(deadline=None, max_examples=20)
@given(
    clients=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    epochs=st.integers(1, 2),
    seed=st.integers(0, 10**6),
)
def test_whole_batches_of_all_clients_give_the_exact_values(
    clients: list[int], epochs: int, seed: int
) -> None:
    case = make_case(tuple(clients), batch_size=epochs * SAMPLES, seed=seed)
    exact, ours = Exact.of_whole_batches(case), case.estimate()
    assert ours.gradient_norm == pytest.approx(exact.gradient_norm, rel=1e-9, abs=1e-12)
    assert ours.cell_divergence == pytest.approx(exact.cell_divergence, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(ours.client_divergence, exact.client_divergence, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.gradient_variance, exact.gradient_variance, atol=1e-12)


def test_loss_and_model_norm_are_those_of_the_full_model() -> None:
    case = make_case(batch_size=SAMPLES)
    ours = case.estimate()
    task_loss = TaskLoss.of(case.task, case.state)
    wholes = [
        [task_loss.gradient(Batch(torch.from_numpy(case.task.split.client(i)), 0))[0] for i in cell]
        for cell in clients_of(case.network)
    ]
    assert ours.loss == pytest.approx(np.mean([np.mean(cell) for cell in wholes]))
    assert ours.model_norm == pytest.approx(sum(x.square().sum().item() for x in case.state.values()))


def test_batches_are_augmented_as_in_training() -> None:
    """The loss is that of the variants on which clients train, which leave little of such an image."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    case = make_case((2, 2), batch_size=SAMPLES)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(len(case.task.data), 1, 3, 3, generator=generator).double()
    data = replace(case.task.data, inputs=images)
    with torch.no_grad():
        model[1].weight.normal_(generator=generator)
    augment = CropFlip(padding=2)
    task = replace(case.task, model=training_copy(model.double()), data=data, augment=augment)
    case = Case(task, case.network, dict(model.named_parameters()))
    with torch.no_grad():
        plain = task.loss(model(images), data.targets).item()
        each = [
            task.loss(model(augment.apply(images, torch.full((len(images),), v))), data.targets).item()
            for v in range(augment.num_variants)
        ]
    estimates = [case.estimate(round) for round in range(30)]
    losses = [one.loss for one in estimates]
    assert abs(np.mean(each) - plain) > 0.1
    assert np.mean(losses) == pytest.approx(np.mean(each), abs=4 * np.std(losses) / np.sqrt(len(losses)))
    assert min(one.gradient_variance[0] for one in estimates) > 0  # of whole batches, by their variants alone
    whole = replace(case, task=replace(task, augment=None))
    assert estimates[0].smoothness != whole.estimate(0).smoothness


def test_estimates_depend_on_the_seed_and_the_round_alone() -> None:
    case = make_case()
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = case.estimate(round=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert case.estimate(round=3) == first
    assert case.estimate(round=4) != first
    assert case.at_seed(9).estimate(round=3) != first


def test_dropout_counts_as_gradient_noise() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 3))
    case = make_case(batch_size=SAMPLES, model=model)
    assert min(case.estimate().gradient_variance) > 1e-4


def test_frozen_parameters_are_not_part_of_x() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    case = make_case(model=model)
    trained = sum(x.square().sum().item() for name, x in case.state.items() if name.startswith("2"))
    assert case.estimate().model_norm == pytest.approx(trained)
    assert case.estimate().parameters == case.gradients().shape[1] == 15


def test_batch_statistics_are_those_of_the_batch() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    case = make_case(batch_size=SAMPLES, model=model)
    ours, exact = case.estimate(), Exact.of_whole_batches(case)
    assert ours.gradient_norm == pytest.approx(exact.gradient_norm)
    assert ours.cell_divergence == pytest.approx(exact.cell_divergence)
    assert ours.smoothness > 0


def exact_hessian(case: Case, batch: Batch) -> torch.Tensor:
    task_loss = TaskLoss.of(case.task, case.state)
    shapes = {name: x.shape for name, x in task_loss.trained.items()}
    flat = torch.cat([x.detach().reshape(-1) for x in task_loss.trained.values()])

    def loss(vector: torch.Tensor) -> torch.Tensor:
        parts = vector.split([shape.numel() for shape in shapes.values()])
        trained = {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
        return replace(task_loss, trained=trained).of_loss(batch, lambda value: value)

    return torch.autograd.functional.hessian(loss, flat)


@pytest.mark.parametrize("seed", range(5))
def test_largest_curvature_is_the_hessians_norm(seed: int) -> None:
    case = make_case(seed=seed)
    batch = Batch(torch.from_numpy(case.task.split.client(seed)), seed)
    norm = torch.linalg.matrix_norm(exact_hessian(case, batch), ord=2).item()
    ours = largest_curvature(TaskLoss.of(case.task, case.state), batch)
    assert 0.97 * norm <= ours <= norm * (1 + 1e-9)


def test_smoothness_is_the_largest_over_the_clients() -> None:
    case = make_case((2, 2))
    norms = [
        torch.linalg.matrix_norm(
            exact_hessian(case, Batch(torch.from_numpy(case.task.split.client(i)), 0)), ord=2
        ).item()
        for i in range(4)
    ]
    assert case.estimate().smoothness == pytest.approx(max(norms), rel=0.03)


def test_a_linear_loss_has_no_curvature() -> None:
    case = make_case(model=nn.Linear(3, 3, bias=False))
    linear = replace(
        case.task, objective=replace(case.task.objective, loss=lambda outputs, targets: outputs.mean())
    )
    assert replace(case, task=linear).estimate().smoothness == 0


def test_attention_is_differentiated_twice() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift = nn.Linear(3, 8)
            self.out = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.lift(x).view(-1, 1, 4, 2)
            mixed = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
            return self.out(mixed.reshape(-1, 8))

    case = make_case(model=Attention())
    batch = Batch(torch.from_numpy(case.task.split.client(0)), 0)
    with sdpa_kernel(SDPBackend.MATH):
        norm = torch.linalg.matrix_norm(exact_hessian(case, batch), ord=2).item()
    assert largest_curvature(TaskLoss.of(case.task, case.state), batch) == pytest.approx(norm, rel=0.03)


def test_a_model_without_second_derivatives_is_named() -> None:
    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres = nn.Parameter(torch.ones(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cdist(x, self.centres, p=3)

    with pytest.raises(UsageError, match=r"theory\.every = 0"):
        make_case(model=Distances()).estimate()


def test_a_sample_of_one_says_what_it_needs() -> None:
    with pytest.raises(UsageError, match="clients_per_cell = 1; it must be at least 2"):
        Sampling(clients_per_cell=1)
    with pytest.raises(UsageError, match="curvature_samples = 0"):
        Sampling(curvature_samples=0)
