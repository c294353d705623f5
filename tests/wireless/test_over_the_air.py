"""AirComp as an uplink: the mean, its noise and the power, through `OverTheAir` itself."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from uplink_cases import (
    LEARNING_RATE,
    SEEDS,
    TRAINING,
    experiment,
    flat,
    in_chunks,
    networks,
    schedules,
    states,
    uplink,
)

from histfl.engines import choose_engine
from histfl.errors import UsageError
from histfl.network import Network
from histfl.runs.execute import execute
from histfl.training import hist
from histfl.training.optimisers import SGD
from histfl.wireless import PathLoss, max_min
from histfl.wireless.aircomp import Link, power_factor, precode
from histfl.wireless.beamforming_sca import min_gain

ENTRIES = 120_000
SWITCHES = [
    {"simulated": simulated, "paper_power": paper_power, "normalise": normalise}
    for simulated in (False, True)
    for paper_power in (False, True)
    for normalise in (False, True)
]


def aggregate(
    clients: int, entries: int, *, chunk: int | None = None, seed: int = 0, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, float, Any]:
    """One edge round at 5 dB: the model's error against the exact mean, the updates, the error it states."""
    radio = uplink("aircomp", antennas=4, **options)
    network = Network.uniform(1, clients, snr_db=5.0)
    link = radio.draw(network, schedules(network), seed, SEEDS)[0]
    start, finals = states(clients, entries, seed)
    state, stated = radio.aggregate(start, in_chunks(finals, chunk or clients), link, 0, LEARNING_RATE)
    exact = {name: tensor.mean(0) for name, tensor in finals.items()}
    updates = torch.stack([flat(start) - flat(one) for one in in_rows(finals)]) / LEARNING_RATE
    return flat(state) - flat(exact), updates, stated.item(), link


def in_rows(finals: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{name: tensor[i] for name, tensor in finals.items()} for i in range(len(finals["bias"]))]


@settings(deadline=None, max_examples=30)
@given(
    clients=st.integers(1, 9),
    chunk=st.integers(1, 9),
    entries=st.integers(5, 40),
    seed=st.integers(0, 1000),
    switches=st.sampled_from(SWITCHES),
)
def test_without_noise_the_edge_has_the_mean_in_chunks_of_any_size(
    clients: int, chunk: int, entries: int, seed: int, switches: dict[str, bool]
) -> None:
    error, _, stated, _ = aggregate(clients, entries, chunk=chunk, seed=seed, noiseless=True, **switches)
    assert error.abs().max().item() < 1e-13
    assert stated < 1e-22
    if not switches["simulated"]:
        assert stated == 0.0


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_both_signal_paths_have_the_formulas_mean_and_variance(switches: dict[str, bool]) -> None:
    clients = 6
    error, updates, stated, link = aggregate(clients, ENTRIES, chunk=4, **switches)
    error = error / 0.1  # of the mean update, which the edge multiplies by the learning rate
    weakest = (link.channels[0] @ link.beams[0].conj()).abs().square().min().item()
    formula = 1 / (2 * weakest)  # power and noise are 1; the SNR is in the channels
    if not switches["paper_power"]:
        formula /= clients**2
    if switches["normalise"]:
        formula *= updates.square().mean().item()
    assert error.square().mean().item() == pytest.approx(formula, rel=0.02)
    assert stated == pytest.approx(error.square().mean().item(), rel=1e-9)
    assert abs(error.mean().item()) < 5 * math.sqrt(formula / ENTRIES)
    # White: the noise of neighbouring entries is uncorrelated.
    assert abs((error[1:] * error[:-1]).mean().item()) < 5 * formula / math.sqrt(ENTRIES)


def test_every_edge_round_has_its_own_noise_and_the_same_again_when_repeated() -> None:
    network = Network.uniform(2, 3, snr_db=0.0)
    start, finals = states(3, 50)
    for simulated in (False, True):
        radio = uplink("aircomp", simulated=simulated)
        links = radio.draw(network, schedules(network), 0, SEEDS)
        later = radio.draw(network, schedules(network), 1, SEEDS)
        results = [
            flat(radio.aggregate(start, [finals], link, edge_round, LEARNING_RATE)[0])
            for link in (*links, *later)
            for edge_round in (0, 1)
        ]
        assert len({tuple(result.tolist()) for result in results}) == len(results)
        again = flat(radio.aggregate(start, in_chunks(finals, 3), links[0], 0, LEARNING_RATE)[0])
        assert torch.equal(again, results[0])


@settings(deadline=None, max_examples=8)
@given(network=networks(), paper_power=st.booleans(), seed=st.integers(0, 1000))
def test_no_client_exceeds_its_power_in_any_draw(network: Network, paper_power: bool, seed: int) -> None:
    radio = uplink("aircomp", antennas=3, paper_power=paper_power)
    for link in radio.draw(network, schedules(network), seed, SEEDS):
        for channels, beam in zip(link.channels, link.beams, strict=True):
            factor = power_factor(channels, beam, Link(1.0, 1.0, paper_power))
            power = precode(channels, beam, factor).abs().square()
            assert bool((power <= 1 + 1e-12).all())
            if not paper_power:
                assert power.max().item() == pytest.approx(1.0, rel=1e-9)


