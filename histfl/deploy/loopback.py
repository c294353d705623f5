"""A whole deployment on this machine, each part a process of its own, on loopback: `histfl deploy try`."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

from histfl.data import Split, TensorData
from histfl.data.inputs import chosen
from histfl.deploy.client import SAMPLES, ClientSettings, save_samples, serve_client
from histfl.deploy.edge import serve_edge
from histfl.deploy.kits import Address, Kit, client_name, edge_name
from histfl.deploy.provision import Site, provision
from histfl.errors import HistflError, UsageError
from histfl.limits import check_memory
from histfl.runs.build import prepare
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.runs.named import build_network, build_split, load_data

LOOPBACK = "127.0.0.1"
A_PROCESS = 5e7  # bytes of its own at least


def parsed(machines: str) -> tuple[int, int]:
    """The cells and the clients of 1+CELLS+CLIENTS."""
    parts = machines.split("+")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts) or parts[0] != "1":
        raise UsageError(f"--machines {machines}: write 1+CELLS+CLIENTS, such as 1+2+4")
    cells, clients = int(parts[1]), int(parts[2])
    if not 1 <= cells <= clients:
        raise UsageError(f"--machines {machines}: {clients} clients cannot fill {cells} cells")
    check_memory(
        f"--machines {machines}, a process each",
        (cells + clients) * A_PROCESS,
        "ask for fewer, or give one process several kits (histfl client)",
    )
    return cells, clients


@dataclass(frozen=True)
class Machines:
    """The machines besides the cloud: their processes by name, and where each one's words are."""

    kits: Path
    processes: dict[str, multiprocessing.process.BaseProcess]
    clients: ClientSettings

    @property
    def cloud(self) -> Kit:
        return Kit.read(self.kits / "cloud", "cloud")

    def words(self, name: str) -> str:
        """What a machine has said."""
        path = _log_of(self.kits / name)
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def start(self, name: str) -> None:
        """Start a machine, once more where it was ended."""
        context = multiprocessing.get_context("forkserver")
        process = context.Process(
            target=_machine, args=(self.kits / name, self.clients, os.getpid()), daemon=True
        )
        process.start()
        self.processes[name] = process

    def check(self) -> None:
        """A HistflError with the last words of a machine that failed."""
        for name, process in self.processes.items():
            if process.exitcode not in (None, 0, -signal.SIGKILL):
                last = self.words(name).strip().splitlines() or ["no word"]
                raise HistflError(f"{name} ended with code {process.exitcode}: {last[-1][:300]}")

    def join(self, seconds: float) -> None:
        """Wait until all have ended by themselves."""
        until = time.monotonic() + seconds
        for process in self.processes.values():
            process.join(max(0.0, until - time.monotonic()))


@contextmanager
def machines_here(
    config: Config, data_dir: Path | None = None, trust: Sequence[str] = ()
) -> Iterator[Machines]:
    """Edges and clients of the network of `config`, on free ports of this machine; a client has the samples that the
    simulation gives it, and no others. All of it is gone afterwards."""
    network = build_network(config)
    cells = tuple(network.clients_per_cell.tolist())
    ports = free_ports(1 + len(cells))
    cloud, *edges = (Address(host=LOOPBACK, port=port) for port in ports)
    with tempfile.TemporaryDirectory(prefix="histfl-kits-") as folder:
        kits = Path(folder)
        provision(Site(cloud, tuple(edges), cells), kits)
        train, _ = load_data(config, data_dir)
        deal_samples(kits, train, build_split(config, train, network))
        del train
        multiprocessing.get_context("forkserver").set_forkserver_preload(["histfl.deploy.loopback"])
        machines = Machines(kits, {}, ClientSettings(trust=tuple(trust), data_dir=data_dir))
        try:
            for name in (*map(edge_name, range(len(cells))), *map(client_name, range(sum(cells)))):
                machines.start(name)
            yield machines
        finally:
            for process in machines.processes.values():
                process.kill()
            for process in machines.processes.values():
                process.join()


def deal_samples(kits: Path, data: TensorData, split: Split) -> None:
    """Write each client's samples into its kit, as a split deals them."""
    for client in range(split.num_clients):
        numbers = torch.from_numpy(split.client(client).copy())
        own = TensorData(chosen(data.inputs, numbers), data.targets[numbers], data.class_names)
        save_samples(kits / client_name(client) / SAMPLES, own)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that the system gives to nobody else for a while: on each a connection has just
    ended, from this side. Who asks for one by its number, to listen there, gets it."""
    ports = []
    for _ in range(count):
        with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()):
            server.accept()[0].close()
            ports.append(server.getsockname()[1])
    return ports


def _log_of(kit: Path) -> Path:
    return kit / "words.log"


def _machine(folder: Path, settings: ClientSettings, parent: int) -> None:
    """An edge or a client, in a process of its own."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # which reaches all processes, and the cloud's alone heeds it
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    words = open(_log_of(folder), "a", buffering=1, encoding="utf-8")  # noqa: SIM115 (for the process's life)
    sys.stdout = sys.stderr = words
    logging.basicConfig(stream=words, level=logging.WARNING, format="%(message)s", force=True)
    torch.set_num_threads(1)

    def say(text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, flush=True)

    try:
        if folder.name.startswith("edge"):
            serve_edge(Kit.read(folder, "edge"), say)
        else:
            serve_client(Kit.read(folder, "client"), settings, say)
    except HistflError as error:
        print(error, flush=True)
        os._exit(error.exit_code)


def _end_with(parent: int) -> None:
    """Ends this process where the one that asked for it is gone, killed too."""
    while True:
        try:
            os.kill(parent, 0)
        except OSError:
            os._exit(1)
        time.sleep(1)


@dataclass(frozen=True)
class Comparison:
    """A deployed model beside the simulated one: the largest difference of a number, 0 where all bits are the same."""

    largest_difference: float
    same_bits: bool

    @property
    def sentence(self) -> str:
        if self.same_bits:
            return "The deployed model is the simulated one, bit for bit."
        return f"The deployed model differs from the simulated one by {self.largest_difference:.3g} at most."


def compared(config: Config, folder: Path, data_dir: Path | None = None) -> Comparison:
    """The trained model in `folder` beside that of the same run, simulated here by the reference engine."""
    run = execute(prepare(config, data_dir=data_dir, device="cpu", engine="reference"))
    assert run.model is not None
    deployed = safetensors.torch.load_file(folder / "model.safetensors")
    trained = {name: x.detach() for name, x in run.model.named_parameters() if name in deployed}
    differences = [float((deployed[name] - tensor).abs().max()) for name, tensor in trained.items()]
    return Comparison(max(differences), all(torch.equal(deployed[name], x) for name, x in trained.items()))
