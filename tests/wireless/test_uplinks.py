"""Every uplink in real runs: what the records say, a user's own channel, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from uplink_cases import TRAINING, data, experiment, model

import histfl
from histfl.engines import ReferenceEngine
from histfl.errors import UsageError
from histfl.network import Network
from histfl.runs.execute import execute
from histfl.runs.loading import load_config
from histfl.runs.run import Run
from histfl.training import CellJob, CellResult

UPLINKS: dict[str, dict[str, Any]] = {
    "fdma": {"name": "fdma"},
    "tdma": {"name": "tdma"},
    "ideal": {"name": "ideal"},
    "aircomp": {"name": "aircomp"},
    "aircomp simulated": {"name": "aircomp", "signal": "simulated"},
    "aircomp literal": {"name": "aircomp", "paper_power": True, "normalise": False},
}


def train(network: Network, uplink: str | dict[str, Any], **settings: Any) -> Run:
    return histfl.train(
        model(),
        (data().inputs, data().targets),
        (data(30).inputs, data(30).targets),
        network=network,
        uplink=uplink,
        device="cpu",
        engine="reference",
        split="iid",
        **TRAINING | settings,
    )


@pytest.mark.parametrize("method", ["hist", "hfedavg"])
@pytest.mark.parametrize("name", UPLINKS)
def test_records_of_a_run(name: str, method: str) -> None:
    network = Network.uniform(3, clients=7)
    run = train(network, UPLINKS[name], method=method, sizes="uniform", targets=(0.01,))
    seconds = [record["latency"]["seconds"] for record in run.records]
    for record in run.records:
        latency = record["latency"]
        assert latency["seconds"] == max(latency["cell_seconds"]) > 0
        assert latency["cell_seconds"][latency["slowest_cell"]] == latency["seconds"]
        parts = latency["compute_seconds"] + latency["uplink_seconds"]
        assert parts == pytest.approx(latency["seconds"], rel=1e-12)
        assert (latency["uplink_seconds"] == 0) == (name == "ideal")
        assert (record["edge_error"] > 0) == name.startswith("aircomp")
    assert run.simulated_seconds == pytest.approx(np.cumsum(seconds), rel=1e-12)
    assert run.summary["simulated_seconds"] == pytest.approx(sum(seconds), rel=1e-12)
    assert run.summary["energy_joules"] > 0
    assert run.summary["to_target"]["0.01"]["simulated_seconds"] == seconds[0]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.model.parameters())


def test_orthogonal_uplinks_deliver_the_exact_mean() -> None:
    network = Network.uniform(3, clients=7)
    runs = [train(network, name) for name in ("ideal", "fdma", "tdma")]
    for other in runs[1:]:
        for one, two in zip(runs[0].model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(one, two)


def test_the_full_model_takes_longer_than_submodels_on_every_radio() -> None:
    network = Network.uniform(3, clients=9)
    for name in ("fdma", "tdma", "aircomp"):
        uplink = {
            "name": name,
            "bandwidth_hz": 45e3,
        }  # three sub-channels: even small models need many symbols
        hist, hfedavg = (train(network, uplink, method=method) for method in ("hist", "hfedavg"))
        assert hist.summary["simulated_seconds"] < hfedavg.summary["simulated_seconds"] / 2
        assert hist.summary["energy_joules"] < hfedavg.summary["energy_joules"]


def test_noise_falls_with_the_snr_until_the_ideal_run_is_left() -> None:
    """Distance of the trained model from the ideal one: a hundredth of the noise, a hundredth of it."""
    ideal = train(Network.uniform(2, 4), "ideal")
    distances = []
    for snr_db in (40.0, 80.0):
        run = train(Network.uniform(2, 4, snr_db=snr_db), "aircomp")
        pairs = zip(run.model.parameters(), ideal.model.parameters(), strict=True)
        distances.append(sum((a - b).square().sum().item() for a, b in pairs) ** 0.5)
    assert distances[1] == pytest.approx(distances[0] / 100, rel=0.1)


@pytest.mark.parametrize("name", UPLINKS)
def test_lost_updates_and_silent_edge_rounds(name: str) -> None:
    network = Network.uniform(2, 2)
    some = train(network, UPLINKS[name], dropout=0.7)
    lost = [record["updates_lost"] for record in some.records]
    assert 0 < sum(lost) < sum(record["updates_sent"] for record in some.records)
    everything = train(network, UPLINKS[name], dropout=1.0)
    for one, two in zip(everything.model.parameters(), model().parameters(), strict=True):
        assert torch.equal(one, two)
    assert all(record["edge_error"] == 0 for record in everything.records)
    # Nobody is heard, but everybody has sent.
    assert everything.summary["simulated_seconds"] == pytest.approx(
        train(network, UPLINKS[name]).summary["simulated_seconds"], rel=1e-12
    )


def test_optimised_sizes_and_partial_participation_over_the_air() -> None:
    network = Network.paper(2, 6, np.random.default_rng(1))
    run = train(network, "aircomp", sizes="optimised", participants=2)
    assert run.records[-1]["updates_sent"] == 2 * 2 * TRAINING["edge_rounds"]
    assert run.records[-1]["latency"]["predicted_seconds"] == pytest.approx(
        run.records[-1]["latency"]["seconds"], rel=1e-9
    )


class PicklingEngine:
    """Runs a copy of every job that has been through pickle, as another process would."""

    name = "pickling"

    def run(self, jobs: Sequence[CellJob]) -> Sequence[CellResult]:
        return ReferenceEngine().run(pickle.loads(pickle.dumps(list(jobs))))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", UPLINKS)
def test_jobs_survive_pickling(name: str) -> None:
    plain = experiment(Network.uniform(2, 3), uplink=UPLINKS[name])
    pickled = replace(experiment(Network.uniform(2, 3), uplink=UPLINKS[name]), engine=PicklingEngine())
    pairs = zip(execute(plain).model.parameters(), execute(pickled).model.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


OWN_CHANNELS = """
import math
import torch
from dataclasses import dataclass

