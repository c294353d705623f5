import os
import re
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


def test_the_readmes_python_example_runs() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        short = block.replace("rounds=3", "rounds=1").replace("local_steps=12", "local_steps=1")
        done = subprocess.run([sys.executable, "-W", "error", "-c", short], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
