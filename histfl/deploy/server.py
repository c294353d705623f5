"""HTTPS with mutual TLS: who calls is told by the certificate alone, and who is refused stands in the log."""

from __future__ import annotations

import logging
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Protocol

from histfl.deploy.kits import Kit
from histfl.deploy.messages import BadMessage, Message
from histfl.errors import UsageError, in_one_line

_log = logging.getLogger(__name__)
HANDSHAKE_S = 10.0
IDLE_S = 120.0  # that a connection may be silent between two calls
SESSION = "X-Session"
VERBS = ("alive", "join", "next", "answer")
SMALLEST_LIMIT = 2**24  # bytes of an answer that are never too many
PART = 2**16  # bytes that are sent or taken at once
MOST_HANDSHAKES = 64  # at a time
MOST_CONNECTIONS = 4  # of one machine at a time: it needs two, and a link that was cut may leave some behind


class Receiver(Protocol):
    """Whom the calls reach, each in a thread of its own."""

    kit: Kit

    def limit(self, verb: str) -> int:
        """The most bytes that such a call may have."""
        ...

    def heard(self, name: str) -> None:
        """The child of that name is there."""
        ...

    def refused(self, who: str, why: str) -> None:
        """For the log."""
        ...

    def alive(self, name: str) -> bytes | None:
        """What a child at work is to know, if anything."""
        ...

    def join(self, name: str) -> bytes | None:
        """What there is to join, if there is anything yet."""
        ...

    def next_work(self, name: str, session: str, about: Mapping[str, Any]) -> bytes | None:
        """The child's work, after some waiting None where there is none; a KeyError where it has to join anew."""
        ...

    def gave(self, name: str, message: bytes) -> None:
        """What `alive`, `join` or `next_work` had for that child is written."""
        ...

    def take(self, name: str, data: bytes) -> None:
        """A child's answer; a BadMessage where it is none, a KeyError where nobody waits for it."""
        ...


class Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, kit: Kit, dispatcher: Receiver) -> None:
        self.dispatcher, self.context = dispatcher, kit.as_server()
        self._open: dict[str, list[ssl.SSLSocket]] = {}  # by machine, and "" for those who are to prove it
        self._changing = threading.Lock()
        self._closed = False
        where = (kit.listen.host, kit.listen.port)
        if ":" in where[0]:
            self.address_family = socket.AF_INET6
        try:
            super().__init__(where, _Handler)
        except OSError as error:
            raise UsageError(
                f"{kit.name} cannot listen on {where[0]}, port {where[1]}: {error.strerror or error}; is it started twice, "
                "or is that no address of this machine ([listen] in kit.toml)?"
            ) from None

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's looks its own name up, which may take long
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]

    def server_close(self) -> None:
        """Also of those who have called: they are to call the next one."""
        super().server_close()
        with self._changing:
            self._closed = True
            for connections in self._open.values():
                for connection in connections:
                    _cut(connection)

    @contextmanager
    def _held(self, connection: ssl.SSLSocket, name: str, most: int, who: str) -> Iterator[None]:
        """Among the `most` newest of that name: nobody else is kept out by what one opens, and a machine whose link
        comes back is let in."""
        with self._changing:
            own = self._open.setdefault(name, [])
            own.append(connection)
            if self._closed:  # meanwhile
                _cut(connection)
            if full := len(own) > most:
                _cut(own.pop(0))
        if full:
            self.dispatcher.refused(
                who, f"more than {most} connections at a time, of which the oldest is closed"
            )
        try:
            yield
        finally:
            with self._changing:
                if connection in own:
                    own.remove(connection)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread: nobody waits for another's handshake."""
        address = str(client_address[0])
        try:
            request.settimeout(HANDSHAKE_S)
            with self.context.wrap_socket(
                request, server_side=True, do_handshake_on_connect=False
            ) as secured:
                with self._held(secured, "", MOST_HANDSHAKES, address):
                    try:
                        secured.do_handshake()
                    except TimeoutError:
                        self.dispatcher.refused(address, f"no TLS handshake in {HANDSHAKE_S:g} s")
                        return
                name = _common_name(secured)
                with self._held(secured, name, MOST_CONNECTIONS, f"{name} at {address}"):
                    _Handler(secured, client_address, self)
        except ssl.SSLError as error:
            if reason := _why(error):
                self.dispatcher.refused(address, reason)
        except (TimeoutError, OSError):
            pass  # it is gone, or was no caller of ours

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.exception("a call from %s failed", client_address[0])


_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know our authority: its kit is of another network",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that our certificate has expired",
    "HTTP_REQUEST": "it does not speak TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks no TLS 1.3",
}


