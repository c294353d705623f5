"""Machines as network namespaces of this one, joined by links of a set rate and delay. Linux, as root, with iproute2.

A link is a pair of TUN devices, one in each namespace. `tc` (tbf) shapes both to the link's rate, and what one sends is
given to the other after the link's delay by a thread of this process, so that no kernel needs netem; it sees every
packet. A link that is cut swallows packets without a word, as one does whose cable was cut far away.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import json
import os
import select
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from machines import PORT, Deployment

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES = 2048
QUEUE_MS, BURST = 500, "16kb"  # of tbf


@dataclass(frozen=True)
class Link:
    """Between a machine and its parent, which has one address on all its links."""

    parent: str
    child: str
    parent_address: str
    child_address: str
    mbit: float
    delay_s: float


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Namespaces:
    """The machines of `links`, until the end of the with-block. No machine passes packets on."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = tuple(links)
        self._tag = f"hf{os.getpid()}"
        self._names = dict.fromkeys(name for link in links for name in (link.parent, link.child))
        self._ends: dict[str, tuple[int, int]] = {}
        self._seen: Counter[tuple[str, bytes]] = Counter()  # packets by link and by sender and receiver
        self._cut: set[str] = set()
        self._done = threading.Event()

    def __enter__(self) -> Self:
        for name in self._names:
            run("ip", "netns", "add", self.of(name))
            run("ip", "-n", self.of(name), "link", "set", "lo", "up")
            for switch in (
                "ipv4.ip_forward=0",
                "ipv6.conf.all.disable_ipv6=1",
                "ipv6.conf.default.disable_ipv6=1",
            ):
                self.inside(name, "sysctl", "-q", "-w", f"net.{switch}")
        for parent, address in {link.parent: link.parent_address for link in self.links}.items():
            run("ip", "-n", self.of(parent), "addr", "add", f"{address}/32", "dev", "lo")
        for number, link in enumerate(self.links):
            down = self._end(f"{self._tag}a{number}", link.parent, link.child, link)
            up = self._end(f"{self._tag}b{number}", link.child, link.parent, link)
            ns = self.of(link.child)
            run("ip", "-n", ns, "addr", "add", f"{link.child_address}/32", "dev", link.parent)
            run("ip", "-n", ns, "route", "add", link.parent_address, "dev", link.parent)
            run("ip", "-n", self.of(link.parent), "route", "add", link.child_address, "dev", link.child)
            self._ends[link.child] = down, up
        self._wires = threading.Thread(target=self._carry, daemon=True)
        self._wires.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._wires.join()
        for end in itertools.chain(*self._ends.values()):
            os.close(end)
        for name in self._names:
            run("ip", "netns", "del", self.of(name))

    def of(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def prefix(self, name: str) -> list[str]:
        """Words before a command that is to run on a machine; the process is the command's own."""
        return ["ip", "netns", "exec", self.of(name)]

    def inside(self, name: str, *words: str) -> str:
        return run(*self.prefix(name), *words)

    def _end(self, made: str, name: str, called: str, link: Link) -> int:
        """A link's device on the machine `name`, there called as the machine that it leads to."""
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", made.encode(), IFF_TUN | IFF_NO_PI))
        ns = self.of(name)
        run("ip", "link", "set", made, "netns", ns)
        run("ip", "-n", ns, "link", "set", made, "name", called, "addrgenmode", "none", "up")
        shape = ["tbf", "rate", f"{link.mbit}mbit", "burst", BURST, "latency", f"{QUEUE_MS}ms"]
        run("tc", "-n", ns, "qdisc", "add", "dev", called, "root", *shape)
        return end

    def _carry(self) -> None:
        """Give what one end of a link sends to its other end, when the link's delay is over."""
        other: dict[int, tuple[int, Link]] = {}
        poll, count = select.epoll(), itertools.count()
        for link in self.links:
            down, up = self._ends[link.child]
            other |= {down: (up, link), up: (down, link)}
            for end in (down, up):
                poll.register(end, select.EPOLLIN)
        waiting: list[tuple[float, int, int, str, bytes]] = []
        while not self._done.is_set():
            left = waiting[0][0] - time.monotonic() if waiting else 0.2
            for end, _ in poll.poll(max(0.0, left)):
                to, link = other[end]
                with contextlib.suppress(OSError):
                    while True:
                        packet = os.read(end, PACKET_BYTES)
                        self._seen[link.child, packet[12:20]] += 1
                        due = time.monotonic() + link.delay_s
                        heapq.heappush(waiting, (due, next(count), to, link.child, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, to, child, packet = heapq.heappop(waiting)
                if child not in self._cut:
                    with contextlib.suppress(OSError):
                        os.write(to, packet)

    def cut(self, child: str) -> None:
        """Nothing passes the link of that machine to its parent, in both directions."""
        self._cut.add(child)

    def mend(self, child: str) -> None:
        self._cut.discard(child)

    def traffic(self, name: str) -> dict[str, dict[str, int]]:
        """Bytes, of whole IP packets, that a machine sent and got on each of its links."""
        found = json.loads(run("ip", "-n", self.of(name), "-s", "-j", "link"))
        return {
            each["ifname"]: {
                "sent": each["stats64"]["tx"]["bytes"],
                "received": each["stats64"]["rx"]["bytes"],
            }
            for each in found
            if each["ifname"] != "lo"
        }

    def others(self) -> dict[str, int]:
        """Packets on each link, named by its child, that were not from one end of it to the other."""
        found, seen = {}, dict(self._seen)
        for link in self.links:
            ends = socket.inet_aton(link.parent_address), socket.inet_aton(link.child_address)
            own = {ends[0] + ends[1], ends[1] + ends[0]}
            found[link.child] = sum(
                count for (child, pair), count in seen.items() if child == link.child and pair not in own
            )
        return found


def star(
    cells: Sequence[int], *, edge_mbit: float, edge_delay_s: float, client_mbit: float, client_delay_s: float
) -> list[Link]:
    """A cloud, an edge a cell and its clients; edges reach the cloud, and clients their edge."""
    links, client = [], 0
    for cell, clients in enumerate(cells):
        links.append(Link("cloud", f"edge{cell}", CLOUD, f"10.0.0.{2 + cell}", edge_mbit, edge_delay_s))
        for each in range(clients):
            address = f"10.1.{cell}.{2 + each}"
            links.append(
                Link(f"edge{cell}", f"c{client}", edge_address(cell), address, client_mbit, client_delay_s)
            )
            client += 1
    return links


CLOUD = "10.0.0.1"


def edge_address(cell: int) -> str:
    """Where a cell's clients reach their edge."""
    return f"10.1.{cell}.1"


@contextmanager
def in_namespaces(
    settings: Sequence[str],
    cells: int,
    clients: int,
    *,
    timeout_s: float = 60.0,
    start_s: float = 300.0,
    client_mbit: float = 20,
    forked: bool = True,
) -> Iterator[tuple[Deployment, Namespaces]]:
    """A deployment, not started yet, a namespace a machine: clients by 5 ms, edges by 100 Mbit/s and 10 ms. Its
    processes are forked from one that has the modules, or start from nothing."""
    links = star(
        [clients // cells] * cells,
        edge_mbit=100,
        edge_delay_s=0.01,
        client_mbit=client_mbit,
        client_delay_s=0.005,
    )

    def address(cell: int | None) -> str:
        return f"{CLOUD if cell is None else edge_address(cell)}:{PORT}"

    with tempfile.TemporaryDirectory(prefix="histfl-namespaces-") as folder, Namespaces(links) as network:
        here = Deployment(
            Path(folder) / "here",
            settings,
            cells,
            clients,
            timeout_s=timeout_s,
            start_s=start_s,
            address=address,
            prefix=network.prefix,
            forked=network.of if forked else None,
        )
        with here as deployment:
            yield deployment, network
