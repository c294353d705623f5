"""Client-level privacy: what one client can change is bounded, the noise is as large as it is said to be, and epsilon
is the accountant's."""

from __future__ import annotations

import builtins
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import SMALL
from scipy.stats import norm
from small_training import INPUTS, TARGETS, experiment, outcomes, resumed, train
from torch import nn

from histfl.engines import ReferenceEngine, VectorisedEngine
from histfl.errors import UsageError
from histfl.network import Network
from histfl.runs.privacy import Promise, promise
from histfl.seeds import random_normal
from histfl.training import CellJob
from histfl.training.codecs import CODECS, Quantise
from histfl.training.privacy import Privacy

dp = pytest.importorskip("dp_accounting")
from dp_accounting.rdp import RdpAccountant  # noqa: E402

NOISY = {"clip": 0.3, "noise_multiplier": 0.5}


def accounted(event: Any, releases: int, delta: float) -> float:
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event, releases)
    return float(accountant.get_epsilon(delta))


def exact_delta(epsilon: float, noise_multiplier: float, releases: int) -> float:
    """Of composed Gaussian mechanisms (Balle and Wang, arXiv 1805.06530, Theorem 8), whose sum moves by two clips."""
    mu = 2 * math.sqrt(releases) / noise_multiplier
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("noise_multiplier", "releases"), [(8.0, 20), (20.0, 300), (4.0, 1)])
def test_epsilon_is_the_accountants_and_holds(noise_multiplier: float, releases: int) -> None:
    made = Promise(noise_multiplier, 1e-5, releases, clients=15, sampled=15)
    assert made.epsilon == accounted(dp.GaussianDpEvent(noise_multiplier / 2), releases, 1e-5)
    assert exact_delta(made.epsilon, noise_multiplier, releases) <= 1e-5
    assert exact_delta(0.8 * made.epsilon, noise_multiplier, releases) > 1e-5  # and it is no loose bound


def test_drawn_clients_are_hidden_better() -> None:
    made = Promise(4.0, 1e-5, 100, clients=50, sampled=5)
    event = dp.SampledWithoutReplacementDpEvent(50, 5, dp.GaussianDpEvent(2.0))
    assert made.epsilon == accounted(event, 100, 1e-5)
    assert made.epsilon < Promise(4.0, 1e-5, 100, clients=50, sampled=50).epsilon / 3
    assert "5 of 50 clients in each" in made.sentence
    little = [Promise(0.01, 1e-5, 100, clients=50, sampled=sampled).epsilon for sampled in (5, 50)]
    assert little[0] == little[1]
    assert Promise(1e-9, 1e-5, 100, clients=50, sampled=5).epsilon is None


def test_numbers_of_the_normal_distribution() -> None:
    """Mean, variance, kurtosis and tails of 200,000 within five standard errors; other keys give other ones."""
    points = torch.arange(200_000)
    found = random_normal(3, points).numpy()
    root = math.sqrt(len(found))
    assert abs(found.mean()) < 5 / root
    assert abs(found.var() - 1) < 5 * math.sqrt(2) / root
    assert abs((found**4).mean() - 3) < 5 * math.sqrt(96) / root
    for limit in (0.5, 1.5, 3.0):
        share = norm.cdf(-limit)
        assert abs((found > limit).mean() - share) < 5 * math.sqrt(share) / root
    assert not np.array_equal(found[:5], random_normal(4, points[:5]).numpy())
    assert torch.equal(random_normal(3, points[7:9]), torch.from_numpy(found[7:9]))


