"""Questions of the observer's main thread to the observers of other hosts, and the replies.

The observer on the host of rank 0 is the *head*, every other one a *branch*.  A host that does not answer is named,
with the ranks of which nothing is known because of it.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.control.wakeup import WakeUp
from ddptop.agent.observer.hosts.link.frames import COMMAND
from ddptop.agent.observer.hosts.link.side import Side

HEAD: Final = ""
"""Stands for the host of the head in `OtherHosts.ask`."""
LINKED: Final = "linked"
SILENT: Final = "silent"
GONE: Final = "gone"
"""States of a host; see `wire.HostFrame`."""
_OWN: Final = b"o"
"""Requester of these questions, whose numbers tell them apart."""
_MOST: Final = 10_000
"""Questions that wait for their replies."""
_LOST_S: Final = 3.0
"""Seconds without a link after which no answer of a host is waited for."""

Answer = Future[wire.Reply | None]
"""The reply of another observer, once it has come; None where none came in time."""


class OtherHosts:
    """The observers of the other hosts, for any thread: none, as of a run on one host."""

    @property
    def role(self) -> str:
        """`head`, `branch` where this host is linked to the head, or `alone`: one host, or no link now."""
        return "alone"

    def hosts(self) -> tuple[wire.HostFrame, ...]:
        """Return what is known of the other hosts."""
        return ()

    def ask(self, host: str, command: wire.Command, timeout_s: float) -> Answer:
        """Send a command to the observer of a host, `HEAD` for that of the head."""
        return unanswered()


def unanswered() -> Answer:
    """Return the answer of nobody."""
    answer: Answer = Future()
    answer.set_result(None)
    return answer


@dataclass(frozen=True)
class _Question:
    host: str
    command: wire.Command
    until: float
    answer: Answer
    peer: bytes = b""


class Questions:
    """The questions that were put, and those under way; `ask` is for any thread, all else for the relay's."""

    def __init__(self, wake: WakeUp, answered: WakeUp) -> None:
        """Ask nobody yet; the one wakes the thread that calls `turn`, the other the one that waits for answers."""
        self._wake = wake
        self._answered = answered
        self._put: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        self._taken: list[_Question] = []
        self._under_way: dict[int, _Question] = {}
        self._number = 0
        self._is_closed = False

    def ask(self, host: str, command: wire.Command, timeout_s: float) -> Answer:
        """Ask the observer of a host; see `OtherHosts.ask`."""
        question = _Question(host, command, time.monotonic() + timeout_s, Future())
        self._put.put(question)
        self._wake.set()
        if self._is_closed:
            # The thread that would take it may have ended meanwhile.
            self.close()
        return question.answer

    def take(self) -> None:
        """Take in the questions that were put, which `turn` sends: what was said before them can be sent first."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._taken.append(self._put.get_nowait())

    def turn(self, link: Side, peers: Mapping[str, bytes]) -> None:
        """Ask what was taken in, and give up what is late; `peers` are those of the hosts that are linked."""
        taken, self._taken = self._taken, []
        for question in taken:
            self._begin(question, link, peers)
        now = time.monotonic()
        self._give_up([number for number, each in self._under_way.items() if now > each.until])

    def _begin(self, question: _Question, link: Side, peers: Mapping[str, bytes]) -> None:
        peer = peers.get(question.host)
        if peer is None or len(self._under_way) >= _MOST:
            self._end(question, None)
            return
        self._number += 1
        command = deadline.departing(msgspec.structs.replace(question.command, id=self._number))
        if not link.send(peer, COMMAND, _OWN, wire.encode(command)):
            self._end(question, None)
            return
        self._under_way[self._number] = replace(question, peer=peer)

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
            self._end(question, msgspec.structs.replace(reply, id=question.command.id))
        return True

    def lose(self, peer: bytes) -> None:
        """Give up the questions to a peer that is gone."""
        self._give_up([number for number, each in self._under_way.items() if each.peer == peer])

    def _give_up(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._end(self._under_way.pop(number), None)

    def _end(self, question: _Question, reply: wire.Reply | None) -> None:
        question.answer.set_result(reply)
        self._answered.set()

    @property
    def pause_s(self) -> float | None:
        """Seconds until a question has to be given up; None where none is under way."""
        if not self._under_way:
            return None
        return max(0.0, min(each.until for each in self._under_way.values()) - time.monotonic())

    @staticmethod
    def is_own(requester: bytes) -> bool:
        """Say whether an answer is to a question of this side's main thread."""
        return requester == _OWN

    def close(self) -> None:
        """Give up all questions, also those that come."""
        self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._end(self._put.get_nowait(), None)
        with contextlib.suppress(IndexError):
            while True:
                self._end(self._taken.pop(), None)
        with contextlib.suppress(KeyError):
            while True:
                self._end(self._under_way.popitem()[1], None)


class Spread:
    """One command to several hosts; for use from one thread."""

    def __init__(
        self,
        hosts: OtherHosts,
        command: wire.Kill,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        spared: Collection[int] = (),
    ) -> None:
        """Send the command to each host that has ranks which are not `spared`, because they are known to have ended.

        Args:
            hosts: the other hosts.
            command: to all of them alike.
            patience_s: seconds that a host has to answer.
            clock: a monotonic clock.
            spared: ranks that nobody has to end.
        """
        self.replies: dict[str, wire.Reply] = {}
        """By host, its answer."""
        self.unknown: dict[str, int] = {}
        """By host that will not answer, its ranks."""
        self._hosts = hosts
        self._clock = clock
        self._waiting: dict[str, tuple[int, Answer]] = {}
        """By host that is to answer, its ranks."""
        self._lost_at: dict[str, float] = {}
        """By host, when it was seen to be linked last."""
        self._give_up = clock() + patience_s
        for host, ranks, state in _left(hosts.hosts(), spared):
            if state != GONE:
                self._waiting[host] = ranks, hosts.ask(host, command, patience_s)
            elif ranks:
                self.unknown[host] = ranks

    @classmethod
    def unasked(cls, known: tuple[wire.HostFrame, ...], spared: Collection[int] = ()) -> Spread:
        """Return one of which no host was asked, and so none has answered."""
        made = cls(OtherHosts(), wire.Kill(0, 0.0), 0.0)
        made.unknown = {host: ranks for host, ranks, _ in _left(known, spared) if ranks}
        return made

    @property
    def is_waiting(self) -> bool:
        """Say whether a host may still answer."""
        now = self._clock()
        states = {each.host: each.state for each in self._hosts.hosts()}
        for host, (ranks, answer) in list(self._waiting.items()):
            if states.get(host) == LINKED:
                self._lost_at[host] = now
            is_lost = now > self._give_up or now - self._lost_at.setdefault(host, now) > _LOST_S
            if not (answer.done() or is_lost):
                continue
            del self._waiting[host]
            if answer.done() and (reply := answer.result()) is not None:
                self.replies[host] = reply
            elif ranks:
                self.unknown[host] = ranks
        return bool(self._waiting)


def _left(known: tuple[wire.HostFrame, ...], spared: Collection[int]) -> list[tuple[str, int, str]]:
    """Return each host with the number of its ranks that somebody has to end, and its state."""
    return [
        (each.host, sum(rank not in spared and rank not in each.gone for rank in each.ranks), each.state)
        for each in known
    ]
