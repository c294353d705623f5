"""Max-min beamforming: closed forms, the certified bound, the baselines, and its symmetries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.errors import UsageError
from histfl.wireless import PathLoss, Rayleigh, max_min
from histfl.wireless.beamforming_sca import min_gain, principal_eigenvector, sca
from histfl.wireless.relaxation import certify, relax, sdr_randomised, upper_bound

sizes = {"clients": st.integers(1, 12), "antennas": st.integers(1, 8), "seed": st.integers(0, 10_000)}


def draw(problems: int, clients: int, antennas: int, seed: int = 0) -> torch.Tensor:
    return Rayleigh().draw((problems, clients), antennas, torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=25)
@given(**sizes)
def test_beams_have_norm_one_their_value_and_never_exceed_the_bound(
    clients: int, antennas: int, seed: int
) -> None:
    channels = draw(3, clients, antennas, seed)
    beams, values = max_min(channels)
    assert torch.allclose(beams.norm(dim=-1), torch.ones(3, dtype=torch.float64), atol=1e-12)
    assert torch.allclose((channels @ beams.conj()[..., None])[..., 0].abs().square().amin(-1), values)
    assert bool((values <= upper_bound(channels) * (1 + 1e-9)).all())


@settings(deadline=None, max_examples=20)
@given(antennas=st.integers(1, 12), seed=st.integers(0, 10_000), gain=st.floats(1e-8, 1e8))
def test_one_client_is_received_by_its_matched_filter(antennas: int, seed: int, gain: float) -> None:
    channels = gain * draw(4, 1, antennas, seed)
    beams, values = max_min(channels)
    expected = channels[:, 0].norm(dim=-1).square()
    assert torch.allclose(values, expected, rtol=1e-6)
    alignment = (beams.conj() * channels[:, 0]).sum(-1).abs().square() / expected
    assert torch.allclose(alignment, torch.ones(4, dtype=torch.float64), atol=1e-6)


@settings(deadline=None, max_examples=20)
@given(clients=st.integers(2, 8), more=st.integers(0, 4), seed=st.integers(0, 10_000))
def test_orthogonal_channels_have_a_closed_form(clients: int, more: int, seed: int) -> None:
    """max-min = 1 / sum_i 1 / ||h_i||^2, and the bound is the same."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(Rayleigh().draw((3, clients + more), clients + more, generator))[0]
    lengths = 0.3 + 3 * torch.rand(3, clients, 1, generator=generator, dtype=torch.float64)
    channels = basis[:, :clients] * lengths
    expected = 1 / (1 / lengths[..., 0].square()).sum(-1)
    assert torch.allclose(max_min(channels)[1], expected, rtol=1e-6)
    assert torch.allclose(upper_bound(channels), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("clients", "problems", "mean_share", "worst_share"),
    [
        (2, 100, 1 - 1e-5, 1 - 1e-5),
        (3, 100, 1 - 1e-5, 1 - 1e-5),
        (5, 200, 0.995, 0.85),
        (15, 200, 0.91, 0.75),
    ],
)
def test_share_of_the_bound_with_ten_antennas(
    clients: int, problems: int, mean_share: float, worst_share: float
) -> None:
    """Up to three clients the relaxation is exact, so the bound itself is reached."""
    channels = draw(problems, clients, 10, seed=clients)
    shares = max_min(channels)[1] / upper_bound(channels)
    assert shares.mean().item() >= mean_share
    assert shares.min().item() >= worst_share


def test_share_of_the_bound_with_thirty_clients() -> None:
    channels = draw(60, 30, 10, seed=30)
    shares = max_min(channels)[1] / upper_bound(channels)
    assert shares.mean().item() >= 0.78


