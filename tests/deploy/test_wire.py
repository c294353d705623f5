"""What crosses the links, read on them: a relay before the cloud and each edge has their certificates and, towards them,
those of their children, and keeps every byte between the two TLS connections."""

from __future__ import annotations

import re
import select
import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from deployments import LONG_S, Deployment, provisioned, small

from histfl.deploy.client import SAMPLES
from histfl.deploy.kits import KIT, Kit, Role
from histfl.deploy.loopback import LOOPBACK, free_ports
from histfl.deploy.messages import Message
from histfl.deploy.server import SESSION
from histfl.runs.build import prepare


@dataclass(frozen=True)
class HttpMessage:
    """A request to a parent, or its answer to one: the words of its first line, and its body."""

    child: str
    verb: str
    up: bool
    status: int | None
    body: bytes

    @property
    def message(self) -> Message:
        return Message.of(self.body)


@dataclass
class Relay:
    """Before one parent, which listens on `port` instead of where its kit said."""

    kits: Path
    parent: str
    port: int
    calls: list[tuple[str, bytearray, bytearray]] = field(default_factory=list)

    def serve(self, server: socket.socket) -> None:
        role: Role = "cloud" if self.parent == "cloud" else "edge"
        context = Kit.read(self.kits / self.parent, role).as_server()
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            try:
                secured = context.wrap_socket(connection, server_side=True)
            except OSError:
                connection.close()
                continue
            threading.Thread(target=self._pass_on, args=(secured,), daemon=True).start()

    def _pass_on(self, secured: ssl.SSLSocket) -> None:
        """Until one of both sides ends the connection, or where the parent is not there yet."""
        certificate: Any = secured.getpeercert()
        (((_, child),),) = certificate["subject"]
        caller = Kit.read(self.kits / child, "edge" if self.parent == "cloud" else "client").as_caller()
        with secured, suppress(OSError):
            connection = socket.create_connection((LOOPBACK, self.port))
            with caller.wrap_socket(connection, server_hostname=LOOPBACK) as real:
                kept = {secured: bytearray(), real: bytearray()}
                self.calls.append((child, kept[secured], kept[real]))
                while True:
                    ready = [each for each in kept if each.pending()] or select.select([*kept], [], [])[0]
                    for source in ready:
                        if not (data := source.recv(2**16)):
                            return
                        kept[source] += data
                        (real if source is secured else secured).sendall(data)

    def messages(self) -> Iterator[HttpMessage]:
        """Whatever was said; an AssertionError where a byte belongs to none of them."""
        for child, up, down in self.calls:
            verbs = []
            for (method, path, version), headers, body in _parsed(bytes(up)):
                _, name, verb = path.split("/")
                assert (method, name, version) == ("POST", child, "HTTP/1.1")
                assert set(headers) == {"Host", "Accept-Encoding", "Content-Length", SESSION}
                assert re.fullmatch("[0-9a-f]{16}|", headers[SESSION])
                verbs.append(verb)
                yield HttpMessage(child, verb, True, None, body)
            answers = list(_parsed(bytes(down)))
            assert len(answers) <= len(verbs)  # the last one may be on its way when the child ends
            for verb, ((version, status, *_), headers, body) in zip(verbs, answers, strict=False):
                assert version == "HTTP/1.1"
                assert set(headers) <= {"Content-Length"}
                yield HttpMessage(child, verb, False, int(status), body)


def _parsed(data: bytes) -> Iterator[tuple[list[str], dict[str, str], bytes]]:
    """The first line's words, the headers and the body of each message in `data`."""
    while data:
        head, blank, data = data.partition(b"\r\n\r\n")
        assert blank, head[:80]
        first, *lines = head.decode("ascii").split("\r\n")
        headers = dict(line.split(": ") for line in lines)
        length = int(headers.get("Content-Length", 0))
        assert len(data) >= length
        yield first.split(" "), headers, data[:length]
        data = data[length:]


@contextmanager
def tapped(deployment: Deployment) -> Iterator[dict[str, Relay]]:
    """A relay before every parent, at its address."""
    parents = ["cloud", *(name for name in deployment.machines() if name.startswith("edge"))]
    relays, servers = {}, []
    for name, port in zip(parents, free_ports(len(parents)), strict=True):
        path = deployment.kits / name / KIT
        head, listen, tail = path.read_text("utf-8").partition("[listen]")
        servers.append(socket.create_server((LOOPBACK, deployment.kit(name).listen.port)))
        path.write_text(head + listen + re.sub(r"port = \d+", f"port = {port}", tail), "utf-8")
        relays[name] = Relay(deployment.kits, name, port)
        threading.Thread(target=relays[name].serve, args=(servers[-1],), daemon=True).start()
    try:
        yield relays
    finally:
        for server in servers:
            server.close()


ALWAYS_TOLD = {"tables", "terms", "outputs", "class_names", "structure", "fixed", "timeout_s", "session"}
MEASURED = {"seconds", "training_seconds", "link_seconds", "missed", "lost", "bad", "bytes_from_cloud"} | {
    "bytes_to_cloud",
    "bytes_from_clients",
    "bytes_to_clients",
}
# From whom to whom, and in which call: what JSON says, and the kinds of the tensors.
Crossed = dict[tuple[str, str], set[tuple[frozenset[str], frozenset[str]]]]


