"""Two nodes of a cluster, one of which is lost in mid-round; who may join a cluster; one with TLS."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, threading, time
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
import ray
from ray.cluster_utils import Cluster as Nodes
import psutil, torch
from torch import nn
import histfl
from engine_cases import make_experiment
from histfl.engines import Cluster, RayEngine, VectorisedEngine
from histfl.network import Network
from histfl.runs.build import prepare
from histfl.runs.loading import load_config
from histfl.training import hist

class Net(nn.Module):  # the user's own, of a script
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 12), nn.Linear(12, 3)
    def forward(self, inputs):
        return self.two(torch.tanh(self.one(inputs)))

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)

def model_after(experiment, engine):
    state = {name: value.detach().clone() for name, value in experiment.model.named_parameters()}
    *_, last = hist(experiment.hist, state, engine, first_round=0, rounds=2)
    return list(last.state.values())

lenet5 = make_experiment("lenet5", dtype=torch.float32, people=Network.uniform(cells=8, clients=48),
                         training={"local_steps": 60})
quickstart = prepare(load_config("quickstart", ["training.local_steps=100"]), device="cpu")

def of_a_script(engine):
    torch.manual_seed(1)
    data = torch.randn(40, 8), torch.arange(40) % 3
    run = histfl.train(Net(), data, data, network=histfl.Network.uniform(cells=4, clients_per_cell=6), rounds=2,
                       local_steps=300, batch_size=5, split="iid", loss=loss, engine=engine, device="cpu")
    return list(run.model.state_dict().values())

jobs = {"quickstart": lambda engine: model_after(quickstart, engine),
        "lenet5": lambda engine: model_after(lenet5, engine), "script": of_a_script}

nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
ray.init(address=nodes.address, log_to_driver=False)

def once_at_work(above, then):
    "Ray's workers have names that say what they do."
    while not ended.is_set():
        for process in above.children(recursive=True):
            try:
                if "_Worker.run" in process.name():
                    return then(process)
            except psutil.Error:
                pass
        time.sleep(0.002)

for name, job in jobs.items():
    right = job(VectorisedEngine())
    for how in (1, 2, 4, "worker", "node"):
        other = nodes.add_node(num_cpus=2)
        ended = threading.Event()
        raylet = psutil.Process(other.all_processes["raylet"][0].process.pid)
        act = {"worker": lambda process: os.kill(process.pid, signal.SIGKILL),
               "node": lambda process: nodes.remove_node(other, allow_graceful=False)}.get(how)
        thread = threading.Thread(target=once_at_work, args=(raylet, act))
        if act:
            thread.start()
        engine = RayEngine(cluster=Cluster(workers=4 if act else how))
        found = job(engine)
        ended.set()
        same = all(torch.equal(one, another) for one, another in zip(right, found, strict=True))
        print("same", name, how, same, engine.lost_workers, flush=True)
        engine.close()
        if act:
            thread.join()
        if how != "node":
            nodes.remove_node(other)
ray.shutdown()
nodes.shutdown()
"""


@pytest.mark.exhaustive
def test_no_number_of_workers_and_nothing_that_is_lost_changes_a_bit(tmp_path: Path) -> None:
    """The quickstart, LeNet-5 and a module and a loss of a script: one, two and four workers on two nodes, a worker
    killed in mid-round, and a node."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("same")]
    assert [line[:3] for line in lines] == [
        [name, how, "True"]
        for name in ("quickstart", "lenet5", "script")
        for how in ("1", "2", "4", "worker", "node")
    ], done.stdout
    for _, how, _, lost in lines:
        assert int(lost) >= 1 if how in ("worker", "node") else int(lost) == 0, done.stdout


STRANGER = """
import os, sys
os.environ["RAY_AUTH_MODE"] = "token" if sys.argv[2] else "disabled"
os.environ["RAY_AUTH_TOKEN"] = sys.argv[2]
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except Exception as error:
    print("refused", type(error).__name__)