@pytest.mark.parametrize(("clients", "problems"), [(2, 50), (5, 100), (15, 100), (30, 12)])
def test_never_below_the_baselines(clients: int, problems: int) -> None:
    channels = draw(problems, clients, 10, seed=40 + clients)
    _, values = max_min(channels)
    for baseline in (principal_eigenvector, sdr_randomised, sca):
        beams, others = baseline(channels)
        assert torch.allclose(beams.norm(dim=-1), torch.ones(problems, dtype=torch.float64), atol=1e-12)
        assert bool((values >= others - 1e-9).all()), baseline.__name__
    # Each of them is a different thing: the weaker ones lose by far where there are many clients.
    if clients == 15:
        bound = upper_bound(channels)
        shares = [
            (baseline(channels)[1] / bound).mean().item()
            for baseline in (principal_eigenvector, sdr_randomised, sca)
        ]
        assert shares[0] < 0.2 < shares[1] < 0.65 < 0.75 < shares[2]


@pytest.mark.parametrize(("clients", "problems"), [(5, 400), (15, 300), (30, 100)])
def test_never_below_successive_convex_approximation(clients: int, problems: int) -> None:
    """By construction, to rounding: its path from the principal eigenvector is one of the candidates."""
    channels = draw(problems, clients, 10, seed=60 + clients)
    assert bool((max_min(channels, starts=1)[1] >= sca(channels)[1] * (1 - 1e-9)).all())


@settings(deadline=None, max_examples=20)
@given(**sizes)
def test_successive_convex_approximation_only_climbs(clients: int, antennas: int, seed: int) -> None:
    channels = draw(3, clients, antennas, seed)
    start = Rayleigh().draw(3, antennas, torch.Generator().manual_seed(seed + 1))
    before = min_gain(channels, start / start.norm(dim=-1, keepdim=True))
    for iterations in (1, 2, 5, 20):
        beams, values = sca(channels, start, iterations=iterations)
        assert torch.allclose(beams.norm(dim=-1), torch.ones(3, dtype=torch.float64), atol=1e-12)
        assert bool((values >= before * (1 - 1e-12)).all())
        before = values


def test_successive_convex_approximation_solves_what_the_relaxation_solves() -> None:
    """With two clients there is one maximum, the bound, wherever the approximations start."""
    channels = draw(50, 2, 6, seed=12)
    start = Rayleigh().draw(50, 6, torch.Generator().manual_seed(13))
    assert torch.allclose(sca(channels, start)[1], upper_bound(channels), rtol=2e-3)


@settings(deadline=None, max_examples=15)
@given(**sizes)
def test_the_order_of_the_clients_changes_nothing(clients: int, antennas: int, seed: int) -> None:
    channels = draw(2, clients, antennas, seed)
    order = torch.randperm(clients, generator=torch.Generator().manual_seed(seed))
    beams, values = max_min(channels)
    shuffled_beams, shuffled_values = max_min(channels[:, order])
    assert torch.allclose(values, shuffled_values, rtol=1e-6)
    assert torch.allclose(beams, shuffled_beams, atol=1e-6)


def test_more_antennas_never_lower_the_value() -> None:
    channels = draw(60, 12, 10, seed=3)
    before = torch.zeros(60, dtype=torch.float64)
    for antennas in range(1, 11):
        values = max_min(channels[..., :antennas])[1]
        assert bool((values >= before * (1 - 1e-3)).all()), antennas
        before = values


@settings(deadline=None, max_examples=15)
@given(clients=st.integers(1, 25), antennas=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_more_antennas_never_lower_a_value_that_is_handed_on(clients: int, antennas: int, seed: int) -> None:
    """The beams of the smaller array as a lower limit: certain even with a single start."""
    channels = draw(4, clients, antennas + 1, seed)
    beams, values = max_min(channels[..., :antennas])
    larger = max_min(channels, starts=1, include=beams[:, None])[1]
    assert bool((larger >= values * (1 - 1e-12)).all())


def test_any_beam_handed_in_is_a_lower_limit() -> None:
    channels = draw(20, 30, 10, seed=8)
    beams, values = sca(channels)
    assert bool((max_min(channels, starts=1, include=beams[:, None])[1] >= values * (1 - 1e-12)).all())


def test_the_same_input_gives_the_same_beams_and_leading_axes_are_problems() -> None:
    channels = draw(12, 6, 4, seed=5)
    beams, values = max_min(channels)
    again, _ = max_min(channels)
    assert torch.equal(beams, again)
    folded, folded_values = max_min(channels.reshape(2, 3, 2, 6, 4))
    assert folded.shape == (2, 3, 2, 4)
    assert torch.equal(folded_values.reshape(-1), values)
    alone = torch.stack([max_min(channel)[1] for channel in channels])
    assert torch.allclose(alone, values, rtol=1e-6)
    assert max_min(channels[:0])[0].shape == (0, 4)


def test_scale_does_not_matter_and_single_precision_is_accepted() -> None:
    channels = draw(10, 8, 5, seed=6)
    values = max_min(channels)[1]
    for scale in (1e-60, 1e40):
        assert torch.allclose(max_min(scale * channels)[1] / scale**2, values, rtol=1e-9)
    beams, single = max_min(channels.to(torch.complex64))
    assert beams.dtype == torch.complex64
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), values, rtol=1e-4)


