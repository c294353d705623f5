"""The child's side of a link: it joins its parent, asks for work, answers, and goes on trying where that is away."""

from __future__ import annotations

import http.client
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from histfl.deploy.kits import Kit
from histfl.deploy.messages import BadMessage, Message
from histfl.deploy.server import PART, SESSION
from histfl.errors import HistflError, UsageError
from histfl.limits import check_memory
from histfl.terminal import in_a_line

_log = logging.getLogger(__name__)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 3.0  # between tries
BEAT_S = 5.0  # at most, between words of being at work
SAY_AGAIN_S = 60.0
SOCKET_S = 20.0  # without a byte, after which a connection is made anew
BUFFERED = 2**22  # bytes that the system takes and may not have sent yet
SLOWEST = 2**15  # bytes a second of a link, with which it is waited for them


class JoinAnew(Exception):
    """The parent is another one than before, or does something else."""


class Over(Exception):
    """The parent says that all is done."""


class Refused(UsageError):
    """The parent does not take this machine for what it says it is, or the other way round."""


class Caller:
    """Calls of one machine to its parent, one at a time."""

    def __init__(self, kit: Kit, say: Callable[[str], None]) -> None:
        self.kit, self.parent, self._say = kit, kit.parent, say
        self._context = kit.as_caller()
        self._connection: http.client.HTTPSConnection | None = None
        self.session = ""
        self.timeout_s = 60.0
        self._over = False  # as was said amid work

    def join(self) -> Message:
        """What the parent is about, as soon as it is there."""
        said = False
        while (welcome := self._call("join", b"")) is None:
            if not said:
                self._say(f"{self.parent.name} is there, and not ready yet")
                said = True
            time.sleep(0.5)
        message = _unless_over(welcome)
        timeout_s = message.about.get("timeout_s")
        if not isinstance(timeout_s, int | float):
            raise BadMessage(
                f"{self.parent.name} says no timeout but {timeout_s!r:.40}; is histfl of one version everywhere?"
            )
        self.session, self.timeout_s = str(message.about.get("session", "")), float(timeout_s)
        return message

    def next_work(self, about: Mapping[str, Any]) -> Message | None:
        """Work, if there is any by now; `about` is what this machine says of itself."""
        found = self._call("next", Message(about).to_bytes())
        return None if found is None else _unless_over(found)

    def answer(self, message: Message) -> bool:
        """Send an answer; whether the parent took it."""
        return self._call("answer", message.to_bytes()) is not None

    @contextmanager
    def alive(self) -> Iterator[None]:
        """While inside, the parent hears that this machine is at work, and may say that all is done: it may be away when
        the work is."""
        done = threading.Event()
        pulse = Caller(self.kit, lambda _: None)

        def beat() -> None:
            while not done.wait(max(min(self.timeout_s / 5, BEAT_S), 0.2)):
                try:
                    self._over = self._over or pulse._once("alive", b"") is not None
                except (OSError, http.client.HTTPException, HistflError):
                    pulse.close()
            pulse.close()  # here, where no call of its goes on

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, verb: str, data: bytes) -> bytes | None:
        """What the parent answers, None for nothing yet; it is called until it does."""
        wait, away_since, said_at = FIRST_WAIT_S, time.monotonic(), None
        while not self._over:
            try:
                found = self._once(verb, data)
                if said_at is not None:
                    self._say(
                        f"{self.parent.name} is there again, after {time.monotonic() - away_since:.0f} s"
                    )
                return found
            except ssl.SSLError as error:
                self.close()
                if (refused := self._refused(error)) is not None:
                    raise refused from None
                reason = error.reason or str(error)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if said_at is None or time.monotonic() - said_at > SAY_AGAIN_S:
                said_at = time.monotonic()
                self._say(
                    f"{self.parent.name} at {self.parent.place} does not answer ({reason}); trying again"
                )
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)
        raise Over

    def _once(self, verb: str, data: bytes) -> bytes | None:
        connection = self._connected()
        view = memoryview(data)  # a timeout is of one part, not of all of it, whatever the link takes
        parts = (view[start : start + PART] for start in range(0, len(data), PART))
        headers = {SESSION: self.session, "Content-Length": str(len(data))}
        connection.sock.settimeout(SOCKET_S)
        connection.request("POST", f"/{self.kit.name}/{verb}", parts, headers)
        connection.sock.settimeout(SOCKET_S + min(len(data), BUFFERED) / SLOWEST)
        response = connection.getresponse()
        said = f"what {self.parent.name} sends"
        check_memory(said, response.length or 0, "is it that of the network, and the model as it should be?")
        body = response.read()
        if response.status == 200:
            return body
        if response.status in (204, 503):
            return b"" if verb == "answer" else None
        self.close()
        text = in_a_line(body[:300].decode("utf-8", "replace"))
        if response.status == 409:
            raise JoinAnew
        if response.status in (410, 422):
            _log.warning("%s did not take the answer: %s", self.parent.name, text)
            return None
        raise Refused(f"{self.parent.name} answers {response.status}: {text}")

    def _connected(self) -> http.client.HTTPSConnection:
        if self._connection is None or self._connection.sock is None:  # which never opens by itself, unproved
            made = http.client.HTTPSConnection(
                self.parent.host, self.parent.port, timeout=SOCKET_S, context=self._context
            )
            made.connect()
            self._connection = made
            certificate: Any = made.sock.getpeercert()
            names = [value for part in certificate["subject"] for key, value in part if key == "commonName"]
            if names != [self.parent.name]:
                self.close()
                raise Refused(
                    f"{self.parent.place} has the certificate of {', '.join(names)}, and not of "
                    f"{self.parent.name}; check [parent] in {self.kit.folder}/kit.toml"
                )
        return self._connection

    def _refused(self, error: ssl.SSLError) -> Refused | None:
        """What cannot be mended by trying again."""
        place = f"{self.parent.name} at {self.parent.place}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return Refused(
                f"{place} does not prove that it is ({error.verify_message}); is this kit of another network, or a "
                "certificate out of date?"
            )
        if "ALERT" in (error.reason or ""):
            return Refused(
                f"{place} refuses this machine's certificate ({(error.reason or '').lower().replace('_', ' ')}); take a "
                "kit of its network, and check its date"
            )
        return None


def _unless_over(data: bytes) -> Message:
    message = Message.of(data)
    if message.about.get("over"):
        raise Over
    return message
