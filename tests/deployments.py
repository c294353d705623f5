"""A deployment whose edges and clients are threads of this process: real calls over TLS on loopback, quickly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from histfl.deploy.client import ClientSettings, serve_client
from histfl.deploy.cloud import OnMachines
from histfl.deploy.dispatcher import Dispatcher
from histfl.deploy.edge import serve_edge
from histfl.deploy.kits import Address, Kit, client_name, edge_name
from histfl.deploy.loopback import LOOPBACK, deal_samples, free_ports
from histfl.deploy.protocol import Terms
from histfl.deploy.provision import Site, provision
from histfl.runs.build import prepare
from histfl.runs.config import Config
from histfl.runs.execute import OnRound, execute
from histfl.runs.loading import load_config
from histfl.runs.named import build_network, build_split, load_data
from histfl.runs.run import Run
from histfl.runs.store import RunFolder

LONG_S = 120.0  # seconds that are waited for what comes soon, on a machine that is not busy
SMALL = (
    "model.hidden=8",
    "network.cells=2",
    "network.clients=4",
    "training.rounds=2",
    "training.edge_rounds=2",
    "training.local_steps=2",
    "training.batch_size=10",
    "data.test_samples=100",
    "uplink.name=ideal",
)


def small(*settings: str, source: str = "quickstart") -> Config:
    own_model = any(setting.startswith("model.name") for setting in settings)
    return load_config(source, [*SMALL[own_model:], *settings])


@dataclass
class Deployment:
    """Kits of a network, and what each machine has said."""

    config: Config
    kits: Path
    said: dict[str, list[str]] = field(default_factory=dict)

    def kit(self, name: str) -> Kit:
        role = "cloud" if name == "cloud" else "edge" if name.startswith("edge") else "client"
        return Kit.read(self.kits / name, role)

    def start(self, name: str) -> threading.Thread:
        """An edge or a client, as a thread."""
        said = self.said.setdefault(name, [])
        if name.startswith("edge"):
            work: Callable[[], None] = lambda: serve_edge(self.kit(name), said.append)  # noqa: E731
        else:
            work = lambda: serve_client(self.kit(name), ClientSettings(), said.append)  # noqa: E731
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def run(
        self,
        terms: Terms | None = None,
        folder: Path | None = None,
        *,
        resume: bool = False,
        start_s: float = 60.0,
        on_round: OnRound | None = None,
    ) -> Run:
        """Be the cloud until the run is done."""
        terms, said = terms or Terms(), self.said.setdefault("cloud", [])
        with Dispatcher(self.kit("cloud"), timeout_s=terms.timeout_s) as dispatcher:
            machines = OnMachines(
                device="cpu", dispatcher=dispatcher, terms=terms, start_s=start_s, say=said.append
            )
            run = execute(
                machines.prepare(self.config),
                RunFolder(folder) if folder else None,
                resume=resume,
                on_round=on_round,
            )
            dispatcher.end()
        return run

    def machines(self) -> list[str]:
        cells = self.kit("cloud").about.cells
        return [*map(edge_name, range(len(cells))), *map(client_name, range(sum(cells)))]


def provisioned(config: Config, kits: Path) -> Deployment:
    network = build_network(config)
    cells = tuple(network.clients_per_cell.tolist())
    cloud, *edges = (Address(host=LOOPBACK, port=port) for port in free_ports(1 + len(cells)))
    provision(Site(cloud, tuple(edges), cells), kits)
    train, _ = load_data(config)
    deal_samples(kits, train, build_split(config, train, network))
    return Deployment(config, kits)


@contextmanager
def deployed(config: Config, kits: Path) -> Iterator[Deployment]:
    """All edges and clients at work; they end when the run is done."""
    deployment = provisioned(config, kits)
    threads = [deployment.start(name) for name in deployment.machines()]
    yield deployment
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive(), "a machine did not end"


def wait_until(done: Callable[[], object]) -> None:
    """However busy the machine is; what never comes fails."""
    until = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


def simulated(config: Config) -> Run:
    return execute(prepare(config, device="cpu", engine="reference"))


def assert_same_model(one: Run, other: Run) -> None:
    assert one.model is not None
    assert other.model is not None
    for (name, found), right in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.equal(found, right), name
