"""Over-the-air averaging: exact without noise, unbiased, the error the formula says, power never exceeded."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.errors import UsageError
from histfl.wireless import Rayleigh
from histfl.wireless.aircomp import (
    Link,
    add_equivalent_noise,
    draw_noise,
    equivalent_noise_variance,
    power_factor,
    precode,
    receive,
    superpose,
)

ENTRIES = 100_000
OPTIONS = [(paper_power, normalise) for paper_power in (False, True) for normalise in (False, True)]


def cell(
    clients: int, antennas: int, entries: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Updates [client, entry] of unequal sizes, channels [client, antenna] and a beam [antenna]."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 0.1 + torch.rand(clients, 1, generator=generator, dtype=torch.float64)
    updates = 0.3 * sizes * torch.randn(clients, entries, generator=generator, dtype=torch.float64)
    channels = Rayleigh().draw(clients, antennas, generator)
    beam = Rayleigh().draw(1, antennas, generator)[0]
    return updates, channels, beam / beam.norm()


def update_rms(updates: torch.Tensor) -> torch.Tensor:
    """RMS over all clients and entries, [...], of updates [..., client, entry]."""
    return updates.square().mean(dim=(-2, -1)).sqrt()


def aggregate(
    updates: torch.Tensor, channels: torch.Tensor, beam: torch.Tensor, link: Link, generator: torch.Generator
) -> torch.Tensor:
    """The mean update [..., entry] of [..., client, entry] as the edge server reads it, signal by signal."""
    factor = power_factor(channels, beam, link)
    signal = superpose(updates, channels, precode(channels, beam, factor))
    noise = draw_noise(signal, link.noise_variance, generator)
    rms = update_rms(updates.to(factor.dtype)) if link.normalise else 1.0
    return receive(signal, noise, beam, factor, rms=rms)


@settings(deadline=None, max_examples=40)
@given(
    clients=st.integers(1, 12),
    antennas=st.integers(1, 8),
    seed=st.integers(0, 10_000),
    option=st.sampled_from(OPTIONS),
)
def test_without_noise_the_estimate_is_the_mean(
    clients: int, antennas: int, seed: int, option: tuple[bool, bool]
) -> None:
    updates, channels, beam = cell(clients, antennas, 20, seed)
    link = Link(2.0, 0.0, *option)
    estimate = aggregate(updates, channels, beam, link, torch.Generator())
    assert torch.allclose(estimate, updates.mean(0), rtol=1e-9, atol=1e-12)
    # The fast path gives the mean itself, bit for bit.
    variance = equivalent_noise_variance(channels, beam, link, rms=update_rms(updates))
    assert torch.equal(add_equivalent_noise(updates.mean(0), variance, torch.Generator()), updates.mean(0))


@settings(deadline=None, max_examples=60)
@given(
    clients=st.integers(1, 30),
    antennas=st.integers(1, 8),
    seed=st.integers(0, 10_000),
    power=st.floats(1e-3, 1e3),
    paper_power=st.booleans(),
)
def test_no_client_exceeds_its_power(
    clients: int, antennas: int, seed: int, power: float, paper_power: bool
) -> None:
    _, channels, beam = cell(clients, antennas, 1, seed)
    link = Link(power, 1.0, paper_power)
    precoders = precode(channels, beam, power_factor(channels, beam, link))
    sent = precoders.abs().square()
    assert bool((sent <= power * (1 + 1e-12)).all())
    # The weakest client sends all it may; in the paper's form 1 / n^2 of it.
    used = power / clients**2 if paper_power else power
    assert sent.max().item() == pytest.approx(used, rel=1e-9)


@pytest.mark.parametrize(("paper_power", "normalise"), OPTIONS)
def test_the_error_is_the_formulas(paper_power: bool, normalise: bool) -> None:
    clients, power, noise_variance = 6, 2.0, 3.0
    updates, channels, beam = cell(clients, 4, ENTRIES, 5)
    link = Link(power, noise_variance, paper_power, normalise)
    rms = update_rms(updates)
    weakest = (channels @ beam.conj()).abs().square().min()
    by_hand = noise_variance / (2 * power * weakest)
    by_hand = by_hand if paper_power else by_hand / clients**2
    by_hand = by_hand * rms**2 if normalise else by_hand
    formula = equivalent_noise_variance(channels, beam, link, rms=rms)
    assert formula.item() == pytest.approx(by_hand.item(), rel=1e-12)

    mean = updates.mean(0)
    slow = aggregate(updates, channels, beam, link, torch.Generator().manual_seed(1)) - mean
    fast = add_equivalent_noise(mean, formula, torch.Generator().manual_seed(2)) - mean
    for error in (slow, fast):
        assert error.square().mean().item() == pytest.approx(formula.item(), rel=0.02)
        # Unbiased: the mean of the errors is within five of its standard deviations.
        assert abs(error.mean().item()) < 5 * math.sqrt(formula.item() / ENTRIES)
        # Gaussian: the fourth moment is three times the squared variance.
        assert (error**4).mean().item() == pytest.approx(3 * formula.item() ** 2, rel=0.06)


def test_clients_in_chunks_add_up_to_all_of_them() -> None:
    updates, channels, beam = cell(10, 4, 50, 7)
    link = Link(1.0, 0.5)
    factor = power_factor(channels, beam, link)
    precoders = precode(channels, beam, factor)
    signal = torch.zeros(4, 50, dtype=torch.complex128)
    squares = torch.zeros((), dtype=torch.float64)
    for chunk in torch.arange(10).split(3):
        signal += superpose(updates[chunk], channels[chunk], precoders[chunk])
        squares += updates[chunk].square().sum()
    noise = draw_noise(signal, link.noise_variance, torch.Generator().manual_seed(3))
    streamed = receive(signal, noise, beam, factor, rms=(squares / updates.numel()).sqrt())
    whole = aggregate(updates, channels, beam, link, torch.Generator().manual_seed(3))
    assert torch.allclose(streamed, whole, rtol=1e-10, atol=1e-13)


def test_cells_in_a_batch_equal_the_cells_one_by_one() -> None:
    parts = [cell(5, 3, 8, seed) for seed in range(4)]
    updates, channels, beams = (torch.stack(part) for part in zip(*parts, strict=True))
    link = Link(1.5, 0.7)
    together = equivalent_noise_variance(channels, beams, link, rms=update_rms(updates))
    exact = aggregate(updates, channels, beams, Link(1.5, 0.0), torch.Generator())
    for index, (update, channel, beam) in enumerate(parts):
        alone = equivalent_noise_variance(channel, beam, link, rms=update_rms(update))
        assert together[index].item() == pytest.approx(alone.item(), rel=1e-12)
        assert torch.allclose(exact[index], update.mean(0), atol=1e-12)


def test_updates_that_are_all_zero_stay_zero() -> None:
    updates, channels, beam = cell(3, 2, 5, 1)
    estimate = aggregate(updates * 0, channels, beam, Link(1.0, 1.0), torch.Generator())
    assert torch.equal(estimate, torch.zeros(5, dtype=torch.float64))


def test_bad_links_and_lost_clients_are_refused() -> None:
    with pytest.raises(UsageError, match="power = 0"):
        Link(0.0, 1.0)
    with pytest.raises(UsageError, match="noise_variance = nan"):
        Link(1.0, float("nan"))
    channels = torch.tensor([[1, 0], [0, 1]], dtype=torch.complex128)
    with pytest.raises(UsageError, match="orthogonal to the beam"):
        power_factor(channels, torch.tensor([1, 0], dtype=torch.complex128), Link(1.0, 1.0))
