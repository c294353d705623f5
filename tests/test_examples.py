import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_model_of_ones_own() -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "own_model.py"), "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "'inner': 24" in done.stdout
    assert "round 2: accuracy" in done.stdout
    assert "MB a client" in done.stdout
