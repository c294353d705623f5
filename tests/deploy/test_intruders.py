"""Who is no machine of the network, or not the one that it says it is, gets nothing and stands in the log."""

import http.client
import logging
import math
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from deployments import LONG_S, wait_until

from histfl.deploy.caller import Caller, JoinAnew, Refused
from histfl.deploy.dispatcher import Answer, Dispatcher, Missed
from histfl.deploy.kits import KIT, Address, Kit
from histfl.deploy.loopback import LOOPBACK, free_ports
from histfl.deploy.messages import BadMessage, Message
from histfl.deploy.provision import AUTHORITY_FOLDER, Authority, Site, provision
from histfl.deploy.server import SESSION
from histfl.errors import UsageError

CELLS = (2, 1)
Callers = Callable[[Path, str], Caller]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    provision(_site(), folder)
    return folder


@pytest.fixture(scope="module")
def strangers(kits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits of another network, with the first one's addresses."""
    folder = tmp_path_factory.mktemp("strangers")
    edge = Kit.read(kits / "edge0", "edge").listen
    provision(Site(edge, (edge, edge), CELLS), folder)
    return folder


def _site() -> Site:
    cloud, *edges = (Address(host=LOOPBACK, port=port) for port in free_ports(3))
    return Site(cloud, tuple(edges), CELLS)


@pytest.fixture
def dispatcher(kits: Path) -> Iterator[Dispatcher]:
    """Of edge 0, whose clients are c0 and c1."""
    with Dispatcher(Kit.read(kits / "edge0", "edge"), timeout_s=2.0) as dispatcher:
        dispatcher.welcome(Message({"timeout_s": 2.0}))
        yield dispatcher


@pytest.fixture
def caller() -> Iterator[Callers]:
    """Callers of machines, which end with the test."""
    made: list[Caller] = []

    def of(kits: Path, name: str) -> Caller:
        made.append(Caller(Kit.read(kits / name, "client"), lambda _: None))
        return made[-1]

    yield of
    for each in made:
        each.close()


def call(dispatcher: Dispatcher, context: ssl.SSLContext, path: str, data: bytes = b"") -> tuple[int, str]:
    connection = http.client.HTTPSConnection(LOOPBACK, dispatcher.port, context=context, timeout=LONG_S)
    try:
        connection.request("POST", path, data, {SESSION: dispatcher.session})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def said(caplog: pytest.LogCaptureFixture, pattern: str) -> bool:
    """Whether it stands in the log, or soon does: the line comes when the connection ends."""
    wait_until(lambda: any(re.search(pattern, record.message) for record in caplog.records))
    return True


def as_caller(folder: Path) -> ssl.SSLContext:
    return Kit.read(folder, "client").as_caller()


def test_without_a_certificate(dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.create_default_context(cafile=str(kits / "c0" / "authority.pem"))
    with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
        call(dispatcher, context, "/c0/join")
    assert said(caplog, r"refused 127\.0\.0\.1: it has no certificate")


def test_of_another_authority(
    dispatcher: Dispatcher, strangers: Path, kits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = as_caller(strangers / "c0")
    context.load_verify_locations(kits / "c0" / "authority.pem")  # it would take us for ours
    with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
        call(dispatcher, context, "/c0/join")
    assert said(caplog, r"refused 127\.0\.0\.1: its certificate is of another authority")


def test_a_kit_of_another_network(
    dispatcher: Dispatcher, strangers: Path, caplog: pytest.LogCaptureFixture, caller: Callers
) -> None:
    """It does not take us for its parent, and ends in one line; and ours says who it was."""
    with pytest.raises(Refused, match=r"does not prove that it is .*another network"):
        caller(strangers, "c0").join()
    assert said(
        caplog, r"refused 127\.0\.0\.1: it does not know our authority: its kit is of another network"
    )


def test_with_anothers_name(dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture) -> None:
    status, text = call(dispatcher, as_caller(kits / "c0"), "/c1/join")
    assert (status, text) == (403, "edge0 refuses c0: it says that it is c1")
    assert said(caplog, r"refused c0 at 127\.0\.0\.1: it says that it is c1")


def test_a_client_of_another_cell_gets_no_units_of_this_one(
    dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Kit.read(kits / "c2", "client").about.cell == 1
    for verb in ("join", "next", "answer"):
        status, text = call(dispatcher, as_caller(kits / "c2"), f"/c2/{verb}", Message().to_bytes())
        assert (status, text) == (403, "edge0 refuses c2: it is no child of edge0")
    assert said(caplog, r"refused c2 at 127\.0\.0\.1: it is no child of edge0")


def test_with_an_expired_certificate(
    dispatcher: Dispatcher, kits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, caller: Callers
) -> None:
    folder = _signed_anew(kits, "c0", tmp_path, days=-1)
    with pytest.raises(Refused, match=r"refuses this machine's certificate .*expired"):
        caller(tmp_path, folder.name).join()
    assert said(caplog, r"its certificate is not valid \(certificate has expired\)")


def test_a_certificate_that_expires_is_refused_on_an_open_connection_too(
    dispatcher: Dispatcher, kits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, caller: Callers
) -> None:
    seconds = 5.0
    one = caller(_signed_anew(kits, "c0", tmp_path, days=seconds / 86400).parent, "c0")
    assert one.join().about["timeout_s"] == 2.0
    time.sleep(seconds + 1)
    with pytest.raises(Refused, match=r"refuses this machine's certificate .*expired"):
        one.next_work({"samples": 1})
    assert said(caplog, r"refused c0 at 127\.0\.0\.1: its certificate has expired")


def test_no_session_is_resumed(dispatcher: Dispatcher, kits: Path) -> None:
    """Or a certificate that was good once would open the next connections, too."""
    context, session = as_caller(kits / "c0"), None
    for _ in range(2):
        connection = socket.create_connection((LOOPBACK, dispatcher.port))
        with context.wrap_socket(connection, server_hostname=LOOPBACK, session=session) as secured:
            secured.sendall(b"POST /c0/join HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            assert secured.recv(100).startswith(b"HTTP/1.1 200")
            assert not secured.session_reused
            session = secured.session
            assert session is not None
            assert not session.has_ticket


def test_a_client_is_no_server(kits: Path, tmp_path: Path, caller: Callers) -> None:
    """With a client's certificate nobody is taken for an edge, even at its address."""
    edge, impostor = Kit.read(kits / "edge0", "edge"), Kit.read(kits / "c1", "client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(impostor.folder / "certificate.pem", impostor.folder / "key.pem")
    with socket.create_server((LOOPBACK, edge.listen.port)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            try:
                context.wrap_socket(connection, server_side=True).recv(1)
            except OSError:
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(Refused, match="does not prove that it is"):
            caller(kits, "c0").join()


def test_an_edge_is_no_other_edge(kits: Path, tmp_path: Path, caller: Callers) -> None:
    """An edge that stands at another's address has a certificate of the network, and another name."""
    text = (kits / "edge1" / KIT).read_text()
    port = Kit.read(kits / "edge0", "edge").listen.port
    other = tmp_path / "edge1"
    other.mkdir()
    for path in (kits / "edge1").iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    head, _, tail = text.partition("[listen]")
    (other / KIT).write_text(head + "[listen]" + re.sub(r"port = \d+", f"port = {port}", tail))
    with (
        Dispatcher(Kit.read(other, "edge"), timeout_s=1.0),
        pytest.raises(Refused, match="certificate of edge1, and not of edge0"),
    ):
        caller(kits, "c0").join()


@pytest.mark.parametrize("timeout_s", [None, "soon"])
def test_a_parent_of_another_version(
    dispatcher: Dispatcher, kits: Path, caller: Callers, timeout_s: str | None
) -> None:
    dispatcher.welcome(Message({} if timeout_s is None else {"timeout_s": timeout_s}))
    with pytest.raises(BadMessage, match=r"edge0 says no timeout but .*of one version everywhere\?"):
        caller(kits, "c0").join()


def test_a_parent_that_sends_more_than_there_is_room_for(kits: Path, caller: Callers) -> None:
    edge = Kit.read(kits / "edge0", "edge")
    with socket.create_server((LOOPBACK, edge.listen.port)) as server:

        def serve() -> None:
            with edge.as_server().wrap_socket(server.accept()[0], server_side=True) as secured:
                secured.recv(1000)
                secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n")
                secured.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        one = caller(kits, "c0")
        with pytest.raises(UsageError, match=r"what edge0 sends would take at least 100,000 GB"):
            one.join()
        one.close()
        thread.join(LONG_S)


def test_a_slow_link_takes_its_time(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a socket's timeout, which is of silence."""
    monkeypatch.setattr("histfl.deploy.caller.SOCKET_S", 2.0)
    edge, size, said = Kit.read(kits / "edge0", "edge"), 2**23, []
    with socket.create_server((LOOPBACK, edge.listen.port)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)

        def serve() -> None:
            with edge.as_server().wrap_socket(server.accept()[0], server_side=True) as secured:
                left = size
                while left > 0:
                    left -= len(secured.recv(2**14))
                    time.sleep(0.008)
                secured.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        one = Caller(Kit.read(kits / "c0", "client"), said.append)
        taken: list[bool] = []
        answer = Message({}, {"x": torch.zeros(size // 4)})
        thread = threading.Thread(target=lambda: taken.append(one.answer(answer)), daemon=True)
        thread.start()
        thread.join(LONG_S)
        assert (taken, said) == ([True], [])
        one.close()


def test_an_answer_counts_once(
    dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture, caller: Callers
) -> None:
    """Sent again, a message of before is refused, whoever sends it."""
    one = caller(kits, "c0")
    one.join()
    assert one.next_work({"samples": 1}) is None
    found = {}
    asking = dispatcher.ask({"c0": Message({"x": 1})}, lambda _, message: None)
    thread = threading.Thread(target=lambda: found.update(asking))
    thread.start()
    while (work := one.next_work({"samples": 1})) is None:
        pass
    answer = Message({"work": work.about["work"], "y": 2})
    assert one.answer(answer)
    thread.join(LONG_S)
    assert isinstance(found["c0"], Answer)
    assert found["c0"].message.about["y"] == 2
    assert not one.answer(answer)
    assert said(caplog, r"refused c0 at 127\.0\.0\.1: an answer that nobody waits for")
    status, _ = call(dispatcher, as_caller(kits / "c1"), "/c1/answer", answer.to_bytes())
    assert status == 410


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            BadMessage("its update has numbers in fc1.weight that are not finite"),
            "its update has numbers in fc1",
        ),
        (OverflowError("too large"), "its answer is odd: OverflowError: too large"),
    ],
    ids=["refused", "stumbled over"],
)
def test_a_bad_answer_is_named_and_left_out(
    error: Exception,
    reason: str,
    dispatcher: Dispatcher,
    kits: Path,
    caplog: pytest.LogCaptureFixture,
    caller: Callers,
) -> None:
    def check(name: str, message: Message) -> None:
        raise error

    one, found = caller(kits, "c0"), {}
    one.join()
    one.next_work({"samples": 1})
    asking = dispatcher.ask({"c0": Message()}, check)
    thread = threading.Thread(target=lambda: found.update(asking))
    thread.start()
    while (work := one.next_work({"samples": 1})) is None:
        pass
    assert not one.answer(Message({"work": work.about["work"]}))
    thread.join(LONG_S)
    assert isinstance(found["c0"], Missed)
    assert found["c0"].bad
    assert said(caplog, rf"refused c0 at 127\.0\.0\.1: {reason}.*; it is left out")


def test_who_is_alive_and_does_not_answer_is_named(
    dispatcher: Dispatcher,
    kits: Path,
    caplog: pytest.LogCaptureFixture,
    caller: Callers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is left out for long work, so a round may wait without end: it says for whom, at doubling times."""
    monkeypatch.setattr("histfl.deploy.dispatcher.SAY_AFTER_S", 0.5)
    one, found = caller(kits, "c0"), {}
    one.join()
    asking = dispatcher.ask({"c0": Message()}, lambda _, message: None)
    thread = threading.Thread(target=lambda: found.update(asking))
    one.next_work({"samples": 1})
    thread.start()
    seconds: list[int] = []
    while len(seconds) < 2:
        call(dispatcher, as_caller(kits / "c0"), "/c0/alive")
        said = [re.search(r"still waiting for c0, .* after (\d+) s", each.message) for each in caplog.records]
        seconds = [int(line[1]) for line in said if line is not None]
    assert not found
    assert seconds[0] >= 2  # the timeout
    assert seconds[1] >= 4
    thread.join(LONG_S)
    assert isinstance(found["c0"], Missed)


def test_who_is_at_work_for_too_long_is_left_out_until_it_is_done(
    dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture, caller: Callers
) -> None:
    dispatcher.timeout_s = LONG_S
    one = caller(kits, "c0")
    one.join()
    one.next_work({"samples": 1})
    found: list[dict[str, object]] = [{}, {}, {}]

    def ask(turn: int) -> threading.Thread:
        asking = dispatcher.ask({"c0": Message()}, lambda _, message: None)
        thread = threading.Thread(target=lambda: found[turn].update(asking))
        thread.start()
        return thread

    def taken() -> Message:
        while (work := one.next_work({"samples": 1})) is None:
            pass
        return work

    thread = ask(0)
    work = taken()
    dispatcher.deadline_s = 0.5
    thread.join(LONG_S)
    assert found[0] == {"c0": Missed("not done after 0.5 s")}
    assert dispatcher.joined() == {}
    dispatcher.deadline_s = math.inf
    ask(1).join(LONG_S / 2)  # it is at work still, and not waited for again
    assert isinstance(found[1]["c0"], Missed)
    assert not one.answer(Message({"work": work.about["work"]}))  # nobody waits for it any more
    one.next_work({"samples": 1})
    assert set(dispatcher.joined()) == {"c0"}
    thread = ask(2)
    assert one.answer(Message({"work": taken().about["work"]}))
    thread.join(LONG_S)
    assert isinstance(found[2]["c0"], Answer)
    said = [record.message for record in caplog.records]
    assert said.count("going on without c0: not done after 0.5 s") == 1
    assert said.count("c0 is heard again") == 1


def test_nobody_is_asked_nothing(dispatcher: Dispatcher) -> None:
    assert list(dispatcher.ask({}, lambda _, message: None)) == []


GARBAGE = {
    "no message": (b"garbage", 422, "7 bytes are no message of ours"),
    "no safetensors": ((2).to_bytes(8) + b"[]" + b"x" * 50, 422, "damaged message"),
    "a length without a body": (b"", 422, "0 bytes are no message"),
}


@pytest.mark.parametrize(("data", "status", "reason"), GARBAGE.values(), ids=GARBAGE)
def test_garbage(dispatcher: Dispatcher, kits: Path, data: bytes, status: int, reason: str) -> None:
    found, text = call(dispatcher, as_caller(kits / "c0"), "/c0/next", data)
    assert found == status
    assert reason in text


def test_an_answer_that_nobody_waits_for_is_not_read(
    dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A member's large ones would keep the parent busy."""
    assert call(dispatcher, as_caller(kits / "c0"), "/c0/answer", b"garbage")[0] == 410
    assert said(caplog, r"refused c0 at 127\.0\.0\.1: an answer that nobody waits for")


def test_calls_that_are_none_of_ours(
    dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = as_caller(kits / "c0")
    assert call(dispatcher, context, "/") == (403, "edge0 refuses c0: it says that it is nobody")
    for path in ("/c0/exec", "/c0", "/c0/../../etc/passwd"):
        assert call(dispatcher, context, path) == (400, f"no call of ours: '{path}'")
        assert said(caplog, rf"refused c0 at 127\.0\.0\.1: no call of ours: '{re.escape(path)}'")
    for raw, reason in (
        (b"POST /c0/next HTTP/1.1\r\n\r\n", "no call of ours: '/c0/next'"),
        (b"POST /c0/next HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "no call of ours: '/c0/next'"),
        (b"POST /c1/next HTTP/1.1\r\n\r\n", "it says that it is c1"),
        (b"GET /c0/join HTTP/1.1\r\n\r\n", r"no call of ours: Unsupported method \('GET'\)"),
        (b"nonsense\r\n\r\n", r"no call of ours: Bad request syntax \('nonsense'\)"),
        (b"POST /" + 2**16 * b"x", "no call of ours: 414"),
    ):
        with context.wrap_socket(
            socket.create_connection((LOOPBACK, dispatcher.port)), server_hostname=LOOPBACK
        ) as secured:
            secured.sendall(raw)
            assert b"<" not in secured.recv(1000)  # no page of the library's
        assert said(caplog, f"refused c0 at 127\\.0\\.0\\.1: {reason}")
    connection = http.client.HTTPSConnection(LOOPBACK, dispatcher.port, context=context, timeout=LONG_S)
    dispatcher._limit = 10**9
    for verb, length in (("answer", 10**12), ("next", 10**4), ("alive", 10**4)):
        connection.putrequest("POST", f"/c0/{verb}")
        connection.putheader("Content-Length", str(length))
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()


def test_plain_text_and_silence_keep_nobody_waiting(
    dispatcher: Dispatcher,
    kits: Path,
    caplog: pytest.LogCaptureFixture,
    caller: Callers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("histfl.deploy.server.HANDSHAKE_S", 1.0)
    silent = socket.create_connection((LOOPBACK, dispatcher.port))
    with socket.create_connection((LOOPBACK, dispatcher.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert said(caplog, r"refused 127\.0\.0\.1: it does not speak TLS")
    assert caller(kits, "c0").join().about["timeout_s"] == 2.0
    assert said(caplog, r"refused 127\.0\.0\.1: no TLS handshake in 1 s")
    silent.close()


def test_nobody_is_kept_out_by_what_others_open(
    dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture, caller: Callers
) -> None:
    """Of a machine's connections, and of handshakes that go on, the oldest one makes room."""
    member = as_caller(kits / "c1")
    held = [
        http.client.HTTPSConnection(LOOPBACK, dispatcher.port, context=member, timeout=LONG_S)
        for _ in range(90)
    ]
    silent = []
    try:
        for each in held:
            each.connect()
            wait_until(lambda: not dispatcher._server._open[""])  # or it may be taken for an older one
        assert said(caplog, r"refused c1 at 127\.0\.0\.1: more than 4 connections")
        silent += [socket.create_connection((LOOPBACK, dispatcher.port)) for _ in range(90)]
        assert said(caplog, r"refused 127\.0\.0\.1: more than 64 connections")
        assert call(dispatcher, as_caller(kits / "c0"), "/c0/join")[0] == 200
        held[-1].request("POST", "/c1/join", b"", {SESSION: ""})
        assert held[-1].getresponse().status == 200
    finally:
        for other in (*held, *silent):
            other.close()


def test_a_line_of_the_log_comes_once_a_minute(
    dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        call(dispatcher, as_caller(kits / "c0"), "/c1/join")
    assert said(caplog, "it says that it is c1")
    assert len([record for record in caplog.records if "it says that it is c1" in record.message]) == 1


def test_a_callers_words_neither_flood_the_log_nor_steer_a_terminal(
    dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context, address = as_caller(kits / "c0"), (LOOPBACK, dispatcher.port)
    with context.wrap_socket(socket.create_connection(address), server_hostname=LOOPBACK) as secured:
        secured.sendall(b"POST /\x1b[2J/join HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert secured.recv(100).startswith(b"HTTP/1.1 403")
    assert said(caplog, r"it says that it is \?\[2J")
    for number in range(50):
        assert call(dispatcher, context, f"/x{number}/join")[0] == 403
    assert len([record for record in caplog.records if "refused c0" in record.message]) == 20


def test_another_session_joins_anew(dispatcher: Dispatcher, kits: Path, caller: Callers) -> None:
    one = caller(kits, "c0")
    one.join()
    assert one.next_work({"samples": 1}) is None
    dispatcher.welcome(Message({"timeout_s": 2.0, "other": True}))
    with pytest.raises(JoinAnew):
        one.next_work({"samples": 1})
    assert one.join().about["other"]


def test_no_secret_stands_in_the_log(
    dispatcher: Dispatcher, kits: Path, caplog: pytest.LogCaptureFixture, caller: Callers
) -> None:
    caplog.set_level(logging.DEBUG)
    one = caller(kits, "c0")
    one.join()
    call(dispatcher, as_caller(kits / "c0"), "/c1/join")
    key = (kits / "c0" / "key.pem").read_text().splitlines()[1]
    assert key not in caplog.text
    assert one.session not in caplog.text


def _signed_anew(kits: Path, name: str, out: Path, *, days: float) -> Path:
    """The kit of that name with a certificate that ends in so many days, signed by the network's authority."""
    folder = out / name
    folder.mkdir()
    for path in (kits / name).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    certificate, key = Authority.at(kits / AUTHORITY_FOLDER, 1).issue(name, "client", None, 1, ended=-days)
    (folder / "certificate.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key)
    return folder


def test_certificates_are_what_openssl_takes_them_for(kits: Path) -> None:
    verify = ["openssl", "verify", "-x509_strict", "-CAfile", str(kits / "c0" / "authority.pem")]
    for name, purpose in (
        ("c0", "sslclient"),
        ("edge0", "sslserver"),
        ("edge0", "sslclient"),
        ("cloud", "sslserver"),
    ):
        done = subprocess.run(
            [*verify, "-purpose", purpose, str(kits / name / "certificate.pem")], capture_output=True
        )
        assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [*verify, "-purpose", "sslserver", str(kits / "c0" / "certificate.pem")], capture_output=True
    )
    assert done.returncode != 0
