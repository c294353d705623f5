"""The parent's side of a link: it gives its children work, the cloud its edges and an edge its clients, and takes their
answers. They call, it never calls them.

A child joins, asks for work, which may keep it waiting, and sends its answer. All of it is HTTPS with mutual TLS: who
calls is told by the certificate alone. A child is there as long as something is heard of it.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from histfl.deploy.kits import Kit
from histfl.deploy.messages import BadMessage, Message
from histfl.deploy.protocol import check_samples
from histfl.deploy.server import SMALLEST_LIMIT, Server
from histfl.errors import in_one_line
from histfl.terminal import in_a_line

_log = logging.getLogger(__name__)
POLL_S = 5.0  # that a child waits for work at most before it asks again
END_S = 2 * POLL_S  # that all are waited for who are to be told of the end
FIRST_POLL_S = 0.5  # before its first work: until then it has news, of who is ready
MOST_TAKES = 20  # of the same work, by a child that is lost or started again before it has answered
SAY_AFTER_S = 60.0  # who keeps a round waiting, and after twice as long again, and so on
TELL_AGAIN_S = 60.0  # about one and the same refusal
MOST_TOLD = 20  # refusals of one caller in that time
OVER = Message({"over": True}).to_bytes()


@dataclass(frozen=True)
class Answer:
    """A child's, with the seconds from when it took the work and the bytes of both."""

    message: Message
    seconds: float
    bytes_out: int
    bytes_in: int


@dataclass(frozen=True)
class Missed:
    """Why a child has no answer: it was silent, or sent a `bad` one."""

    reason: str
    bad: bool = False


Check = Callable[[str, Message], object]  # a BadMessage where the answer of the child of that name is none


@dataclass
class _Child:
    # What it said of itself last: {} until it has, None before it joins.
    about: Mapping[str, Any] | None = None
    heard_at: float = float("-inf")
    work: str | None = None
    message: bytes = b""
    taken_at: float | None = None
    takes: int = 0
    worked: bool = False
    found: Answer | Missed | None = None
    late: bool = False  # still at work on what is not waited for any more
    over: bool = False  # it was told that all is over


