"""The benchmark's own machinery; what it measures is asserted nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_contenders_do_one_job_and_the_table_says_so(tmp_path: Path) -> None:
    sizes = "--clients 6 --cells 2 --batch-size 5 --local-steps 2 --edge-rounds 2 --turns 1 --cores 2"
    names = "--models mlp --cases hist --contenders loop reference vectorised"
    command = [sys.executable, str(BENCHMARKS / "bench.py"), *sizes.split(), *names.split()]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "bench-cpu-6-clients.json").read_text("utf-8"))["rows"]
    assert list(row["contenders"]) == ["loop", "reference", "vectorised"]
    for found in row["contenders"].values():
        assert found["largest_difference"] < 1e-6
        assert found["steps_per_second"] * min(found["seconds"]) == pytest.approx(6 * 2 * 2)
    # a product forward and one for the weights' gradient each, and one for the hidden layer's own gradient
    batch, half = 5, 150
    assert row["operations_per_step"] == 2 * batch * (2 * 784 * half + 3 * half * 10)
    table = (tmp_path / "bench-cpu-6-clients.md").read_text("utf-8")
    assert "MLP, HIST, 2 cells" in table
    assert "| vectorised |" in table
    assert (tmp_path / "bench-cpu-6-clients.svg").read_text("utf-8").rstrip().endswith("</svg>")


def test_a_contender_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from processes import Contender, ContenderError

    command = [sys.executable, "-c", "raise SystemExit('no such simulator')"]
    with pytest.raises(ContenderError, match="did not start: no such simulator"):
        Contender("peer", command, tmp_path, {}, log=tmp_path / "peer.log")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="process trees are read from /proc")
def test_memory_and_processor_time_are_those_of_the_whole_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from processes import cpu_seconds, tree, tree_memory

    work = "sum(range(10**7)); held = bytearray(b'x' * 2**26); print('ready', flush=True); input()"
    shell = f'{sys.executable} -c "{work}"; true'  # the shell waits, its child works
    with subprocess.Popen(
        ["sh", "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(list(tree(process.pid))) == 2
        assert tree_memory(process.pid) > 2**26
        assert cpu_seconds(process.pid) > 0
        process.communicate("\n")


def test_a_job_measured_again_replaces_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from bench import with_earlier_rows

    def report(gpu: str, **seconds: int) -> dict[str, object]:
        rows = [{"model": "mlp", "case": case, "seconds": value} for case, value in seconds.items()]
        return {"processor": "p", "gpu": gpu, "cores": 2, "torch": "2", "rows": rows}

    again = report("a", full=3)
    assert with_earlier_rows(again, report("a", hist=1, full=2)) == report("a", full=3, hist=1)
    assert with_earlier_rows(again, report("b", hist=1, full=2)) == again
    assert with_earlier_rows(again, {}) == again