@dataclass(frozen=True)
class Constant:
    value: complex = 2.0

    def draw(self, clients, antennas, generator, dtype):
        return torch.full((clients, antennas), self.value, dtype=dtype)

class Transposed:
    def draw(self, clients, antennas, generator, dtype=torch.complex128):
        return torch.ones(antennas, clients, dtype=dtype)

class Real:
    def draw(self, clients, antennas, generator, dtype=torch.complex128):
        return torch.ones(clients, antennas)

class Failing:
    def draw(self, clients, antennas, generator, dtype=torch.complex128):
        raise KeyError("no antenna is connected")

def broken():
    return Constant(complex(math.nan, 0))

def no_channel():
    return 3
"""


@pytest.fixture
def own_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_channels.py").write_text(OWN_CHANNELS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_channels"


def test_a_users_own_channel(own_channels: str) -> None:
    """A gain of 4 x 3 antennas and an SNR of 0 dB: log2(13) bits a symbol, half of the band for each of two."""
    network = Network.uniform(2, 2, snr_db=0.0)
    uplink = {
        "name": "fdma",
        "channel": f"{own_channels}:Constant",
        "antennas": 3,
        "bits_per_parameter": 32.0,
    }
    record = train(network, uplink, method="hfedavg").records[0]
    parameters = record["submodel_parameters"][0]
    seconds = 2 * 32 * parameters / (5e6 * np.log2(13))
    assert record["latency"]["uplink_seconds"] == pytest.approx(seconds, rel=1e-12)
    assert train(network, {**uplink, "name": "aircomp"}).records[0]["edge_error"] > 0


@pytest.mark.parametrize("name", ["fdma", "aircomp"])
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("broken", r"channel Constant: channel .*nan.* at \(0, 0\)"),
        ("Transposed", r"channel Transposed drew \(10, 2\); .*here \(2, 10\)"),
        ("Real", "channel Real: channels are torch.float32; they must be complex"),
        ("Failing", "channel Failing cannot be drawn: KeyError: .no antenna is connected"),
        ("no_channel", "has no draw method"),
        ("missing", "missing"),
    ],
)
def test_a_users_channel_that_is_wrong_is_one_clear_line(
    own_channels: str, name: str, factory: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        train(Network.uniform(2, 2), {"name": name, "channel": f"{own_channels}:{factory}"})
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("name", ["fdma", "aircomp"])
def test_channels_by_their_names_in_the_configuration(name: str) -> None:
    network = Network.uniform(2, 3)
    seconds, errors = [], []
    for channel in (
        {"channel": "rayleigh"},
        {"channel": "rician"},
        {"channel": "rician", "k_factor_db": 60.0},
        {"channel": "path-loss"},
    ):
        record = train(network, {"name": name, "bits_per_parameter": 32.0, **channel}).records[0]
        seconds.append(record["latency"]["uplink_seconds"])
        errors.append(record["edge_error"])
    if name == "fdma":
        assert len(set(seconds)) == 4
        # Hardly any fading: every client has a gain of 10 antennas.
        parameters = train(network, "fdma").records[0]["submodel_parameters"][0]
        assert seconds[2] == pytest.approx(2 * 32 * parameters / (10e6 / 3 * np.log2(1 + 1e4)), rel=1e-3)
    else:
        assert len(set(seconds)) == 1
        assert len(set(errors)) == 4


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("uplink.bandwidth_hz=0", r"uplink\.bandwidth_hz = 0"),
        ("uplink.bandwidth_hz=-1e6", r"uplink\.bandwidth_hz"),
        ("uplink.bandwidth_hz=nan", r"uplink\.bandwidth_hz"),
        ("uplink.antennas=0", r"uplink\.antennas = 0"),
        ("uplink.name=satellite", r"uplink\.name = 'satellite'"),
        ("uplink.signal=smoke", r"uplink\.signal = 'smoke'"),
        ("uplink.bandwith_hz=1e6", "did you mean 'bandwidth_hz'"),
        ("uplink.k_factor_db=inf", r"uplink\.k_factor_db"),
    ],
)
def test_settings_that_cannot_be_are_one_clear_line(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        load_config("mlp", [setting])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("channel", "message"),
    [("rayleig", "did you mean 'rayleigh'"), ("fog", "unknown channel 'fog'.*rayleigh.*rician.*path-loss")],
)
def test_an_unknown_channel_names_the_known_ones(channel: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        train(Network.uniform(2, 2), {"name": "fdma", "channel": channel})
    assert "\n" not in str(raised.value)
