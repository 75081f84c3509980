"""The two sockets of an observer for onlookers: one publishes, one answers.

The observers of other hosts have the same of it over their links.  Of a run on several hosts a branch publishes here
what the head does as long as both are linked, and nothing else.

An onlooker that does not read loses messages and hurts nobody: the queue for each is bounded, and earlier records are
read from ranks only while there is room for them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts.elsewhere import Elsewhere, is_elsewhere, is_topic
from ddptop.agent.run.files.private import seal
from ddptop.agent.run.rundir import RunDir

LINGER_MS: Final = 300
UNREAD: Final = 4_000
"""Messages that may be queued for one onlooker of a large group: those of 64 ranks in five seconds."""
UNREAD_SMALL: Final = 1_000
"""The same of a small group."""
ROOM: Final = 1 << 20
"""Bytes of answers that may wait for one onlooker before no more records are read for it."""
PATIENCE_S: Final = 60.0
"""Seconds without a sent answer after which the answers to an onlooker are dropped."""
_QUEUED: Final = 16
"""Answers in the socket's own queue for one onlooker."""
_MOST_ANSWERS: Final = 8_192
"""Answers that wait for one onlooker, however small."""
_MOST_ONLOOKERS: Final = 1_024
"""Onlookers for which answers wait."""
_MOST_A_TURN: Final = 1_000
_MOST_SUBSCRIPTIONS: Final = 100_000
_IN_SIGHT: Final = (wire.TOPIC_STEPS + b"/", wire.TOPIC_RANK + b"/")
"""Beginnings of the topics of a rank that somebody looks at."""
_SOONEST_S: Final = 0.002
_LATEST_S: Final = 0.1


@dataclass(slots=True)
class _Waiting:
    """The answers to one onlooker for which the socket has no room."""

    give_up: float
    answers: deque[tuple[bytes, ...]] = field(default_factory=deque)
    bytes: int = 0


