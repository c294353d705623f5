"""Cells on Ray: the bits of one process, workers that are lost, what is told of mistakes, and nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from commands import SMALL, Answer
from engine_cases import make_experiment
from small_training import mlp, train

from histfl.engines import Cluster, RayEngine, VectorisedEngine
from histfl.engines.cluster import OFTEN, tighten_token
from histfl.engines.on_ray import _Pool
from histfl.engines.sending import numbers_sent
from histfl.errors import HistflError, UsageError
from histfl.network import Network
from histfl.partition import State
from histfl.runs.build import Experiment
from histfl.training import Engine, hist
from histfl.training.jobs import RoundJobs

pytestmark = pytest.mark.xdist_group("ray")
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@pytest.fixture(scope="module")
def lone_engine(ray_cluster: None) -> Iterator[RayEngine]:
    engine = RayEngine(cluster=Cluster(workers=1))
    yield engine
    engine.close()


def model_after(experiment: Experiment, engine: Engine, rounds: int = 2) -> State:
    state = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    *_, last = hist(experiment.hist, state, engine, first_round=0, rounds=rounds)
    return last.state


def assert_same_bits(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_the_bits_are_those_of_one_process(model: str, ray_engine: RayEngine, lone_engine: RayEngine) -> None:
    """Cells of several shapes, some that share a block and some that fill more than one."""
    people = Network.uniform(cells=5, clients=31)
    experiment = make_experiment(
        model,
        dtype=torch.float32,
        people=people,
        method={"name": "hist", "sizes": [0.3, 0.1, 0.2, 0.2, 0.2]},
        training={"batch_size": 3},
        network={"dropout": 0.1},
    )
    right = model_after(experiment, VectorisedEngine())
    assert_same_bits(right, model_after(experiment, ray_engine))
    assert_same_bits(right, model_after(experiment, lone_engine))


def test_tensors_of_every_kind_reach_the_workers(ray_cluster: None) -> None:
    """Once copied, and once read where they lie."""
    import ray

    sent = {
        "a scalar": torch.tensor(1.5),
        "none": torch.empty(0, 3),
        "truths": torch.tensor([True, False]),
        "half precision": torch.randn(3, 2).bfloat16(),
        "complex, conjugate": torch.randn(4, dtype=torch.complex64).conj(),
        "expanded": torch.ones(1, 2).expand(5, 2),
        "every other": torch.arange(20).view(4, 5)[::2, 1:],
        "sparse": torch.eye(3).to_sparse(),
    }
    for shared in (False, True):
        with numbers_sent(shared=shared):
            there = ray.get(ray.put(sent))
        for name, tensor in sent.items():
            assert (there[name].dtype, there[name].layout) == (tensor.dtype, tensor.layout), name
            assert torch.equal(there[name].to_dense(), tensor.to_dense()), name


def test_results_come_as_plain_numbers(ray_engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a worker: torch's pickles would be made here by this function of its."""
    monkeypatch.setattr(torch._utils, "_rebuild_tensor_v2", None)
    model_after(make_experiment("mlp"), ray_engine)


