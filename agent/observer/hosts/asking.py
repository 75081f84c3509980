"""Questions of the observer's main thread to the observers of other hosts, and the replies."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.hosts.far import Then
from ddptop.agent.observer.hosts.link.frames import COMMAND

_log = logging.getLogger("ddptop.observer")

_OWN: Final = b"o"
"""Asker of these questions, whose numbers tell them apart."""
_MOST: Final = 10_000
"""Questions that wait for their replies."""


@dataclass
class _Question:
    host: str
    command: wire.Command
    until: float
    then: Then
    peer: bytes = b""


class Asking:
    """The questions that were put, and those under way; `ask` is for any thread, all else for the relay's."""

    def __init__(
        self,
        wake: Callable[[], None],
        peer_of: Callable[[str], bytes | None],
        send: Callable[..., bool],
        before: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nobody is asked yet.

        Args:
            wake: makes the relay's thread call `turn`.
            peer_of: returns the peer of a host, None where there is no link to it.
            send: sends a peer a message: the peer, the kind, and frames.
            before: called before a question is sent: what was said before it was put goes first.
            clock: in seconds.
        """
        self._wake = wake
        self._peer_of = peer_of
        self._send = send
        self._before = before
        self._clock = clock
        self._put: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        self._under_way: dict[int, _Question] = {}
        self._number = 0
        self._is_closed = False

    def ask(self, host: str, command: wire.Command, timeout_s: float, then: Then) -> None:
        """Ask the observer of a host; see `FarHosts.ask`."""
        self._put.put(_Question(host, command, self._clock() + timeout_s, then))
        self._wake()
        if self._is_closed:
            # The thread that would take it may have ended meanwhile.
            self.close()

    def turn(self) -> None:
        """Ask what was put, and give up what is late."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._begin(self._put.get_nowait())
        now = self._clock()
        for number in [number for number, each in self._under_way.items() if now > each.until]:
            _then(self._under_way.pop(number), None)

    def _begin(self, question: _Question) -> None:
        peer = self._peer_of(question.host)
        if peer is None or len(self._under_way) >= _MOST:
            _then(question, None)
            return
        self._number += 1
        command = deadline.departing(msgspec.structs.replace(question.command, id=self._number))
        self._before()
        if not self._send(peer, COMMAND, _OWN, wire.encode(command)):
            _then(question, None)
            return
        question.peer = peer
        self._under_way[self._number] = question

    def answered(self, peer: bytes, payload: bytes) -> bool:
        """Take in a reply; return False where it is none that can be read."""
        try:
            reply = wire.read_answer(payload)
        except wire.Unreadable:
            return False
        if not isinstance(reply, wire.Reply):
            return False
        question = self._under_way.get(reply.id)
        # Of one that was given up nobody waits for the reply; none answers for another one.
        if question is not None and question.peer == peer:
            del self._under_way[reply.id]
            _then(question, msgspec.structs.replace(reply, id=question.command.id))
        return True

    def lose(self, peer: bytes) -> None:
        """Give up the questions to a peer that is gone."""
        for number in [number for number, each in self._under_way.items() if each.peer == peer]:
            _then(self._under_way.pop(number), None)

    @property
    def pause_s(self) -> float | None:
        """Seconds until a question has to be given up; None where none is under way."""
        if not self._under_way:
            return None
        return max(0.0, min(each.until for each in self._under_way.values()) - self._clock())

    @staticmethod
    def is_own(asker: bytes) -> bool:
        """Say whether an answer is to a question of this side's main thread."""
        return asker == _OWN

    def close(self) -> None:
        """Give up all questions, also those that come."""
        self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                _then(self._put.get_nowait(), None)
        while self._under_way:
            with contextlib.suppress(KeyError):
                _then(self._under_way.popitem()[1], None)


def _then(question: _Question, reply: wire.Reply | None) -> None:
    try:
        question.then(reply)
    except Exception:  # a wall: it is the asker's code, and others wait, too
        _log.exception("the reply of another host")
