"""Where an answer cannot be printed, or nothing can be kept for later, one line says so or nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import SMALL, Answer

import histfl

COMMAND = [sys.executable, "-m", "histfl"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "list"],
        ["run", "--help"],
        pytest.param(["data", "list", "--json"], marks=pytest.mark.exhaustive),
    ],
)
def test_a_full_or_closed_output_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        answer = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1), answer.stderr
    assert "No space left" in answer.stderr
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` leaves it
    answer = subprocess.run([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1), answer.stderr
    assert "standard output was closed" in answer.stderr


def test_an_output_closed_before_the_start_is_no_failure() -> None:
    answer = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "data", "list"], capture_output=True
    )
    assert (answer.returncode, answer.stderr) == (0, b"")


@pytest.mark.parametrize("engine", ["reference", pytest.param("vectorised", marks=pytest.mark.exhaustive)])
def test_without_a_home_and_a_cache_a_run_is_the_same(
    histfl_command: Callable[..., Answer], tmp_path: Path, engine: str
) -> None:
    """A file stands where each folder of compiled code would be made, so that none can be written."""
    shutil.copytree(
        Path(histfl.__file__).parent,
        tmp_path / "code" / "histfl",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (tmp_path / "code" / "histfl" / "engines" / "kernels" / "__pycache__").touch()
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache", "PYTHONPATH": str(tmp_path / "code")}
    words = ["run", *SMALL, "--engine", engine, "--out"]
    assert histfl_command(*words, tmp_path / "with").code == 0
    answer = subprocess.run(
        [*COMMAND, *words, "without"], env=os.environ | nowhere, cwd=tmp_path, capture_output=True
    )
    assert (answer.returncode, answer.stderr.count(b"Traceback")) == (0, 0), answer.stderr
    with_, without = ((tmp_path / name / "rounds.jsonl").read_bytes() for name in ("with", "without"))
    assert without == with_
    assert json.loads((tmp_path / "without" / "summary.json").read_text())["engine"] == engine


def test_a_download_without_a_place_is_one_line() -> None:
    environment = os.environ | {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache"}
    environment.pop("HISTFL_DATA", None)
    answer = subprocess.run(
        [*COMMAND, "data", "fetch", "cifar10"], env=environment, capture_output=True, text=True
    )
    assert answer.returncode in (1, 2)
    assert answer.stderr.count("\n") == 1
    assert "choose another --data-dir" in answer.stderr


def test_a_word_comes_at_once_and_little_is_imported(tmp_path: Path) -> None:
    """Before torch is there, a line; before the first round, none of the modules that take seconds."""
    slow = ("torch._dynamo", "torch._inductor", "sympy", "scipy.optimize", "pandas")
    code = (
        "import sys\n"
        "from histfl.cli import main, output, runs\n"
        "def warn(line):\n"
        "    print(line, 'torch' in sys.modules)\n"
        "runs.warn = warn\n"
        "import histfl.cli.carry_out as told\n"
        f"told.warn = lambda line: print([name for name in {slow!r} if name in sys.modules])\n"
        f"main({['run', *SMALL, '--set', 'training.rounds=1', '--out', str(tmp_path / 'run')]!r})\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    first, begun, *_ = answer.stdout.splitlines()
    assert first == "loading torch and the data, trying engines ... False"
    assert begun == "[]"


def test_an_interrupt_in_the_middle_of_an_import_ends_in_one_line(tmp_path: Path) -> None:
    """Even where the module swallows it, as extension modules do, whose half-made contents would then be missed."""
    (tmp_path / "swallowing.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    sum(range(1000))\n"
        "except BaseException:\n"
        "    pass\n"
    )
    arguments = ["plan", "uniform", "--model", "swallowing:make", "--input-shape", "3", "--classes", "2"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    answer = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=environment)
    assert (answer.returncode, answer.stdout) == (130, "")
    assert answer.stderr.splitlines()[-1] == "histfl: interrupted"
    assert "Traceback" not in answer.stderr