def test_a_rare_cell_keeps_no_worker_idle(ray_engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first cell's shape is its own, so that its lot is the last one to be made, and all others' results wait."""
    experiment = make_experiment(
        "mlp",
        people=Network.uniform(cells=90, clients=90),
        method={"name": "nested", "sizes": [0.5] + [0.25] * 89},
    )
    while ray_engine._pool is None or len(ray_engine._pool.idle) < 2:  # until both workers have started
        model_after(experiment, ray_engine, rounds=1)
    at_work, ask = list[int](), _Pool.ask

    def counted(pool: _Pool, lot: Any, jobs: Any, most: int) -> None:
        ask(pool, lot, jobs, most)
        at_work.append(len(pool.busy))

    monkeypatch.setattr(_Pool, "ask", counted)
    monkeypatch.setattr(ray_engine._here, "cores", 64)  # so that blocks are small
    found = model_after(experiment, ray_engine, rounds=1)
    assert len(at_work) > 6
    assert at_work[1:] == [2] * len(at_work[1:])
    assert_same_bits(model_after(experiment, VectorisedEngine(cores=64), rounds=1), found)


class CountingModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.calls = mlp(), np.zeros(1000)

    def forward(self, inputs: torch.Tensor) -> Any:
        self.calls += 1
        return self.layers(inputs)


class CountingLoss:
    def __init__(self) -> None:
        self.calls = np.zeros(1000)

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.nn.functional.cross_entropy(outputs, targets)


def test_a_model_and_a_loss_may_write_into_their_arrays(ray_cluster: None) -> None:
    """Those of Ray are read only."""
    engine = RayEngine(cluster=Cluster(workers=1))
    found = train(CountingModel(), loss=CountingLoss(), engine=engine)
    assert found.records == train(CountingModel(), loss=CountingLoss()).records


class KilledOnce:
    """A loss of the user's own whose first worker is killed in mid-round."""

    def __init__(self, flag: Path, always: bool = False) -> None:
        self.flag, self.always, self.here = flag, always, os.getpid()

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.here and (self.always or not self.flag.exists()):
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.nn.functional.cross_entropy(outputs, targets)


def test_a_killed_workers_cells_are_done_again(
    ray_engine: RayEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loss, before = KilledOnce(tmp_path / "killed"), ray_engine.lost_workers
    found = model_after(make_experiment("mlp", loss=loss), ray_engine)
    assert (tmp_path / "killed").exists()
    assert ray_engine.lost_workers == before + 1
    assert "a Ray worker was lost" in caplog.text
    assert_same_bits(model_after(make_experiment("mlp", loss=loss), VectorisedEngine()), found)


@pytest.mark.exhaustive
def test_cells_that_kill_every_worker_end_the_run(ray_engine: RayEngine, tmp_path: Path) -> None:
    loss, before = KilledOnce(tmp_path / "killed", always=True), ray_engine.lost_workers
    with pytest.raises(HistflError, match=f"{OFTEN} Ray workers were lost with the same"):
        model_after(make_experiment("mlp", loss=loss), ray_engine)
    assert ray_engine.lost_workers >= before + OFTEN


def test_nobody_is_asked_after_the_end(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error amid a round holds on to results that nobody reads: Ray would be begun anew, or another's be joined."""
    experiment = make_experiment("mlp", people=Network.uniform(cells=8, clients=8))
    asked, run = list[Any](), VectorisedEngine.run
    monkeypatch.setattr(VectorisedEngine, "run", lambda engine, jobs: asked.append(jobs) or run(engine, jobs))
    model_after(experiment, VectorisedEngine(), rounds=1)
    engine = RayEngine(cluster=Cluster(workers=1))
    results = engine.run(asked[0])
    next(results)
    assert engine._pool is not None
    assert engine._pool.busy
    engine.close()
    monkeypatch.setattr(_Pool, "_send_away", None)
    results.close()  # type: ignore[attr-defined]


def test_nobody_waits_for_ever(ray_engine: RayEngine, lone_engine: RayEngine) -> None:
    for engine in (ray_engine, lone_engine):  # they have three of four cores
        model_after(make_experiment("mlp"), engine, rounds=1)
    late = RayEngine(cluster=Cluster(workers=1, threads=2, patience_s=0.5))
    with pytest.raises(HistflError, match=r"no Ray worker was there for 0\.5 s.*--resume"):
        model_after(make_experiment("mlp"), late, rounds=1)
    late.close()


def test_a_users_error_is_the_same_as_without_ray(ray_engine: RayEngine) -> None:
    here = os.getpid()

    def refuses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if os.getpid() != here:
            raise UsageError("this loss takes no such thing")
        return torch.nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(UsageError, match=r"^this loss takes no such thing$"):
        model_after(make_experiment("mlp", loss=refuses), ray_engine)

    def slips(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        return loss if os.getpid() == here else loss.no_such_thing

    with pytest.raises(UsageError, match=r"fails in a client's local step \(AttributeError: .*no_such_thing"):
        model_after(make_experiment("mlp", loss=slips), ray_engine)
    model_after(make_experiment("mlp"), ray_engine, rounds=1)  # the workers are as good as before


def test_a_module_that_workers_cannot_import(ray_engine: RayEngine, tmp_path: Path) -> None:
    path = tmp_path / "only_here.py"
    path.write_text("import torch\n\ndef loss(a, b):\n    return torch.nn.functional.cross_entropy(a, b)\n")
    spec = importlib.util.spec_from_file_location("only_here", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["only_here"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(UsageError, match="cannot import only_here; install it on every node"):
        model_after(make_experiment("mlp", loss=module.loss), ray_engine)
    del sys.modules["only_here"]


def test_what_cannot_be_sent(ray_engine: RayEngine) -> None:
    lock = threading.Lock()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with lock:
            return torch.nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(UsageError, match="cannot be sent to Ray workers"):
        model_after(make_experiment("mlp", loss=loss), ray_engine)


def test_more_than_there_is(ray_cluster: None) -> None:
    engine = RayEngine(cluster=Cluster(workers=100))
    with pytest.raises(UsageError, match="the cluster has 4 cores and 0 GPUs, room for 4; ask for less"):
        model_after(make_experiment("mlp"), engine)
    engine.close()
    with pytest.raises(UsageError, match=r"0\.5 GPUs a Ray worker: the run is on device cpu"):
        Cluster(gpus=0.5).gpus_on("cpu")
    assert [Cluster(gpus=gpus).gpus_on("cuda") for gpus in (None, 0.5)] == [1.0, 0.5]
    assert Cluster().gpus_on("cpu") == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"workers": 0}, "workers = 0"),
        ({"workers": 10**20}, "workers = 100000000000000000000; it must be a whole number, at most"),
        ({"threads": 1.5}, "threads = 1.5"),
        ({"threads": None}, "threads = None"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": 1.5}, "a fraction of one, or a whole number"),
        ({"address": "ray://head:10001"}, "HOST:PORT"),
        ({"address": 6379}, "Ray address 6379: write it as HOST:PORT"),
        ({"address": "head:65536"}, "HOST:PORT"),
        ({"address": "head:0"}, "HOST:PORT"),
        ({"patience_s": 0}, "patience_s"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Cluster(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cluster": "auto"}, r"cluster = 'auto'; give a Cluster, such as Cluster\(workers=2\)"),
        ({"cluster": {}}, "cluster = {}; give a Cluster"),
        ({"memory_gb": -1}, "must be a positive number of gigabytes"),
        ({"cores": 0}, "cores of an engine = 0; it must be a whole number, at least 1"),
    ],
)
def test_engine_objects_that_make_no_sense(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        RayEngine(**settings)


def test_an_engine_that_was_not_made() -> None:
    with pytest.raises(
        UsageError, match=r"engine <class .*RayEngine'>: use auto, reference, vectorised or ray"
    ):
        train(engine=RayEngine)


def test_wrong_options_and_missing_packages(
    histfl_command: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*options: object) -> str:
        answer = histfl_command("run", *SMALL, *options, "--out", "never")
        assert answer.code == 2
        assert answer.err.count("\n") == 1
        return answer.err

    assert "add --engine ray" in refused("--workers", 2)
    assert "write it as HOST:PORT" in refused("--engine", "ray", "--ray-address", "here")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'histfl[ray]'" in refused("--engine", "ray")


def test_an_engine_object_is_used_and_has_its_own_settings(ray_engine: RayEngine) -> None:
    run = train(engine=(engine := RayEngine(cluster=Cluster(workers=1))), rounds=2)
    assert (run.summary["engine"], run.summary["lost_workers"]) == ("ray", 0)
    assert run.records == train(rounds=2).records
    with pytest.raises(UsageError, match="give it to the engine itself"):
        train(engine=engine, memory_gb=1)


def test_jobs_are_made_when_they_are_asked_for() -> None:
    experiment, asked = make_experiment("mlp"), list[int]()
    schedules = [
        experiment.hist.participation.schedule(
            experiment.hist.network.cell(0), 1, 0, experiment.hist.task.seeds
        )
    ] * 3
    jobs = RoundJobs(experiment.hist.task, schedules, lambda place: asked.append(place))  # type: ignore[arg-type,return-value]
    assert (len(jobs), asked) == (3, [])
    assert (jobs[-1], len(jobs[1:]), len(jobs[::-1])) == (None, 2, 3)
    assert asked == [2, 1, 2, 2, 1, 0]
    with pytest.raises(IndexError):
        jobs[3]


def test_a_token_that_others_may_read_is_tightened(tmp_path: Path) -> None:
    token = tmp_path / "auth_token"
    tighten_token(token)
    token.write_text("secret")
    token.chmod(0o644)
    tighten_token(token)
    assert token.stat().st_mode & 0o777 == 0o600


SCRIPT = """
import os, sys, time
import psutil, torch
from torch import nn
import histfl
from histfl.engines import Cluster, RayEngine

class Net(nn.Module):  # the user's own, of a script
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 12), nn.Linear(12, 3)
    def forward(self, inputs):
        return self.two(torch.tanh(self.one(inputs)))

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)

def main(how):
    torch.manual_seed(1)
    model, data = Net(), (torch.randn(40, 8), torch.arange(40) % 3)
    network = histfl.Network.uniform(cells=2, clients_per_cell=2)
    def train(engine, **more):
        return histfl.train(model, data, data, network=network, rounds=2, edge_rounds=1, local_steps=2, batch_size=5,
                            split="iid", loss=loss, engine=engine, **more)
    def look(record):
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        print("family", *(process.pid for process in family), flush=True)
        from ray._private.worker import _global_node
        folder = os.path.dirname(_global_node.get_temp_dir_path())
        print("folder", folder, oct(os.stat(folder).st_mode), flush=True)
        for process in family:
            for link in process.net_connections("inet"):
                if link.status == "LISTEN":
                    print("listens", link.laddr.ip, flush=True)
        if how == "wait":
            print("ready", flush=True)
            time.sleep(60)
        if how == "fail":
            raise ValueError("no")
    run = train(RayEngine(cluster=Cluster(workers=2)), on_round=look)
    print("same", run.records == train("vectorised").records, flush=True)

if __name__ == "__main__":
    main(sys.argv[1])
"""


TWO = """
from histfl.engines import Cluster
one, other = (Cluster(workers=1).connected("cpu") for _ in range(2))
one.__enter__(), other.__enter__()
import ray
one.__exit__(None, None, None)
print(ray.get(ray.remote(lambda: "still there").remote()))
other.__exit__(None, None, None)
print(ray.is_initialized())
"""


def test_who_goes_last_ends_ray() -> None:
    """Two runs at a time, of two threads say: the first to end took Ray along, and Ray the process."""
    done = subprocess.run(
        [sys.executable, "-c", TWO],
        env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "still there\nFalse\n"


AMID = """
import os, signal, sys, threading, time
from pathlib import Path
from torch import nn
from small_training import train
from histfl.engines import Cluster, RayEngine

HERE, begun = os.getpid(), Path(sys.argv[1])

def loss(outputs, targets):
    if os.getpid() != HERE:
        begun.touch()
        time.sleep(60)
    return nn.functional.cross_entropy(outputs, targets)

def interrupt():
    while not begun.exists():
        time.sleep(0.05)
    os.kill(HERE, signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    train(engine=RayEngine(cluster=Cluster(workers=1)), loss=loss)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_amid_a_round_ends_without_a_word_of_ray_s(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AMID, tmp_path / "begun"],
        env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "interrupted\n"


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left_of(family: set[int], seconds: float = 20) -> set[int]:
    """Of these processes, those that still run after a while."""
    deadline = time.monotonic() + seconds
    while True:
        left = set(filter(runs, family))
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def words_of(lines: list[str], word: str) -> set[str]:
    return {each for line in lines if line.startswith(word) for each in line.split()[1:]}


@pytest.mark.parametrize(
    "how",
    [
        "succeed",
        *(
            pytest.param(how, marks=pytest.mark.exhaustive)
            for how in ("fail", "interrupt", "terminate", "kill")
        ),
    ],
)
def test_a_script_of_its_own_is_alone_and_leaves_nothing(how: str, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    waits = how in ("interrupt", "terminate", "kill")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, script, "wait" if waits else how],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=tmp_path,
            env=environment | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)},  # too long for Ray's sockets
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "ready\n":
                if how == "interrupt":
                    os.killpg(process.pid, signal.SIGINT)
                else:
                    process.send_signal(signal.SIGTERM if how == "terminate" else signal.SIGKILL)
                break
        process.stdout.read()
    family = {int(pid) for pid in words_of(lines, "family")}
    assert len(family) > 4
    assert words_of(lines, "listens") <= set(LOOPBACK)
    assert words_of(lines, "listens")
    assert (process.returncode == 0) == (how == "succeed")
    if how == "terminate":
        assert "SIGTERM" not in (tmp_path / "errors").read_text()
    if how in ("terminate", "kill"):
        assert process.returncode == -(signal.SIGTERM if how == "terminate" else signal.SIGKILL)
    assert words_of(lines, "same") == ({"True"} if how == "succeed" else set())
    assert left_of(family) == set()
    assert not (tmp_path / ".ray" / "auth_token").exists()
    (folder,) = words_of(lines, "folder") - {"0o40700"}
    assert Path(folder).exists() == (how in ("terminate", "kill"))
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.exhaustive
def test_sigterm_while_ray_starts_ends_all_of_it(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen([sys.executable, script, "succeed"], cwd=tmp_path, env=environment) as process:
        family: dict[int, str] = {}
        while "raylet" not in family.values():
            with suppress(psutil.Error):
                family |= {
                    each.pid: each.name() for each in psutil.Process(process.pid).children(recursive=True)
                }
        process.terminate()
    assert process.returncode == -signal.SIGTERM
    assert left_of(set(family)) == set()
