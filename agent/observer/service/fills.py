"""Questions to ranks for their earlier records.

The answer to a `wire.Fill` is many messages. Each question has a socket of its own, which is read only while there is
room for the answer: the rank makes the next part of it once the one before was taken.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts.elsewhere import Conversation, Elsewhere
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.run.rundir import RunDirError

FILL_S: Final = 5.0
"""Seconds without a part of the answer after which a rank is assumed to have no more."""
ROOM_S: Final = 60.0
"""Seconds without room for the answer after which it is given up."""
AT_ONCE: Final = 64
"""Questions that are under way."""
EACH_AT_ONCE: Final = 32
"""Those of one requester."""
EACH_WAITING: Final = 8_192
"""Questions of one requester that may wait; further ones are refused."""
OTHERS_AT_ONCE: Final = 32
"""Those of the observers of other hosts together: the observer's own do not wait behind them."""
MOST_WAITING: Final = 65_536
"""Questions of other hosts that may wait."""
_PARTS: Final = 32
"""Parts of one answer that are taken in a row."""


class Taker(Protocol):
    """Receives the answer to one question."""

    def has_room(self) -> bool:
        """Say whether the next part can be taken."""
        ...

    def take(self, payload: bytes) -> bool:
        """Take a part; return False where no more of them are wanted."""
        ...

    def end(self, reply: bytes | None) -> None:
        """Take the last part, None where the rank has fallen silent or was not asked."""
        ...


@dataclass(slots=True)
class _Question:
    rank: int
    address: str
    payload: bytes
    requester: Hashable
    taker: Taker
    socket: zmq.Socket[bytes] | None = None
    conversation: Conversation | None = None
    """In place of the socket, where the rank is on another host."""
    give_up: float = 0.0
    no_room_since: float | None = None


class Fills:
    """The questions that wait, and those under way; for use from one thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        owner: int,
        elsewhere: Elsewhere,
    ) -> None:
        self._context = context
        self._owner = owner
        self._elsewhere = elsewhere
        self._waiting: dict[Hashable, deque[_Question]] = {}
        """By requester; those of each are asked in order, and requesters take turns."""
        self._under_way: list[_Question] = []

    def ask(self, rank: int, address: str, payload: bytes, requester: Hashable, taker: Taker) -> bool:
        """Ask soon; return False where too many questions wait already."""
        if len(self._waiting.get(requester, ())) >= EACH_WAITING:
            return False
        if _is_of_another_host(requester) and self._waiting_of_others() >= MOST_WAITING:
            return False
        self._waiting.setdefault(requester, deque()).append(_Question(rank, address, payload, requester, taker))
        self._begin()
        return True

    def _waiting_of_others(self) -> int:
        return sum(len(waiting) for requester, waiting in self._waiting.items() if _is_of_another_host(requester))

    def forget(self, rank: int, requester: Hashable | None = None) -> None:
        """Give up the questions to a rank whose process is another now, or only those of one requester."""

        def is_meant(question: _Question) -> bool:
            return question.rank == rank and requester in (None, question.requester)

        given_up = [each for each in self._under_way if is_meant(each)]
        for whose, waiting in list(self._waiting.items()):
            if any(map(is_meant, waiting)):
                given_up += filter(is_meant, waiting)
                self._waiting[whose] = deque(each for each in waiting if not is_meant(each))
        for question in given_up:
            self._finish(question, None)

    def forget_requester(self, requester: Hashable) -> None:
        """Give up the questions of one requester."""
        self._waiting.pop(requester, None)
        for question in [each for each in self._under_way if each.requester == requester]:
            self._finish(question, None)

    def _begin(self) -> None:
        """Ask the next questions."""
        counts: dict[Hashable, int] = {}
        for question in self._under_way:
            counts[question.requester] = counts.get(question.requester, 0) + 1
        of_others = sum(count for requester, count in counts.items() if _is_of_another_host(requester))
        moved = True
        while moved and len(self._under_way) < AT_ONCE:
            moved = False
            for requester in list(self._waiting):
                if not self._waiting[requester]:
                    del self._waiting[requester]
                elif _is_of_another_host(requester) and of_others >= OTHERS_AT_ONCE:
                    continue
                elif counts.get(requester, 0) < EACH_AT_ONCE and len(self._under_way) < AT_ONCE:
                    counts[requester] = counts.get(requester, 0) + 1
                    of_others += _is_of_another_host(requester)
                    self._send(self._waiting[requester].popleft())
                    moved = True

    def _send(self, question: _Question) -> None:
        if self._elsewhere.has(question.rank):
            question.conversation = self._elsewhere.ask(question.rank, question.payload)
            if question.conversation is None:
                self._finish(question, None)
                return
            question.give_up = time.monotonic() + FILL_S
            self._under_way.append(question)
            return
        try:
            check_socket(question.address, self._owner)
            question.socket = asking = self._context.socket(zmq.DEALER)
            asking.linger = 0
            asking.maxmsgsize = wire.MAX_MESSAGE_BYTES
            asking.connect(question.address)
            asking.send(question.payload, zmq.NOBLOCK)
        except (RunDirError, zmq.ZMQError):
            self._finish(question, None)
            return
        question.give_up = time.monotonic() + FILL_S
        self._under_way.append(question)

    def _finish(self, question: _Question, reply: bytes | None) -> None:
        if question in self._under_way:
            self._under_way.remove(question)
        if question.socket is not None:
            question.socket.close(linger=0)
        if question.conversation is not None:
            self._elsewhere.close(question.conversation)
        question.taker.end(reply)

    @property
    def busy(self) -> bool:
        """True while answers are expected."""
        return bool(self._under_way)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Return the sockets on which a part of an answer can be taken."""
        return [each.socket for each in self._under_way if each.socket is not None and each.taker.has_room()]

    def take(self) -> bool:
        """Take the parts that have arrived, as far as there is room, and ask the next questions.

        Return whether any part has come.
        """
        parts = 0
        for question in list(self._under_way):
            if question in self._under_way:
                parts += self._take(question)
        if self._waiting:
            self._begin()
        return parts > 0

    def _take(self, question: _Question) -> int:
        """Take what has arrived of one answer; return how many parts."""
        now = time.monotonic()
        for taken in range(_PARTS):
            if not question.taker.has_room():
                question.no_room_since = now if question.no_room_since is None else question.no_room_since
                question.give_up = now + FILL_S
                if now - question.no_room_since > ROOM_S:
                    self._finish(question, None)
                return taken
            question.no_room_since = None
            try:
                payload = _next_part(question)
            except zmq.Again:
                if now > question.give_up:
                    self._finish(question, None)
                return taken
            except EOFError:
                self._finish(question, None)
                return taken
            question.give_up = now + FILL_S
            if wire.is_reply(payload):
                self._finish(question, payload)
                return taken + 1
            if not question.taker.take(payload):
                self._finish(question, None)
                return taken + 1
        return _PARTS

    def close(self) -> None:
        """Give up all questions."""
        self._waiting.clear()
        for question in list(self._under_way):
            self._finish(question, None)


def _next_part(question: _Question) -> bytes:
    if question.conversation is not None:
        return question.conversation.receive()
    assert question.socket is not None
    return question.socket.recv(zmq.NOBLOCK)


def _is_of_another_host(requester: Hashable) -> bool:
    """Say whether a question is that of another host's observer, and none of this one's own."""
    return isinstance(requester, bytes)
