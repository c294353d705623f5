import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_model_of_ones_own() -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "own_model.py"), "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "'inner': 24" in done.stdout
    assert "round 2: accuracy" in done.stdout
    assert "MB a client" in done.stdout


def example(name: str, capsys: pytest.CaptureFixture[str], *arguments: float) -> str:
    """What an example prints, in this process."""
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*arguments)
    return capsys.readouterr().out


def last(printed: str, quantity: str) -> float:
    return float(re.findall(rf"{quantity} (-?[\d.]+)", printed)[-1])


def test_a_regression_learns_and_tells_of_its_clients(capsys: pytest.CaptureFixture[str]) -> None:
    printed = example("regression", capsys, 4, 1.0)
    assert last(printed, "R2") > 0.5
    assert last(printed, "worst tenth") > last(printed, "own data: mean") > 0
    assert "to an RMSE of 0.8: 0." in printed


def test_a_segmentation_learns(capsys: pytest.CaptureFixture[str]) -> None:
    printed = example("segmentation", capsys, 8)
    assert last(printed, "mIoU") > 0.7
    assert "to 0.5 mIoU: 0." in printed


def test_a_small_language_model_learns(capsys: pytest.CaptureFixture[str]) -> None:
    printed = example("language_model", capsys, 4, 1.0)
    assert float(re.findall(r"round 4: perplexity ([\d.]+)", printed)[0]) < 13 < last(printed, "guess among")
    assert "to a perplexity of 14: round" in printed


def test_the_readmes_python_example_runs() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        short = block.replace("rounds=3", "rounds=1").replace("local_steps=12", "local_steps=1")
        done = subprocess.run([sys.executable, "-W", "error", "-c", short], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_search_by_optuna(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the extra dev is not installed")
    command = [sys.executable, str(EXAMPLES / "tune.py"), "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "best of 2 trials" in done.stdout