class Service:
    """The XPUB and the ROUTER; for use from one thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        directory: RunDir,
        elsewhere: Elsewhere,
        unread: int = UNREAD,
    ) -> None:
        """Bind both, with room for so many messages to each onlooker; raises `zmq.ZMQError` where it cannot."""
        self.refused = 0
        """Messages that could not be read."""
        self._subscribed: set[bytes] = set()
        self._takers: dict[bytes, tuple[bool, tuple[bytes, ...]]] = {}
        """By topic, whether an onlooker here subscribes to it or to its beginning, and which other hosts do."""
        self._wants_records = self._shows_ranks = False
        self._version = -1
        self._elsewhere = elsewhere
        self._waiting: dict[bytes, _Waiting] = {}
        self._pause_s = _SOONEST_S
        self._retry_at = 0.0
        self.pub = context.socket(zmq.XPUB)
        self.cmd = context.socket(zmq.ROUTER)
        # Each subscription is announced, also one that another onlooker has already: each gets a frame soon.
        self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.pub.setsockopt(zmq.SNDHWM, unread)
        self.cmd.setsockopt(zmq.SNDHWM, _QUEUED)
        self.cmd.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for socket, kind in ((self.pub, "pub"), (self.cmd, "cmd")):
            socket.linger = LINGER_MS
            socket.maxmsgsize = wire.MAX_COMMAND_BYTES
            try:
                # Whoever connects refuses a socket that others can use, and may come between its making and its mode.
                before = os.umask(0o077)
                try:
                    address = directory.address("observer", kind)
                    socket.bind(address)
                finally:
                    os.umask(before)
                seal(address)
            except BaseException:
                self.close()
                raise

    @property
    def subscribed(self) -> Set[bytes]:
        """The topics to which onlookers here subscribe."""
        return self._subscribed

    def read_subscriptions(self) -> set[bytes]:
        """Take in the subscriptions that have changed, and return the new ones."""
        new: set[bytes] = set()
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST_A_TURN):
                message = self.pub.recv(zmq.NOBLOCK)
                topic = message[1:]
                if message[:1] == b"\x00":
                    # It comes when the last subscriber has left.
                    self._subscribed.discard(topic)
                elif message[:1] == b"\x01" and is_topic(topic):
                    new.add(topic)
                    if len(self._subscribed) < _MOST_SUBSCRIPTIONS:
                        self._subscribed.add(topic)
                else:
                    self.refused += 1
                    continue
                self._version = -1
        return new

    def wants(self, topic: bytes) -> bool:
        """Say whether anybody subscribes to a topic."""
        here, elsewhere = self._takers_of(topic)
        return here or bool(elsewhere)

    def _takers_of(self, topic: bytes) -> tuple[bool, tuple[bytes, ...]]:
        self._renew()
        found = self._takers.get(topic)
        if found is None:
            here = not self._elsewhere.shows_head and self._has_subscriber(topic)
            found = self._takers[topic] = here, self._elsewhere.takers(topic)
        return found

    def _renew(self) -> None:
        """Take in that somebody subscribes to something else than before."""
        if self._version != self._elsewhere.version:
            self._version = self._elsewhere.version
            self._takers.clear()
            topics, steps, rank = self._topics_of_all(), wire.TOPIC_STEPS, wire.TOPIC_RANK + b"/"
            self._wants_records = any(topic.startswith(steps) or steps.startswith(topic) for topic in topics)
            self._shows_ranks = any(topic.startswith(rank) for topic in topics)

    @property
    def wants_records(self) -> bool:
        """True while anybody subscribes to the records of ranks."""
        self._renew()
        return self._wants_records

    def _topics_of_all(self) -> Set[bytes]:
        return self._elsewhere.topics | (set() if self._elsewhere.shows_head else self._subscribed)

    def _has_subscriber(self, topic: bytes) -> bool:
        # A topic of at most 14 bytes has few beginnings.
        return any(topic[:length] in self._subscribed for length in range(len(topic) + 1))

    @property
    def shows_ranks(self) -> bool:
        """True while anybody subscribes to the frame of a rank."""
        self._renew()
        return self._shows_ranks

    def in_sight(self) -> set[bytes]:
        """Return the topics of single ranks to which anybody subscribes: of their frames, or of their records."""
        return {topic for topic in self._topics_of_all() if topic[:-5] in _IN_SIGHT and topic[-5:].isdigit()}

    def publish(self, topic: bytes, payload: bytes) -> None:
        """Send a message to its subscribers; one that does not read loses it."""
        here, elsewhere = self._takers_of(topic)
        if here:
            self.pub.send_multipart([topic, payload])
        for peer in elsewhere:
            self._elsewhere.publish(peer, topic, payload)

    def show(self, topic: bytes, payload: bytes) -> None:
        """Send a message of the head to the onlookers here."""
        if self._elsewhere.shows_head and self._has_subscriber(topic):
            self.pub.send_multipart([topic, payload])

    def received(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield the messages that have arrived, each with its sender."""
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST_A_TURN):
                sender, *frames = self.cmd.recv_multipart(zmq.NOBLOCK)
                if is_elsewhere(sender):
                    # Nobody is called so but by the relay.
                    self.refused += 1
                    continue
                yield sender, frames

    def send(self, requester: bytes, *frames: bytes) -> bool:
        """Answer an onlooker, now or when there is room; return False where it has left or reads nothing."""
        waiting = self._waiting.get(requester)
        if waiting is None:
            sent = self._send(requester, frames)
            if sent is not None:
                return sent
            if len(self._waiting) >= _MOST_ONLOOKERS:
                return False
            waiting = self._waiting[requester] = _Waiting(time.monotonic() + PATIENCE_S)
            self._pause_s = _SOONEST_S
        if len(waiting.answers) >= _MOST_ANSWERS:
            return False
        waiting.answers.append(frames)
        waiting.bytes += sum(map(len, frames))
        return True

    def answer(self, requester: bytes, rank: int, reply: wire.Reply) -> bool:
        """Send the reply of a rank, or in its place, as `send`."""
        return self.send(requester, b"%d" % rank, wire.encode(reply))

    def has_room(self, requester: bytes) -> bool:
        """Say whether more records may be read for an onlooker."""
        waiting = self._waiting.get(requester)
        return waiting is None or waiting.bytes < ROOM

    def send_more(self) -> None:
        """Send the answers for which there is room now."""
        if not self._waiting or time.monotonic() < self._retry_at:
            return
        moved = [self._advance(requester, waiting) for requester, waiting in tuple(self._waiting.items())]
        self._pause_s = _SOONEST_S if any(moved) else min(_LATEST_S, 2 * self._pause_s)
        self._retry_at = time.monotonic() + self._pause_s

    @property
    def pause_s(self) -> float | None:
        """Seconds to wait before the next `send_more`; None where nothing waits."""
        return max(0.0, self._retry_at - time.monotonic()) if self._waiting else None

    def _advance(self, requester: bytes, waiting: _Waiting) -> bool:
        moved = False
        while waiting.answers:
            sent = self._send(requester, waiting.answers[0])
            if sent is None and time.monotonic() <= waiting.give_up:
                return moved
            if not sent:
                break
            waiting.bytes -= sum(map(len, waiting.answers.popleft()))
            waiting.give_up, moved = time.monotonic() + PATIENCE_S, True
        del self._waiting[requester]
        return moved

    def _send(self, requester: bytes, frames: tuple[bytes, ...]) -> bool | None:
        """Return True once sent, None where there is no room now, False where the onlooker has left."""
        if is_elsewhere(requester):
            return self._elsewhere.answer(requester, frames)
        try:
            self.cmd.send_multipart([requester, *frames], zmq.NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Close both, after their messages have been sent or their linger is over."""
        self.pub.close()
        self.cmd.close()
