"""Hundreds of generated command lines: results or one line, never a traceback."""

import resource
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from commands import SMALL, Answer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from histfl.data import SPLITS
from histfl.runs.config import Config
from histfl.training.cloud import CLOUD_STEPS
from histfl.training.methods import METHODS
from histfl.wireless.uplinks import UPLINKS

KEYS = [
    f"{section}.{key}"
    for section, field in Config.model_fields.items()
    for key in getattr(field.annotation, "model_fields", {})
]
ODD = (
    *("nan", "inf", "-inf", "0.0", "-0.5", "1.5", "1e-300", "1e300", "true", "false", '""', "[]", "{}", "-1"),
    *("'all'", "'ist'", "'aircomp'", "'optimised'", "'dirichlet'", "'paper'", "'lenet5'", "1979-05-27"),
    *("[0.25, 0.25, 0.25, 0.25]", "[1, 2]", "'fc*'", "['fc*']", "3", "12"),
)
# Values that a run takes, ends of ranges among them; what makes a run long is kept small.
FITTING = {
    "data.test_samples": ("1", "50"),
    "data.cell_concentration": ("1e-30", "0.1", "1e30"),
    "data.client_concentration": ("1e-30", "1.0", "1e30"),
    "model.name": ("mlp", "lenet5"),
    "model.hidden": ("[16, 8]", "5"),
    "model.dropout": ("0.5",),
    "network.cells": ("1", "2", "3", "8"),
    "network.clients": ("8", "9", "12"),
    "network.active_cells": ("1", "2", "[0]", "[1, 3]", "all"),
    "network.participants": ("1", "2", "all"),
    "network.dropout": ("0.0", "0.3", "1.0"),
    "network.profile": ("uniform", "paper"),
    "network.snr_db": ("-300", "0", "300"),
    "network.cpu_hz": ("1.0", "1e9"),
    "network.transmit_power_w": ("1e-30", "1.0"),
    "training.edge_rounds": ("1", "2"),
    "training.local_steps": ("1", "3"),
    "training.batch_size": ("1", "7"),
    "training.learning_rate": ("0.001", "0.1", "100.0"),
    "training.momentum": ("0.9",),
    "training.weight_decay": ("0.01",),
    "training.clip_norm": ("0.1",),
    "training.targets": ("[]", "[0.1]"),
    "training.stop_at_targets": ("true",),
    "training.seed": ("0", "7"),
    "training.weights": ("uniform", "samples"),
    "cloud.name": tuple(CLOUD_STEPS),
    "privacy.clip": ("1e-30", "0.1"),
    "method.sizes": ("uniform", "optimised", "proportional", "[1, 2, 3, 4]"),
    "method.cap": ("1.0", "1.2", "4"),
    "method.shared": ("0.0", "0.3", "1.0"),
    "method.include": ("['fc1']", "['*']"),
    "method.exclude": ("['output']",),
    "uplink.bandwidth_hz": ("1e-30", "2e4", "1e30"),
    "uplink.antennas": ("1", "3"),
    "uplink.bits_per_parameter": ("1.0", "8.0"),
    "uplink.channel": ("rayleigh", "rician", "path-loss"),
    "uplink.k_factor_db": ("-300", "0", "300"),
    "uplink.double_count_clients": ("true",),
    "uplink.noise_scales_with_band": ("true",),
    "uplink.paper_power": ("true",),
    "uplink.normalise": ("false",),
    "theory.every": ("1", "2"),
}
FITTING |= {
    "data.split": tuple(SPLITS),
    "data.augment": ("none", "crop-flip"),
    "method.name": tuple(METHODS),
    "method.roll": ("1", "1000000000"),
    "method.apart": ("true",),
    "method.scale": ("0.0", "0.5", "10.0"),
    "uplink.name": tuple(UPLINKS),
    "uplink.signal": ("equivalent", "simulated"),
}


def of(key: str) -> st.SearchStrategy[str]:
    return st.sampled_from(FITTING[key]).map(lambda value: f"{key}={value}")


fitting = st.sampled_from(sorted(FITTING)).flatmap(of)
odd = st.tuples(st.sampled_from(KEYS), st.one_of(st.sampled_from(ODD), st.text(max_size=8))).map("=".join)
LONG = ("training.rounds",)  # of which any number may be right: each round is kept
huge = st.tuples(
    st.sampled_from([key for key in (*KEYS, "model.hidden") if key not in LONG]),
    st.sampled_from(("1000000000", "9223372036854775807")),
).map("=".join)


def generated(number: int) -> settings:
    health = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=number, deadline=None, derandomize=True, suppress_health_check=health)


def short_and_full(short: int, full: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("number", [short, pytest.param(full, marks=pytest.mark.exhaustive)])


@short_and_full(100, 400)
def test_odd_values(histfl_command: Callable[..., Answer], some_memory: None, number: int) -> None:
    @generated(number)
    @given(changes=st.lists(odd, min_size=1, max_size=3))
    def check(changes: list[str]) -> None:
        never_a_traceback(histfl_command, changes)

    check()


@short_and_full(25, 200)
def test_huge_values_take_no_memory(
    histfl_command: Callable[..., Answer], some_memory: None, number: int
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @generated(number)
    @given(changes=st.lists(huge, min_size=1, max_size=3))
    def check(changes: list[str]) -> None:
        never_a_traceback(histfl_command, changes)

    check()
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kilobytes < 10**6


@short_and_full(60, 300)
def test_values_that_runs_take(histfl_command: Callable[..., Answer], number: int) -> None:
    codes = []

    @generated(number)
    @given(changes=st.lists(fitting, min_size=2, max_size=6, unique_by=lambda each: each.partition("=")[0]))
    def check(changes: list[str]) -> None:
        codes.append(never_a_traceback(histfl_command, changes))

    check()
    assert codes.count(0) > len(codes) / 2  # most are runs, not refusals


FAST = [*SMALL, "--set", "training.rounds=1", "--set", "data.test_samples=50"]


def never_a_traceback(histfl_command: Callable[..., Answer], changes: list[str]) -> int:
    """The exit code."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        flags = [flag for change in changes for flag in ("--set", change)]
        answer = histfl_command("run", *FAST, *flags, "--out", out, "--json")
        if answer.code == 0:
            assert answer.json["rounds"] >= 1
            return 0
        assert answer.code in (1, 2)
        assert answer.err.startswith("histfl: ") or "\nhistfl: " in answer.err
        assert answer.out == ""
        assert not (out / "summary.json").exists()
        if answer.code == 1:
            assert "diverged" in answer.err
        return answer.code
