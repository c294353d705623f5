"""The theorems on quadratics whose every constant is known, against HIST simulated in plain numpy.

F_i(x) = (x - c_i)' A (x - c_i) / 2 with one diagonal A for all clients, so that the gradients differ by
constants and the divergences of Assumptions 5 and 6 hold with equality at every x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from histfl.theory import Constants, Duration, StepSizes, Terms, theorem_1, theorem_2, theorem_3


@dataclass(frozen=True)
class Quadratics:
    """curvature [parameter], centres [cell, client, parameter], and the noise of a gradient."""

    curvature: np.ndarray
    centres: np.ndarray
    sigma: float

    @classmethod
    def draw(cls, cells: int, clients: int, parameters: int, seed: int, **scale: float) -> Quadratics:
        generator = np.random.default_rng(seed)
        cell = scale["cell"] * generator.normal(size=(cells, 1, parameters))
        client = scale["client"] * generator.normal(size=(cells, clients, parameters))
        return cls(generator.uniform(0.2, 2.0, parameters), 0.1 + cell + client, scale["sigma"])

    @property
    def optimum(self) -> np.ndarray:
        return self.centres.mean(axis=(0, 1))

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return self.curvature * (x - self.optimum)

    def gap(self, x: np.ndarray) -> float:
        """f(x) - f_*."""
        return float((self.curvature * (x - self.optimum) ** 2).sum() / 2)

    def constants(self, x0: np.ndarray, model_norm: float) -> Constants:
        cell = self.centres.mean(axis=1)
        between = ((self.curvature * (cell - self.optimum)) ** 2).sum(axis=1).mean()
        within = ((self.curvature * (self.centres - cell[:, None])) ** 2).sum(axis=2).mean(axis=1).max()
        return Constants(
            smoothness=float(self.curvature.max()),
            gradient_variance=self.sigma**2,
            cell_divergence=float(between),
            client_divergence=float(within),
            model_norm=model_norm,
            initial_gap=self.gap(x0),
        )


@dataclass(frozen=True)
class Measured:
    gradient: float  # mean over (t, e) and repetitions of ||grad f(x^{t,e})||^2
    model_norm: float  # mean over t and repetitions of ||x^t||^2


def simulate(
    losses: Quadratics,
    duration: Duration,
    learning_rate: float,
    sizes: np.ndarray,
    seed: int,
    *,
    x0: np.ndarray,
    participants: int | None = None,
    masks: np.ndarray | None = None,
    air_noise: float = 0.0,
    repeats: int = 4,
) -> Measured:
    """HIST Algorithm 1 on the full vectors, masks [cell, parameter] drawn each round unless given."""
    generator = np.random.default_rng(seed)
    cells, clients, parameters = losses.centres.shape
    owner = np.repeat(np.arange(cells), sizes)
    gradients, norms = [], []
    for _ in range(repeats):
        x = x0.copy()
        for _ in range(duration.rounds):
            norms.append((x**2).sum())
            drawn = generator.permutation(owner)
            mask = masks if masks is not None else (np.arange(cells)[:, None] == drawn)
            edge = mask * x  # [cell, parameter]
            for _ in range(duration.edge_rounds):
                gradients.append((losses.gradient(edge.sum(axis=0)) ** 2).sum())
                local = np.repeat(edge[:, None], clients, axis=1)
                for _ in range(duration.local_steps):
                    noise = losses.sigma / np.sqrt(parameters) * generator.normal(size=local.shape)
                    gradient = losses.curvature * (local - losses.centres) + noise
                    local = local - learning_rate * mask[:, None] * gradient
                chosen = np.argsort(generator.random((cells, clients)), axis=1)[:, : participants or clients]
                edge = np.take_along_axis(local, chosen[..., None], axis=1).mean(axis=1)
                edge += learning_rate * air_noise * mask * generator.normal(size=edge.shape)
            x = edge.sum(axis=0)
    return Measured(float(np.mean(gradients)), float(np.mean(norms)))


def total(terms: Terms) -> float:
    return sum(term.value for term in terms)


# cells, clients, local steps, edge rounds, spread of cells, spread of clients, gradient noise, start
CONFIGURATIONS = [
    (2, 2, 1, 1, 0.0, 0.0, 0.0, 1.0),
    (2, 2, 1, 1, 1.0, 0.0, 0.0, 0.0),
    (2, 3, 2, 1, 0.0, 1.0, 0.0, 1.0),
    (2, 3, 1, 3, 0.0, 0.0, 1.0, 1.0),
    (2, 4, 4, 2, 1.0, 1.0, 1.0, 1.0),
    (3, 1, 1, 1, 1.0, 0.0, 0.5, 0.0),
    (3, 2, 3, 2, 0.3, 2.0, 0.5, 3.0),
    (4, 2, 1, 2, 2.0, 0.5, 0.1, 0.0),
    (4, 4, 2, 2, 0.1, 0.1, 0.1, 0.1),
    (4, 3, 1, 1, 0.0, 0.0, 5.0, 0.0),
    (6, 2, 1, 1, 1.0, 1.0, 0.0, 1.0),
    (8, 2, 2, 1, 0.5, 0.5, 0.5, 0.5),
]


@pytest.mark.parametrize("fraction", [1.0, 0.3])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("equal", [True, False])
def test_theorem_1_holds(configuration: tuple[float, ...], fraction: float, equal: bool) -> None:
    """At the largest learning rate allowed and below it, with equal and unequal cells."""
    cells, clients, steps, edge_rounds, cell, client, sigma, start = configuration
    cells, clients = int(cells), int(clients)
    parameters = 4 * cells
    losses = Quadratics.draw(cells, clients, parameters, seed=7, cell=cell, client=client, sigma=sigma)
    duration = Duration(rounds=40, edge_rounds=int(edge_rounds), local_steps=int(steps))
    x0 = np.full(parameters, start)
    sizes = np.full(cells, 4) + (
        0 if equal else np.resize([2, -2], cells) * (np.arange(cells) < cells // 2 * 2)
    )
    counts = [clients] * cells
    smoothness = float(losses.curvature.max())
    binding = StepSizes(smoothness, counts).binding(
        edge_rounds=duration.edge_rounds, local_steps=duration.local_steps
    )
    rate = fraction * binding.limit
    measured = simulate(losses, duration, rate, sizes, 3, x0=x0)
    bound = theorem_1(
        losses.constants(x0, measured.model_norm),
        duration,
        rate,
        clients_per_cell=counts,
        imbalance=cells * sizes.max() / parameters,
    )
    assert measured.gradient <= total(bound)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_theorem_2_holds_with_one_participant_in_two(configuration: tuple[float, ...]) -> None:
    cells, clients, steps, edge_rounds, cell, client, sigma, start = configuration
    cells, clients = int(cells), 2 * int(clients)
    losses = Quadratics.draw(cells, clients, 4 * cells, seed=8, cell=cell, client=client, sigma=sigma)
    duration = Duration(rounds=40, edge_rounds=int(edge_rounds), local_steps=int(steps))
    x0 = np.full(4 * cells, start)
    counts = [clients // 2] * cells
    conditions = StepSizes(float(losses.curvature.max()), counts, partial=True)
    rate = conditions.binding(edge_rounds=duration.edge_rounds, local_steps=duration.local_steps).limit
    measured = simulate(
        losses, duration, rate, np.full(cells, 4), 4, x0=x0, participants=clients // 2, repeats=8
    )
    constants = losses.constants(x0, measured.model_norm)
    assert measured.gradient <= total(theorem_2(constants, duration, rate, participants_per_cell=counts))


def test_theorem_3_holds_and_its_literal_form_does_not() -> None:
    """Loud channels, large L, nothing else to bound: the paper's gamma MSE falls short."""
    cells, parameters = 2, 8
    losses = Quadratics(np.full(parameters, 40.0), np.zeros((cells, 1, parameters)), sigma=0.0)
    duration = Duration(rounds=6000, edge_rounds=1, local_steps=1)
    x0 = np.zeros(parameters)
    rate = StepSizes(40.0, [1, 1]).binding(edge_rounds=1, local_steps=1).limit
    measured = simulate(losses, duration, rate, np.full(2, 4), 5, x0=x0, air_noise=1.0, repeats=1)
    # The last term would cover any error; the model's own part in it is not what is tested here.
    constants = losses.constants(x0, model_norm=0.0)
    error = float(parameters)  # sum_j MSE_j: unit noise on every parameter of its cell
    arguments = {"clients_per_cell": [1, 1], "aggregation_error": error}
    assert measured.gradient <= total(theorem_3(constants, duration, rate, **arguments))
    assert measured.gradient > total(theorem_3(constants, duration, rate, literal=True, **arguments))