def test_clients_far_apart_in_strength() -> None:
    """Path loss spreads gains over many orders of magnitude; the weak clients then decide."""
    channels = PathLoss(exponent=4.0).draw((50, 15), 10, torch.Generator().manual_seed(2))
    values, bound = max_min(channels)[1], upper_bound(channels)
    assert (values / bound).mean().item() > 0.95
    assert bool((values >= sca(channels)[1] * (1 - 1e-9)).all())


def test_clients_in_the_same_place_count_as_one() -> None:
    channels = draw(5, 1, 4, seed=9).expand(5, 6, 4)
    assert torch.allclose(max_min(channels)[1], channels[:, 0].norm(dim=-1).square(), rtol=1e-6)


def test_a_client_without_a_channel_makes_every_beam_worth_nothing() -> None:
    channels = draw(2, 4, 3, seed=1)
    channels[0, 2] = 0
    beams, values = max_min(channels)
    assert values[0].item() == 0.0
    assert values[1].item() > 0.1
    assert bool(torch.isfinite(torch.view_as_real(beams)).all())
    beams, values = max_min(channels * 0)
    assert values.tolist() == [0.0, 0.0]
    assert torch.allclose(beams.norm(dim=-1), torch.ones(2, dtype=torch.float64))


def test_any_weights_certify_and_the_relaxation_closes_its_gap() -> None:
    channels = draw(30, 15, 10, seed=4)
    weights, matrix = relax(channels)
    bound = certify(channels, weights)
    # The matrix is feasible, so its value is below the bound; both meet.
    primal = torch.einsum("pim,pmk,pik->pi", channels.conj(), matrix, channels).real.amin(-1)
    assert bool((primal <= bound).all())
    assert torch.allclose(primal, bound, rtol=1e-5)
    assert torch.allclose(torch.einsum("pmm->p", matrix).real, torch.ones(30, dtype=torch.float64))
    assert bool((torch.linalg.eigvalsh(matrix) > -1e-12).all())
    even = torch.full_like(weights, 1 / 15)
    assert bool((certify(channels, even) >= bound * (1 - 1e-6)).all())


def test_what_cannot_be_a_problem_is_refused() -> None:
    channels = draw(2, 3, 4)
    with pytest.raises(UsageError, match="starts = 0"):
        max_min(channels, starts=0)
    with pytest.raises(UsageError, match="draws = 0"):
        sdr_randomised(channels, draws=0)
    with pytest.raises(UsageError, match="at most 4 antennas"):
        max_min(channels, include=torch.ones(2, 1, 5, dtype=torch.complex128))
    with pytest.raises(UsageError, match="not finite"):
        max_min(channels * float("nan"))
    with pytest.raises(UsageError, match="not finite"):
        upper_bound(channels * float("inf"))


def test_min_gain_by_hand() -> None:
    channels = torch.tensor([[1, 1j], [2, 0]], dtype=torch.complex128)
    beam = torch.tensor([1, 0], dtype=torch.complex128)
    assert min_gain(channels, beam).item() == 1.0
    # The first client with its own direction: ||h||^2 = 2.
    assert min_gain(channels[:1], channels[0] / 2**0.5).item() == pytest.approx(2.0)