else:
    print("joined")
"""


@pytest.mark.exhaustive
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("token", ["", "0" * 64])
def test_who_has_not_the_token_does_not_join(token: str, ray_cluster: None, tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, address, token],
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "joined" not in done.stdout, done.stdout
    assert "oken" in done.stdout + done.stderr


JOIN = """
import sys
from histfl.engines import Cluster
from histfl.errors import UsageError
try:
    with Cluster(address=sys.argv[1]).connected("cpu"):
        print("joined")
except UsageError as error:
    print(error)
"""


def said_of(address: str, **environment: str) -> list[str]:
    """What a process of its own is told that would join this cluster, line by line."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run(
        [sys.executable, "-c", JOIN, address],
        env=clean | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


class Refuses(BaseHTTPRequestHandler):
    """A server that knows nothing of Ray."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def assert_no_ray_at(port: int) -> None:
    address = f"127.0.0.1:{port}"
    (line,) = said_of(address)
    assert line.startswith(f"no Ray cluster answers at {address} (")
    assert line.endswith("start one with `ray start --head`, or leave the address out for this machine alone")


def test_an_address_where_nobody_answers() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert_no_ray_at(closed.getsockname()[1])


@pytest.mark.exhaustive  # half a minute is waited for a word of Ray
def test_an_address_where_somebody_else_answers() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        assert_no_ray_at(other.server_port)
        other.shutdown()


@pytest.mark.exhaustive
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("token", ["", "0" * 64])
def test_who_has_not_the_token_is_told_what_to_do(token: str, ray_cluster: None, tmp_path: Path) -> None:
    import ray

    (line,) = said_of(
        address := ray.get_runtime_context().gcs_address,
        HOME=str(tmp_path),
        **({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}),
    )
    assert line.startswith(f"the Ray cluster at {address} asks for another token: set RAY_AUTH_MODE=token")
    assert line.endswith("before which RAY_AUTH_TOKEN of this process goes: begin one without") == bool(token)


GPUS = """
from histfl.engines import Cluster
from histfl.errors import UsageError
try:
    with Cluster(workers=3, gpus=0.5).connected("cuda"):
        print("made")
except UsageError as error:
    print(error)
"""


def test_more_gpus_than_this_machine_has() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", GPUS],
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "3 Ray workers of 0.5 GPUs: there are 0 GPUs here, room for 0; ask for fewer workers, or for less of a GPU each\n"
    )


CORES = """
from histfl.engines import Cluster
from histfl.errors import UsageError
for settings in {"workers": 10_000}, {"threads": 10_000}:
    try:
        with Cluster(**settings).connected("cpu"):
            print("made")
    except UsageError as error:
        print(error)
"""


def test_far_more_threads_than_this_machine_has_cores() -> None:
    """They would all start at once, and take the machine with them."""
    done = subprocess.run(
        [sys.executable, "-c", CORES],
        env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("10000 Ray workers of 1 threads: this machine has ")
    assert second.startswith("1 Ray workers of 10000 threads: this machine has ")
    assert first.endswith("threads at the very most; ask for fewer")


RUN = """
import ssl
from small_training import train
from histfl.engines import Cluster, RayEngine
with Cluster(workers=1).connected("cpu"):
    import ray
    host, port = ray.get_runtime_context().gcs_address.rsplit(":", 1)
    assert ssl.get_server_certificate((host, int(port)))
print("same", train(engine=RayEngine(cluster=Cluster(workers=1)), rounds=2).records == train(rounds=2).records)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_cluster_with_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=histfl -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*words.split(), "-out", certificate, "-keyout", key], check=True, stderr=subprocess.DEVNULL
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=environment
        | {
            "PYTHONPATH": path,
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(certificate),
            "RAY_TLS_SERVER_KEY": str(key),
            "RAY_TLS_CA_CERT": str(certificate),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "same True\n", done.stderr