def test_masks_that_never_change_break_the_theorem_as_stated() -> None:
    """Cell j always trains coordinate j, where its own loss is flat: x = 0 stays, with ||grad f||^2 = 16."""
    cells = 16
    centres = np.full((cells, cells), -1 / (cells - 1))
    np.fill_diagonal(centres, 1.0)
    losses = Quadratics(np.ones(cells), (centres - 1)[:, None, :], sigma=0.0)
    duration = Duration(rounds=10_000_000, edge_rounds=1, local_steps=1)
    short = Duration(rounds=200, edge_rounds=1, local_steps=1)
    rate = 5e-5
    counts = [1] * cells
    assert rate <= StepSizes(1.0, counts).binding(edge_rounds=1, local_steps=1).limit
    x0 = np.zeros(cells)
    measured = simulate(
        losses, short, rate, np.ones(cells, dtype=int), 6, x0=x0, masks=np.eye(cells), repeats=1
    )
    assert measured.model_norm == pytest.approx(0, abs=1e-20)  # so any number of rounds is the same
    assert measured.gradient == pytest.approx(16)

    constants = losses.constants(x0, measured.model_norm)
    assert constants.cell_divergence == pytest.approx(16 / 15)
    stated = total(theorem_1(constants, duration, rate, clients_per_cell=counts))
    assert stated == pytest.approx(6.5, abs=0.1)
    assert measured.gradient > stated
    assert measured.gradient <= total(
        theorem_1(constants, duration, rate, clients_per_cell=counts, fixed_masks=True)
    )

    redrawn = simulate(losses, Duration(40_000, 1, 1), rate, np.ones(cells, dtype=int), 6, x0=x0, repeats=1)
    assert redrawn.gradient < measured.gradient  # masks drawn anew do move