def _why(error: ssl.SSLError) -> str | None:
    """Why a handshake failed; None where the connection was just closed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        other = "self-signed" in error.verify_message or "issuer" in error.verify_message
        return (
            f"its certificate is {'of another authority' if other else 'not valid'} ({error.verify_message})"
        )
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    return _REASONS.get(error.reason or "", f"no TLS handshake ({error.reason or in_one_line(error)})")


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_S
    _child: str | None = None  # who calls, once that is sure

    def do_POST(self) -> None:
        dispatcher, who = self.server.dispatcher, self._who
        if _is_over(self.connection):
            dispatcher.refused(who, "its certificate has expired")
            self.close_connection = True  # the handshake of its next one tells it so
            return
        caller, (name, _, verb) = _common_name(self.connection), self.path.strip("/").partition("/")
        if caller != name or name not in dispatcher.kit.children:
            other = f"it says that it is {name[:40] or 'nobody'}"
            why = other if caller != name else f"it is no child of {dispatcher.kit.name}"
            dispatcher.refused(who, why)
            self._say(403, f"{dispatcher.kit.name} refuses {caller}: {why}")
            return
        length = self.headers.get("Content-Length", "")
        if verb not in VERBS or not length.isdecimal():
            self._refuse(400, f"no call of ours: {self.path[:80]!r}")
            return
        limit = dispatcher.limit(verb)
        if len(length) > 20 or int(length) > limit:
            self._refuse(413, f"a message of {length[:20]} bytes, where {limit} are the most")
            return
        self._child = name
        data = self._read(int(length), dispatcher, name)
        try:
            self._answer(dispatcher, name, verb, data)
        except BadMessage as error:
            dispatcher.refused(who, f"{error}; it is left out")
            self._say(422, str(error))

    def _answer(self, dispatcher: Receiver, name: str, verb: str, data: bytes) -> None:
        dispatcher.heard(name)
        if verb == "alive":
            self._hand_over(dispatcher, name, dispatcher.alive(name), nothing=204)
        elif verb == "join":
            self._hand_over(dispatcher, name, dispatcher.join(name), nothing=503)
        elif verb == "next":
            try:
                work = dispatcher.next_work(name, self.headers.get(SESSION, ""), Message.of(data).about)
            except KeyError:
                self._say(409, "join anew")
                return
            self._hand_over(dispatcher, name, work, nothing=204)
        else:
            try:
                dispatcher.take(name, data)
            except KeyError:
                dispatcher.refused(
                    self._who,
                    "an answer that nobody waits for: late, sent twice, or of a second machine with its kit",
                )
                self._say(410, "nobody waits for this answer any more")
                return
            self._give(204)

    def _hand_over(self, dispatcher: Receiver, name: str, message: bytes | None, *, nothing: int) -> None:
        if message is None:
            self._give(nothing)
            return
        self._give(200, message)
        dispatcher.gave(name, message)

    def _read(self, length: int, dispatcher: Receiver, name: str) -> bytes:
        """The body; whoever is sending is there, however slow."""
        parts = []
        while length:
            part = self.rfile.read1(min(length, PART))
            if not part:
                raise ConnectionResetError
            dispatcher.heard(name)
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _give(self, code: int, data: bytes = b"") -> None:
        self.send_response_only(code)
        if code != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        view = memoryview(data)
        for start in range(0, len(data), PART):
            self.wfile.write(view[start : start + PART])
            if self._child is not None:  # who takes it is there, however slowly
                self.server.dispatcher.heard(self._child)

    @property
    def _who(self) -> str:
        return f"{_common_name(self.connection)} at {self.client_address[0]}"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Of what is no POST, or not HTTP: no page of the base class."""
        self._refuse(code, f"no call of ours: {message or code}")

    def _refuse(self, code: int, why: str) -> None:
        self.server.dispatcher.refused(self._who, why)
        self._say(code, why)

    def _say(self, code: int, text: str) -> None:
        self.close_connection = True
        self._give(code, text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s: " + format, self.client_address[0], *args)


def _cut(connection: ssl.SSLSocket) -> None:
    """Whoever reads from it, or writes to it, in another thread comes to its end."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _is_over(connection: Any) -> bool:
    """Whether the caller's certificate has expired since it called."""
    return ssl.cert_time_to_seconds((connection.getpeercert() or {})["notAfter"]) < time.time()


def _common_name(connection: Any) -> str:
    """Whose certificate the caller has; it is of our authority, or there would be no connection."""
    certificate = connection.getpeercert() or {}
    return next(
        (value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"), "?"
    )