def test_updates_are_clipped_over_all_tensors() -> None:
    start = {"w": torch.ones(2, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
    finals = {
        "w": torch.tensor([[4.0, 1.0], [1.1, 1.0]], dtype=torch.float64),
        "b": torch.tensor([[4.0], [0.0]], dtype=torch.float64),
    }
    found = Privacy(0.5).clipped(start, finals)
    assert found["w"][0].tolist() == pytest.approx([1 + 3 / 10, 1.0], rel=1e-6)
    assert found["b"][0].tolist() == pytest.approx([4 / 10], rel=1e-6)
    assert math.hypot(found["w"][0, 0] - 1, found["b"][0, 0]) <= 0.5
    assert found["w"][1].tolist() == [1.1, 1.0]


@pytest.mark.parametrize("clients", [1, 4])
def test_the_mean_has_the_noise_that_is_said(clients: int) -> None:
    """z C / n in every entry, added at the edge or by the clients, within five standard errors."""
    start = {"w": torch.zeros(40_000, dtype=torch.float64), "b": torch.zeros(3, dtype=torch.float64)}
    privacy = Privacy(0.2, 3.0)
    finals = {name: tensor.expand(clients, *tensor.shape) for name, tensor in start.items()}
    sent = privacy.sent(start, finals, np.arange(10, 10 + clients), 5, clients)
    means = {"client": sent["w"].mean(dim=0), "edge": privacy.averaged(start, 5, clients)["w"]}
    for mean in means.values():
        assert abs(float(mean.std()) * clients / 0.6 - 1) < 5 / math.sqrt(2 * 40_000)
    if clients > 1:
        assert not torch.equal(sent["w"][0], sent["w"][1])


@pytest.mark.parametrize(("where", "lost"), [("edge", 0.3), ("client", 0.0)])
def test_an_edge_round_of_a_run_has_the_noise_that_is_said(where: str, lost: float) -> None:
    """z C / n between the edge's models with noise and without, n being the clients that arrive, within five standard
    errors; and every cell has noise of its own."""
    torch.manual_seed(1)
    wide = nn.Sequential(nn.Linear(8, 2000), nn.ReLU(), nn.Linear(2000, 3)).double()
    ends = {}
    for z in (0.0, 0.5):
        run = experiment(
            given={"model": wide},
            privacy={"clip": 0.3, "noise_multiplier": z, "where": where},
            method={"name": "hfedavg"},
            training={"edge_rounds": 1},
            network={"cells": 3, "clients": 7, "dropout": lost},
        )
        start = {name: tensor.detach() for name, tensor in run.model.named_parameters()}
        schedules = run.hist.participation.schedules(run.hist.network, 1, 0, run.hist.task.seeds)
        links = run.hist.task.uplink.draw(run.hist.network, schedules, 0, run.hist.task.seeds)
        jobs = [
            CellJob(run.hist.task, run.hist.network.cell(each.cell), 0, start, {}, each, link)
            for each, link in zip(schedules, links, strict=True)
        ]
        ends[z] = [result.state["0.weight"] for result in ReferenceEngine().run(jobs)]
    noises = [noisy - clean for noisy, clean in zip(ends[0.5], ends[0.0], strict=True)]
    heard = [len(schedule.arrived[0]) for schedule in schedules]
    assert min(heard) >= 1
    assert lost == 0 or heard != [3, 2, 2]
    for noise, n in zip(noises, heard, strict=True):
        assert abs(float(noise.std()) * n / (0.5 * 0.3) - 1) < 5 / math.sqrt(2 * noise.numel())
    assert abs(float(torch.corrcoef(torch.stack([noise.flatten() for noise in noises[:2]]))[0, 1])) < 0.04


def test_one_client_moves_the_edge_by_two_clips_at_most() -> None:
    """Whatever its data are; its neighbours' are the same."""
    people = Network.uniform(cells=1, clients=4)
    sections: dict[str, Any] = {
        "method": {"name": "hfedavg"},
        "privacy": {"clip": 0.02},
        "training": {"edge_rounds": 1, "learning_rate": 2.0},
        "data": {"split": "given"},
        "network": {"cells": 1, "clients": 4},
    }
    holdings = [[*range(first, first + 10)] for first in range(0, 40, 10)]
    ends = []
    for change in (False, True):
        run = experiment(people, holdings, **sections)
        if change:
            run.hist.task.data.inputs[10:20] *= -100.0
        ends.append(outcomes(run, ReferenceEngine(), rounds=1)[0].state)
    moved = math.sqrt(sum(float((ends[0][name] - ends[1][name]).square().sum()) for name in ends[0]))
    assert 0.2 * 2 * 0.02 / 4 < moved <= 2 * 0.02 / 4


@pytest.mark.parametrize(
    ("where", "codec"), [("client", "plain"), *(("edge", codec) for codec in CODECS)], ids=str
)
def test_engines_agree(where: str, codec: str) -> None:
    dropout = 0.3 if where == "edge" else 0.0
    sections: dict[str, Any] = {
        "codec": {"name": codec},
        "network": {"cells": 3, "clients": 7, "dropout": dropout, "participants": 2},
    }
    run = experiment(privacy={**NOISY, "where": where}, **sections)
    expected = outcomes(run, ReferenceEngine())
    for right, found in zip(expected, outcomes(run, VectorisedEngine()), strict=True):
        for name, value in right.state.items():
            torch.testing.assert_close(found.state[name], value, rtol=1e-9, atol=1e-9)
    clipped = outcomes(experiment(privacy={"clip": 0.3}, **sections), ReferenceEngine())
    assert not torch.allclose(clipped[0].state["0.weight"], expected[0].state["0.weight"], atol=1e-3)


def test_runs_resume_bit_by_bit(tmp_path: Path) -> None:
    whole, pieces = resumed(tmp_path, privacy=NOISY)
    assert whole == pieces


def test_a_run_states_what_it_promised(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run = train(rounds=2, edge_rounds=3, privacy={**NOISY, "delta": 0.001})
    stated = run.summary["privacy"]
    assert stated["epsilon"] == accounted(dp.GaussianDpEvent(0.25), 6, 0.001)
    assert stated["releases"] == 6
    assert stated["sentence"] in caplog.text  # beforehand
    assert "privacy" not in train().summary
    clipped = train(privacy={"clip": 1.0}).summary["privacy"]
    assert clipped["epsilon"] is None
    assert "promises nothing" in clipped["sentence"]


def test_a_client_answers_for_the_rounds_of_its_cell() -> None:
    """Of a run that took cells 0 and 1, then 1 and 2: cell 1's clients have two rounds."""
    run = experiment(privacy=NOISY, network={"cells": 3, "clients": 7, "active_cells": 2, "participants": 1})
    records: list[dict[str, Any]] = [{"active_cells": [0, 1]}, {"active_cells": [1, 2]}]
    made = promise(run.config, run.hist, records)
    assert made == Promise(0.5, 1e-5, releases=2 * 2, clients=2, sampled=1)
    everyone = promise(run.config, run.hist, [{"active_cells": None}] * 3)
    assert everyone is not None
    assert everyone.releases == 6


@pytest.mark.parametrize(
    ("sections", "sampled"),
    [
        ({"codec": {"name": "quantise"}, "method": {"sizes": [0.5, 0.25, 0.25]}}, 1),
        ({"method": {"name": "hfedavg", "sizes": "optimised"}}, 1),
        ({"codec": {"name": "top-k"}}, 2),
        ({"training": {"correction": "mtgc"}}, 2),
        ({"method": {"sizes": "optimised"}, "uplink": {"name": "fdma"}}, 2),
        ({"method": {"sizes": "proportional"}, "uplink": {"name": "fdma"}}, 2),
        ({"uplink": {"name": "aircomp", "normalise": False}}, 2),
    ],
    ids=str,
)
def test_who_was_drawn_is_a_secret_that_some_settings_tell(sections: dict[str, Any], sampled: int) -> None:
    run = experiment(privacy=NOISY, network={"cells": 3, "clients": 7, "participants": 1}, **sections)
    made = promise(run.config, run.hist, [{"active_cells": None}] * 2)
    assert made == Promise(0.5, 1e-5, 4, clients=2, sampled=sampled)


def test_from_the_command_line(histfl_command: Any, tmp_path: Path) -> None:
    chosen = (
        "--set",
        "privacy.clip=1.0",
        "--set",
        "privacy.noise_multiplier=0.2",
        "--set",
        "training.rounds=1",
    )
    answer = histfl_command("run", *SMALL, *chosen, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert answer.err.count("privacy: epsilon") >= 1
    assert histfl_command("report", tmp_path / "run").code == 0
    assert "privacy: epsilon" in (tmp_path / "run" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"privacy": {"noise_multiplier": 1.0}}, "noise_multiplier = 1 without clip"),
        ({"privacy": {"clip": 0.0}}, "privacy.clip = 0.0"),
        ({"privacy": {"clip": -1.0}}, "privacy.clip = -1.0"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": -0.5}}, "privacy.noise_multiplier = -0.5"),
        ({"privacy": {"clip": 1.0, "delta": 0.0}}, "privacy.delta = 0.0"),
        ({"privacy": {"clip": 1.0, "delta": 1.0}}, "privacy.delta = 1.0"),
        ({"privacy": {"clip": 1.0, "where": "cloud"}}, "privacy.where = 'cloud'"),
        ({"privacy": {"clip": 1.0, "noise": 1.0}}, "unknown key 'privacy.noise'"),
        ({"privacy": 1.0}, "give a table of the section [privacy]"),
        ({"privacy": {"clip": 1.0}, "weights": "samples"}, "use uniform"),
        ({"privacy": {"clip": 1.0, "where": "client"}, "dropout": 0.1}, "use where = 'edge'"),
        (
            {"privacy": {"clip": 1.0, "where": "client"}, "codec": "top-k"},
            "privacy.where = 'client' and codec.name = 'top-k': what the codec makes of single updates",
        ),
        (
            {"privacy": {"clip": 1.0, "where": "client"}, "codec": Quantise()},
            "leave out the codec, or use where = 'edge'",
        ),
        ({"privacy": {"clip": 1.0}, "uplink": "aircomp"}, "set uplink.normalise = false"),
        ({"privacy": {"clip": 1.0}, "theory_every": 1}, "theory.every above 0"),
    ],
    ids=str,
)
def test_a_bad_choice_is_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        train(**settings)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_batch_statistics_tell_of_the_data() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(UsageError, match="BatchNorm"):
        train(model, privacy={"clip": 1.0})


def test_over_the_air_without_normalised_signals() -> None:
    run = train((None), (INPUTS, TARGETS), privacy=NOISY, uplink={"name": "aircomp", "normalise": False})
    assert run.summary["privacy"]["epsilon"] > 0


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *others: Any, **more: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"pip install 'histfl\[privacy\]'"):
        train(privacy=NOISY)
    assert train(privacy={"clip": 1.0}).summary["privacy"]["epsilon"] is None