class Dispatcher:
    """`welcome` is what a child gets when it joins, or None as long as there is nothing to join. `watch` is called as
    long as children are waited for, and raises what ends that."""

    def __init__(self, kit: Kit, *, timeout_s: float, watch: Callable[[], None] = lambda: None) -> None:
        self.kit, self.timeout_s, self._watch = kit, timeout_s, watch
        self.deadline_s = math.inf  # of a child's work
        self.session = secrets.token_hex(8)
        self.over = False
        self._welcome: Message | None = None
        self._children = {name: _Child() for name in kit.children}
        self._changed = threading.Condition()
        self._check: Check = lambda name, message: None
        self._limit = SMALLEST_LIMIT
        self._without: set[str] = set()
        self._told: dict[tuple[str, str], float] = {}
        self._server = Server(kit, self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def place(self) -> str:
        """Where it listens, with the address that the host's name has on this machine."""
        listen, address = self.kit.listen, str(self._server.server_address[0])
        return listen.place + ("" if address == listen.host else f" ({address})")

    def welcome(self, message: Message | None) -> None:
        """From now on children join to this; those who joined something else have to join anew."""
        with self._changed:
            self.session = secrets.token_hex(8)
            self._welcome = message
            for child in self._children.values():
                child.about, child.worked = None, False
            self._changed.notify_all()

    def joined(self) -> dict[str, Mapping[str, Any]]:
        """What those who are there and ready to work said of themselves last."""
        with self._changed:
            return {
                name: child.about
                for name, child in self._children.items()
                if child.about and self._is_heard(child) and not child.late
            }

    def gather(
        self,
        enough: Callable[[Mapping[str, Mapping[str, Any]]], bool],
        tell: Callable[[str], None],
        missed: Callable[[Mapping[str, Mapping[str, Any]]], Sequence[str]] | None = None,
    ) -> Mapping[str, Mapping[str, Any]]:
        """Wait until those who joined are `enough`, and what they said; `tell` is told of every change who is `missed`,
        as a rule the children who did not join."""
        missed = missed or (lambda there: [name for name in self._children if name not in there])
        before: Sequence[str] | None = None
        while not enough(there := self.joined()):
            self._watch()
            if (names := missed(there)) != before:
                tell(f"waiting for {listed(names)}")
                before = names
            with self._changed:
                self._changed.wait(0.2)
        return there

    def ask(self, work: Mapping[str, Message], check: Check) -> Iterator[tuple[str, Answer | Missed]]:
        """Give each child its work, and yield what came of it as it comes. Who is silent for too long is missed, and
        not waited for again until something is heard of it; so is who is at work for too long, until it is done."""
        if not work:
            return
        number = secrets.token_hex(4)
        with self._changed:
            self._check = check
            for name, message in work.items():
                child = self._children[name]
                child.work = f"{name}-{number}"
                child.message = Message({**message.about, "work": child.work}, message.tensors).to_bytes()
                child.taken_at, child.takes, child.found = None, 0, None
            self._limit = max(SMALLEST_LIMIT, 4 * max(len(self._children[name].message) for name in work))
            self._changed.notify_all()
        waiting, began = list(work), time.monotonic()
        patience = max(SAY_AFTER_S, self.timeout_s)
        try:
            while waiting:
                self._watch()
                with self._changed:
                    ready = [
                        (name, found) for name in waiting if (found := self._come_of(name, began)) is not None
                    ]
                    if not ready:
                        self._changed.wait(0.2)
                if (passed := time.monotonic() - began) > patience:
                    patience *= 2
                    _log.warning(
                        "still waiting for %s, at work or about to be, after %.0f s", listed(waiting), passed
                    )
                for name, found in ready:
                    waiting.remove(name)
                    self._tell_of(name, found)
                    yield name, found
        finally:
            with self._changed:
                for name in work:
                    self._children[name].work, self._children[name].message = None, b""

    def _tell_of(self, name: str, found: Answer | Missed) -> None:
        """One line where a child is missed at first, and one where it is heard again."""
        if isinstance(found, Missed) and name not in self._without:
            self._without.add(name)
            _log.warning("going on without %s: %s", name, in_a_line(found.reason))
        elif isinstance(found, Answer) and name in self._without:
            self._without.remove(name)
            _log.warning("%s is heard again", name)

    def _come_of(self, name: str, asked_at: float) -> Answer | Missed | None:
        child = self._children[name]
        if child.found is None and not self._is_heard(child):
            child.found = Missed(
                "has not called yet" if child.about is None else f"silent for {self.timeout_s:g} s"
            )
        elif child.found is None and (child.late or time.monotonic() - asked_at > self.deadline_s):
            child.found, child.late = Missed(f"not done after {self.deadline_s:g} s"), True
        return child.found

    def _is_heard(self, child: _Child) -> bool:
        return time.monotonic() - child.heard_at <= self.timeout_s

    def end(self) -> None:
        """Tell all who are there, or were a moment ago, that it is over; where nobody was welcome yet, all who call."""
        with self._changed:
            self.over = True
            self._changed.notify_all()
            began = time.monotonic()
            there = [
                child
                for child in self._children.values()
                if self._welcome is None or began - child.heard_at <= max(self.timeout_s, END_S)
            ]
            while time.monotonic() - began < END_S and not all(child.over for child in there):
                self._changed.wait(0.1)

    # What the handlers call, each in a thread of its own.

    def heard(self, name: str) -> None:
        self._children[name].heard_at = time.monotonic()

    def gave(self, name: str, message: bytes) -> None:
        """Only what was written was told: once all were, the connections are cut."""
        if message is OVER:
            with self._changed:
                self._children[name].over = True
                self._changed.notify_all()

    def alive(self, name: str) -> bytes | None:
        return OVER if self.over else None

    def join(self, name: str) -> bytes | None:
        with self._changed:
            if self.over:
                return OVER
            if self._welcome is None:
                return None
            self._children[name].about = {}
            self._changed.notify_all()
            return Message({**self._welcome.about, "session": self.session}, self._welcome.tensors).to_bytes()

    def next_work(self, name: str, session: str, about: Mapping[str, Any]) -> bytes | None:
        """The child's work, after some waiting None where there is none; a KeyError where it has to join anew, a
        BadMessage where it says of itself what no machine of ours does."""
        child = self._children[name]
        if about:
            check_samples(self.kit, name, about)
        until = time.monotonic() + min(POLL_S if child.worked else FIRST_POLL_S, self.timeout_s / 3)
        with self._changed:
            child.late = False
            if child.about is not None and about:
                child.about = about
                self._changed.notify_all()
            while True:
                if self.over:
                    return OVER
                if session != self.session or child.about is None:
                    raise KeyError(session)
                if child.work is not None and child.found is None:
                    child.takes += 1
                    if child.takes > MOST_TAKES:
                        why = f"took its work {MOST_TAKES} times and did not answer it"
                        self._come(child, child.work, Missed(why, bad=True))
                        continue
                    child.taken_at, child.worked = time.monotonic(), True
                    return child.message
                if (left := until - time.monotonic()) <= 0:
                    return None
                child.heard_at = time.monotonic()
                self._changed.wait(min(left, 1.0))

    def take(self, name: str, data: bytes) -> None:
        """A child's answer; a BadMessage where it is none, a KeyError where nobody waits for it."""
        child = self._children[name]
        with self._changed:
            work, taken_at, check, bytes_out = child.work, child.taken_at, self._check, len(child.message)
            if work is None or taken_at is None or child.found is not None:
                raise KeyError(name)  # before it is read, which takes time
        seconds = time.monotonic() - taken_at
        try:
            message = Message.of(data)
            if is_for_it := message.about.get("work") == work:
                check(name, message)
        except Exception as error:  # whatever a check stumbles over; nobody is to wait for ever
            odd = f"its answer is odd: {in_one_line(error)}"
            bad = error if isinstance(error, BadMessage) else BadMessage(odd)
            self._come(child, work, Missed(str(bad), bad=True))
            raise bad from None
        if not is_for_it:
            raise KeyError(name)
        self._come(child, work, Answer(message, seconds, bytes_out, len(data)))

    def _come(self, child: _Child, asked: str, found: Answer | Missed) -> None:
        with self._changed:
            if child.work == asked and child.found is None:
                child.found = found
                self._changed.notify_all()

    def refused(self, who: str, why: str) -> None:
        """One line in the log; of the same again and again, one a minute, and of one caller a few."""
        now = time.monotonic()
        with self._changed:
            told = {key: at for key, at in self._told.items() if now - at < TELL_AGAIN_S}
            if (who, why) in told or sum(caller == who for caller, _ in told) >= MOST_TOLD:
                return
            self._told = told | {(who, why): now}
        _log.warning("refused %s: %s", in_a_line(who), in_a_line(why))

    def limit(self, verb: str) -> int:
        """An answer is about as large as its work; of itself a machine says a few numbers, or one a client."""
        return self._limit if verb == "answer" else 2**12 + 2**6 * max(self.kit.about.cells)


def listed(names: Sequence[str], most: int = 5) -> str:
    """The names, or how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