def listed(*kinds: tuple[set[str], set[str]]) -> set[tuple[frozenset[str], frozenset[str]]]:
    return {(frozenset(said), frozenset(tensors)) for said, tensors in kinds}


ROUND: Crossed = {
    ("edge to cloud", "next"): listed(({"samples"}, set())),
    ("cloud to edge", "join"): listed((ALWAYS_TOLD, set())),
    ("cloud to edge", "next"): listed(
        ({"round", "sampled", "arrived", "work"}, {"start"}), ({"over"}, set())
    ),
    ("edge to cloud", "answer"): listed(
        ({"loss", "client_steps", "edge_error", "measured", "work"}, {"state"})
    ),
    ("client to edge", "next"): listed(({"samples"}, set())),
    ("edge to client", "join"): listed((ALWAYS_TOLD, set())),
    ("edge to client", "next"): listed(
        ({"round", "edge_round", "senders", "work"}, {"state"}), ({"over"}, set())
    ),
    ("client to edge", "answer"): listed(({"training_seconds", "work"}, {"update", "loss"})),
}
EVALUATION: Crossed = {
    ("cloud to edge", "next"): listed(({"evaluate", "work"}, {"model"})),
    ("edge to cloud", "answer"): listed(({"found", "work"}, set())),
    ("edge to client", "next"): listed(({"evaluate", "work"}, {"model"})),
    ("client to edge", "answer"): listed(({"loss", "metrics", "work"}, set())),
}


def crossed(messages: Sequence[HttpMessage]) -> Crossed:
    found: Crossed = defaultdict(set)
    for each in messages:
        if not each.body:
            assert each.up or each.status in (204, 503)
            continue
        child, parent = ("edge", "cloud") if each.child.startswith("edge") else ("client", "edge")
        if not each.up and each.status != 200:  # words for who joined something else, or answered too late
            assert (each.status, each.verb) in ((409, "next"), (410, "answer"))
            continue
        way = f"{child} to {parent}" if each.up else f"{parent} to {child}"
        kinds = frozenset(name.partition("/")[0] for name in each.message.tensors)
        found[way, each.verb].add((frozenset(each.message.about), kinds))
    return dict(found)


@pytest.mark.parametrize("settings", [(), ("evaluate.per=client",)], ids=["a run", "with evaluations"])
def test_nothing_else_crosses_the_links(settings: tuple[str, ...], tmp_path: Path) -> None:
    config = small(*settings)
    deployment = provisioned(config, tmp_path)
    with tapped(deployment) as relays:
        threads = [deployment.start(name) for name in deployment.machines()]
        run = deployment.run()
        for thread in threads:
            thread.join(LONG_S)
    messages = {name: list(relay.messages()) for name, relay in relays.items()}
    assert {each.child for each in messages["cloud"]} == {"edge0", "edge1"}  # and no client
    assert {each.child for each in messages["edge1"]} == {"c2", "c3"}

    everything = [each for of_parent in messages.values() for each in of_parent]
    right = {key: kinds | (EVALUATION.get(key, set()) if settings else set()) for key, kinds in ROUND.items()}
    assert crossed(everything) == right
    sent = [each.message for each in everything if each.verb in ("next", "answer") and each.body[8:9] == b"["]
    for message in sent:
        assert set(message.about.get("measured", {})) in (set(), MEASURED)

    sizes: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for message in sent:
        for name, tensor in message.tensors.items():
            kind, _, parameter = name.partition("/")
            if kind in ("start", "state"):
                sizes[parameter].add(tuple(tensor.shape))
    whole = {name: tuple(x.shape) for name, x in prepare(config, device="cpu").model.named_parameters()}
    assert whole["fc1.weight"] == (8, 784)
    assert sizes == {  # four of the eight hidden units
        "fc1.weight": {(4, 784)},
        "fc1.bias": {(4,)},
        "output.weight": {(10, 4)},
        "output.bias": {(10,)},
    }

    wire = [bytes(data) for relay in relays.values() for _, *both in relay.calls for data in both]
    for client in range(4):
        samples = safetensors.torch.load_file(deployment.kits / f"c{client}" / SAMPLES)
        for image in samples["inputs"][:50]:
            assert not any(image.contiguous().numpy().tobytes() in data for data in wire)
        targets = samples["targets"].numpy().tobytes()
        assert not any(targets in data for data in wire)
    if not settings:
        measured, of_two = (
            run.summary["measured"],
            (("cloud", "edges_to_cloud"), ("edge0", "clients_to_edges")),
        )
        for name, key in of_two:
            parents = [name] if name == "cloud" else ["edge0", "edge1"]
            sent = sum(
                len(each.body)
                for parent in parents
                for each in messages[parent]
                if each.up and each.verb == "answer"
            )
            assert measured[f"{key}_megabytes"] == pytest.approx(sent / 2**20)