def test_beams_are_the_max_min_beams_of_the_clients_that_are_heard() -> None:
    network = Network.uniform(3, clients=14, snr_db=10.0)
    plans = schedules(network, per_cell=4, dropout=0.3, edge_rounds=3)
    links = uplink("aircomp", antennas=5).draw(network, plans, 0, SEEDS)
    for plan, link in zip(plans, links, strict=True):
        for arrived, channels, beam in zip(plan.arrived, link.channels, link.beams, strict=True):
            assert channels.shape == (len(arrived), 5)
            assert min_gain(channels, beam).item() == pytest.approx(max_min(channels)[1].item(), rel=1e-6)


def test_stronger_clients_are_heard_with_less_noise() -> None:
    """10 dB more power: a tenth of the error, on the same channels."""
    start, finals = states(4, 20_000)
    errors = []
    for snr_db in (0.0, 10.0):
        network = Network.uniform(1, 4, snr_db=snr_db)
        radio = uplink("aircomp")
        link = radio.draw(network, schedules(network), 0, SEEDS)[0]
        errors.append(radio.aggregate(start, [finals], link, 0, LEARNING_RATE)[1].item())
    assert errors[0] / errors[1] == pytest.approx(10.0, rel=1e-6)


def test_where_nobody_is_heard_there_is_no_beam_and_nothing_to_aggregate() -> None:
    network = Network.uniform(2, 2)
    plans = schedules(network, dropout=0.7, edge_rounds=6)
    links = uplink("aircomp").draw(network, plans, 0, SEEDS)
    silent = [(c, e) for c, plan in enumerate(plans) for e, who in enumerate(plan.arrived) if len(who) == 0]
    assert silent, "the seed must give an edge round without any client"
    for cell, edge_round in silent:
        assert links[cell].channels[edge_round] is None
        assert links[cell].beams[edge_round] is None
        with pytest.raises(ValueError, match="no client to hear"):
            uplink("aircomp").aggregate({"w": torch.zeros(1)}, [], links[cell], edge_round, LEARNING_RATE)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("signal", ["equivalent", "simulated"])
def test_a_noiseless_run_is_the_ideal_run(signal: str, normalise: bool) -> None:
    """Uneven cells, two clients of each sampled, some of them lost: everywhere the mean."""
    network = Network.uniform(3, clients=7)
    sampling = {"cells": 3, "clients": 7, "participants": 2, "dropout": 0.4}
    ideal = experiment(network, network=sampling, uplink={"name": "ideal"})
    air = experiment(
        network, network=sampling, uplink={"name": "aircomp", "signal": signal, "normalise": normalise}
    )
    task = replace(air.hist.task, uplink=replace(air.hist.task.uplink, noiseless=True))
    air = replace(air, hist=replace(air.hist, task=task))
    expected, got = execute(ideal), execute(air)
    assert any(record["updates_lost"] for record in got.records)
    assert all(record["edge_error"] < 1e-22 for record in got.records)
    for one, other in zip(expected.model.parameters(), got.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_links_survive_pickling() -> None:
    network = Network.uniform(2, 3)
    radio = uplink("aircomp", channel=PathLoss())
    link = radio.draw(network, schedules(network), 0, SEEDS)[1]
    start, finals = states(3, 20)
    copied_radio, copied_link = pickle.loads(pickle.dumps((radio, link)))
    assert torch.equal(
        flat(copied_radio.aggregate(start, [finals], copied_link, 1, LEARNING_RATE)[0]),
        flat(radio.aggregate(start, [finals], link, 1, LEARNING_RATE)[0]),
    )


def test_what_cannot_be_sent_is_refused_before_anybody_trains() -> None:
    with pytest.raises(UsageError, match="narrower than one sub-channel"):
        uplink("aircomp", bandwidth_hz=14e3)
    with pytest.raises(UsageError, match="symbol_s = 0"):
        uplink("aircomp", symbol_s=0.0)


def test_the_noise_of_updates_that_are_not_normalised_goes_with_the_rate_of_the_steps() -> None:
    radio = uplink("aircomp", normalise=False)
    network = Network.uniform(1, 3, snr_db=0.0)
    link = radio.draw(network, schedules(network), 0, SEEDS)[0]
    start, finals = states(3, 50)
    exact = flat({name: tensor.mean(0) for name, tensor in finals.items()})
    small, large = (flat(radio.aggregate(start, [finals], link, 0, rate)[0]) - exact for rate in (0.1, 0.4))
    assert torch.allclose(large, 4 * small, rtol=1e-9)


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_the_air_takes_the_rate_of_the_clients_wherever_it_is_set(engine: str) -> None:
    """A run whose clients are given another rate after it was built is the run that was built with it."""
    network = Network.uniform(2, clients=6, snr_db=0.0)
    air = {"name": "aircomp", "normalise": False}
    models = []
    for built, wanted in ((0.3, 0.3), (0.1, 0.3)):
        made = experiment(network, uplink=air, training=TRAINING | {"learning_rate": built})
        local = replace(made.hist.task.local, optimiser=SGD(learning_rate=wanted))
        task = replace(made.hist.task, local=local)
        state = {name: tensor.detach().clone() for name, tensor in made.model.named_parameters()}
        rounds = hist(
            replace(made.hist, task=task), state, choose_engine(engine, task), first_round=0, rounds=2
        )
        models.append(flat([*rounds][-1].state))
    assert torch.equal(*models)
