"""Ends at awkward moments: of a run while a machine is at work, of a parent while it is called, of a beat amid a call.

Each test makes one place slow, where a busy machine may be slow at any time.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deployments import LONG_S, wait_until

from histfl.deploy import server
from histfl.deploy.caller import Caller, Over
from histfl.deploy.dispatcher import Answer, Dispatcher, Missed
from histfl.deploy.kits import Address, Kit
from histfl.deploy.loopback import LOOPBACK, free_ports
from histfl.deploy.messages import Message
from histfl.deploy.provision import Site, provision

WELCOME = Message({"timeout_s": 2.0})


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    cloud, *edges = (Address(host=LOOPBACK, port=port) for port in free_ports(2))
    provision(Site(cloud, tuple(edges), (2,)), tmp_path)
    return tmp_path


@pytest.fixture
def parent(kits: Path) -> Iterator[Dispatcher]:
    """An edge, whose clients are c0 and c1."""
    with Dispatcher(Kit.read(kits / "edge0", "edge"), timeout_s=2.0) as dispatcher:
        dispatcher.welcome(WELCOME)
        yield dispatcher


@pytest.fixture
def child(kits: Path) -> Iterator[Caller]:
    one = Caller(Kit.read(kits / "c0", "client"), lambda _: None)
    yield one
    one.close()


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_who_joins_after_the_end_is_told_of_it(parent: Dispatcher, child: Caller) -> None:
    """To get ready for a run that is over may take longer than anybody waits to tell it."""
    ending = in_a_thread(parent.end)
    wait_until(lambda: parent.over)
    with pytest.raises(Over):
        child.join()
    ending.join(LONG_S)


def test_who_was_to_join_anew_is_told_of_the_end(parent: Dispatcher, child: Caller) -> None:
    """It was welcomed to something else before, and is on its way."""
    child.join()
    parent.welcome(Message({**WELCOME.about, "other": True}))
    ending = in_a_thread(parent.end)
    ending.join(0.5)
    assert ending.is_alive()
    with pytest.raises(Over):
        child.next_work({"samples": 1})
    ending.join(LONG_S)
    assert not ending.is_alive()


def test_a_short_silence_is_no_absence_at_the_end(parent: Dispatcher, child: Caller) -> None:
    """The timeout may be shorter than what a machine waits before it calls again."""
    child.join()
    child.next_work({"samples": 1})
    parent.timeout_s = 0.01
    wait_until(lambda: not parent.joined())
    ending = in_a_thread(parent.end)
    ending.join(0.5)
    assert ending.is_alive()
    with pytest.raises(Over):
        child.next_work({"samples": 1})
    ending.join(LONG_S)


def test_who_is_at_work_at_the_end_is_told_of_it_there(parent: Dispatcher, child: Caller) -> None:
    """Nobody may be there any more when it is done."""
    child.join()
    found: dict[str, Answer | Missed] = {}
    asking = in_a_thread(lambda: found.update(parent.ask({"c0": Message()}, lambda _, message: None)))
    while (work := child.next_work({"samples": 1})) is None:
        pass
    parent.deadline_s = 0.0
    asking.join(LONG_S)
    assert found == {"c0": Missed("not done after 0 s")}
    with child.alive():
        parent.end()
        parent.__exit__()
        with pytest.raises(Over):  # nobody is there to take it
            child.answer(Message({"work": work.about["work"]}))


def test_a_beat_that_is_slow_harms_nothing(
    parent: Dispatcher, child: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work may be done while it is on its way."""
    connected, begun, done = Caller._connected, threading.Event(), threading.Event()
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)

    def slowly(caller: Caller) -> Any:
        found = connected(caller)
        if caller is not child:
            begun.set()
            done.wait(LONG_S)
        return found

    child.join()
    child.timeout_s = 1.0
    monkeypatch.setattr(Caller, "_connected", slowly)
    with child.alive():
        begun.wait(LONG_S)
        (beating,) = [thread for thread in threading.enumerate() if "beat" in thread.name]
    done.set()
    beating.join(LONG_S)
    assert not failed


def test_a_connection_that_comes_as_the_parent_ends_is_cut(
    kits: Path, parent: Dispatcher, child: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its child would go on asking one that has ended, where the next one is of the same process."""
    common_name, begun, ended = server._common_name, threading.Event(), threading.Event()

    def slowly(connection: Any) -> str:
        begun.set()
        ended.wait(LONG_S)
        return common_name(connection)

    monkeypatch.setattr(server, "_common_name", slowly)
    told: list[Message] = []
    joining = in_a_thread(lambda: told.append(child.join()))
    begun.wait(LONG_S)
    parent.__exit__()
    with Dispatcher(Kit.read(kits / "edge0", "edge"), timeout_s=2.0) as other:
        other.welcome(Message({**WELCOME.about, "other": True}))
        ended.set()
        joining.join(LONG_S)
        assert told
        assert told[0].about["session"] == other.session


def test_ports_are_kept_for_those_who_ask_for_them_by_number() -> None:
    (port,) = free_ports(1)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, port))
    with socket.create_server((LOOPBACK, port)):
        pass


AT_WORK = """
import sys, threading, time
import torch
from histfl.cli import main
from histfl.deploy import client

def work():
    while True:
        torch.randn(400, 400) @ torch.randn(400, 400)

def serve_clients(*_):
    threading.Thread(target=work, daemon=True).start()
    print("at work", flush=True)
    time.sleep(600)

client.serve_clients = serve_clients
main(["client", *sys.argv[1:]])
"""


def test_an_interrupt_amid_the_work_of_several_clients_is_no_crash(kits: Path) -> None:
    """Each is a thread, which torch does not let end amid a computation: it aborts the process."""
    with subprocess.Popen(
        [sys.executable, "-c", AT_WORK, kits / "c0", kits / "c1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said.splitlines()[-1] == "histfl: interrupted; started again, it goes on where the others are"
