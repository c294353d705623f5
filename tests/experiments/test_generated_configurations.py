"""Hundreds of generated command lines: results or one line, never a traceback."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from conftest import SMALL, Answer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from histfl.experiments.config import Config

KEYS = [
    f"{section}.{key}"
    for section, field in Config.model_fields.items()
    for key in getattr(field.annotation, "model_fields", {})
]
ODD = st.one_of(
    st.integers(-3, 12).map(str),
    st.sampled_from(
        ["nan", "inf", "-inf", "0.0", "-0.5", "1.5", "1e-300", "1e300", "true", "false", '""', "[]", "{}"]
    ),
    st.sampled_from(
        [
            "'all'",
            "'hist'",
            "'ist'",
            "'overlap'",
            "'aircomp'",
            "'tdma'",
            "'optimised'",
            "'iid'",
            "'dirichlet'",
        ]
    ),
    st.sampled_from(
        [
            "[0.25, 0.25, 0.25, 0.25]",
            "[1, 2]",
            "'fc*'",
            "['fc*']",
            "1979-05-27",
            "'paper'",
            "'mlp'",
            "'lenet5'",
        ]
    ),
    st.text(max_size=8),
)
# What makes a run long is kept small, so that hundreds of good ones can run.
SETTING = st.tuples(st.sampled_from(KEYS), ODD).map("=".join)


@settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=st.lists(SETTING, min_size=1, max_size=3))
def test_never_a_traceback(histfl_command: Callable[..., Answer], changes: list[str]) -> None:
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        flags = [flag for change in changes for flag in ("--set", change)]
        answer = histfl_command("run", *SMALL, "--set", "training.rounds=1", *flags, "--out", out, "--json")
        if answer.code == 0:
            assert answer.json["rounds"] >= 1
            return
        assert answer.code in (1, 2)
        assert answer.err.startswith("histfl: ") or "\nhistfl: " in answer.err
        assert answer.out == ""
        assert not (out / "summary.json").exists()
        if answer.code == 1:
            assert "diverged" in answer.err
