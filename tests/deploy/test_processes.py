"""Edges and clients as processes of their own: a first look by one command, and kills."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from commands import Answer
from deployments import LONG_S, SMALL, assert_same_model, simulated, small

from histfl.deploy.cloud import OnMachines
from histfl.deploy.dispatcher import Dispatcher
from histfl.deploy.loopback import machines_here
from histfl.runs.execute import execute

pytestmark = pytest.mark.xdist_group("deployment")  # they share one server of processes


def test_a_first_look(tmp_path: Path, histfl_command: Callable[..., Answer]) -> None:
    """Of the cells and clients of a network file."""
    network = tmp_path / "network.toml"
    network.write_text("[[cells]]\nclients = 1\ncpu_hz = 1e9\n[[cells]]\nclients = 2\n")
    settings = [part for setting in (*SMALL, f"network.profile={network}") for part in ("--set", setting)]
    answer = histfl_command("deploy", "try", "quickstart", *settings, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["simulated"] == {"largest_difference": 0.0, "same_bits": True}
    assert answer.json["engine"] == "deployed"
    assert answer.json["clients"] == 3
    assert "3 of 3 clients are there" in answer.err
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Measured beside simulated" in page
    assert "histfl cloud KIT" in page
    report = histfl_command("report", tmp_path / "run")
    assert report.code == 0
    assert not _machines()


FAIL = """
import inspect, multiprocessing
from torch import nn

def fail_in(function):
    here = multiprocessing.parent_process() is None
    if not here and any(frame.function == function for frame in inspect.stack()):
        raise RuntimeError("no such board")

class OnABoard(nn.Sequential):
    def forward(self, inputs):
        fail_in("{function}")
        return super().forward(inputs)

def make():
    fail_in("{function}")
    return OnABoard(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))
"""


@pytest.mark.parametrize("function", ["make", "train_client"])
def test_a_client_that_fails_ends_the_first_look(
    function: str,
    tmp_path: Path,
    histfl_command: Callable[..., Answer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its own last words, and at once."""
    (tmp_path / "failing_model.py").write_text(FAIL.format(function=function))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = [part for setting in SMALL[1:] for part in ("--set", setting)]
    answer = histfl_command(
        *("deploy", "try", "quickstart", *settings, "--set", "model.name=failing_model:make"),
        *("--trust", "failing_model", "--out", tmp_path / "run"),
    )
    assert answer.code in (1, 2)
    assert "no such board" in answer.err.splitlines()[-1]
    assert re.search(r"c\d ended with code 2", answer.err)


def _machines() -> list[psutil.Process]:
    """Those that were forked for edges and clients; the server that forks them stays for the next ones."""
    servers = [
        child
        for child in psutil.Process().children()
        if any("multiprocessing.forkserver" in part for part in child.cmdline())
    ]
    return [machine for server in servers for machine in server.children()]


def test_killed_machines_that_come_back_leave_no_trace(tmp_path: Path) -> None:
    """An edge and two clients are killed and started again, as a supervisor would: the same model, nothing missed."""
    config = small("training.rounds=4", "training.edge_rounds=3")
    with machines_here(config, None) as machines, Dispatcher(machines.cloud, timeout_s=60.0) as dispatcher:
        kills = iter((["c0"], ["edge1"], ["edge0", "c3"]))

        def kill(record: dict[str, object]) -> None:
            assert len(_machines()) == 6
            for name in next(kills, []):
                pid = machines.processes[name].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                machines.processes[name].join()
                machines.start(name)

        experiment = OnMachines(device="cpu", dispatcher=dispatcher, say=lambda _: None).prepare(config)
        run = execute(experiment, on_round=kill)
        dispatcher.end()
        machines.join(LONG_S)
        assert [process.exitcode for process in machines.processes.values()] == [0] * 6
        assert "the cloud says that all is done" in machines.words("edge1")
    assert [record["measured"]["missed_clients"] for record in run.records] == [[]] * 4
    assert [record["measured"]["lost_cells"] for record in run.records] == [[]] * 4
    assert_same_model(run, simulated(config))
