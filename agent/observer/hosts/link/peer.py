"""The other side of a link: what is known of it, and what waits for it.

This module knows no socket.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link.pings import Pings

WINDOW: Final = 4 << 20
"""Bytes at most that are sent and of which the other side has not said that it has read them."""
ROOM: Final = 1 << 20
"""Bytes that may wait before no more is asked for on behalf of the other side."""
MOST_BYTES: Final = 8 << 20
"""Bytes of commands and answers that may wait."""
MOST_WAITING: Final = 8_192
PATIENCE_S: Final = 60.0
"""Seconds without any progress after which what waits is dropped."""
SILENT_S: Final = 3.0
"""Seconds without a sign of life after which a host is silent."""


class Peer:
    """One host, from its first hello on; over a new connection it is the same one."""

    def __init__(
        self,
        name: bytes,
        hello: wire.HostHello,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.name = name
        """By which it is addressed; another one after its observer was replaced."""
        self.hello = hello
        """The newest."""
        self.is_connected = False
        """Whether it has greeted, and its connection has not ended since."""
        self.is_silent = False
        """Whether nothing was heard of it for `SILENT_S`, whatever its connection does."""
        self.session = -1
        """Number of its connection: after each new one it knows of no subscription, and has no command."""
        self.heard_at = clock()
        """Time of its last message, by `time.monotonic`."""
        self.heard_at_ns = wall_ns()
        """The same by the wall clock."""
        self.since = clock()
        """Time at which its connection began, or ended where it has none."""
        self.refused = 0
        """Messages of it that were refused."""
        self.dropped = 0
        """Messages to it that were dropped."""
        self.pings = Pings(clock, wall_ns)
        self.waiting: deque[tuple[bytes, ...]] = deque()
        self.waiting_bytes = 0
        self.moved_at = 0.0
        """Time at which something waiting was sent last, or began to wait."""
        self.sent = self.read = 0
        """Bytes that were sent in this session, and those that it has read of them by its own account."""
        self.received = self.told = 0
        """Bytes that have come in this session, and those of them that it was told of."""

    @property
    def host(self) -> str:
        """Its name, clean."""
        return self.hello.host

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its ranks that were found."""
        return self.hello.ranks

    @property
    def is_linked(self) -> bool:
        """Whether it is there: connected, and heard of."""
        return self.is_connected and not self.is_silent

    @property
    def has_room(self) -> bool:
        """Whether more may be read on its behalf."""
        return self.waiting_bytes < ROOM

    @property
    def rtt_s(self) -> float | None:
        """Seconds to it and back, at best."""
        return self.pings.rtt_s

    @property
    def offset_s(self) -> float | None:
        """Seconds by which its clock is ahead of this host's."""
        return self.pings.offset_s

    @property
    def offset_error_s(self) -> float | None:
        """The true offset is at most so far from that."""
        return self.pings.offset_error_s

    def begin(self, session: int, now: float) -> None:
        """Begin a connection."""
        self.end(now)
        self.session, self.is_connected, self.is_silent = session, True, False

    def end(self, now: float) -> None:
        """End the connection: what was sent and not read is lost, and what waits is dropped."""
        self.is_connected, self.since = False, now
        self.dropped += len(self.waiting)
        self.waiting.clear()
        self.waiting_bytes = self.sent = self.read = self.received = self.told = 0
        self.pings.forget()

    def fits(self, size: int) -> bool:
        """Say whether so many bytes may be sent now."""
        under_way = self.sent - self.read
        return not under_way or under_way + size <= WINDOW

    def put(self, message: tuple[bytes, ...], size: int, now: float) -> bool:
        """Let a message wait; return False where too much waits."""
        if len(self.waiting) >= MOST_WAITING or self.waiting_bytes + size > MOST_BYTES:
            self.dropped += 1
            return False
        if not self.waiting:
            self.moved_at = now
        self.waiting.append(message)
        self.waiting_bytes += size
        return True

    def acknowledge(self, read: int) -> bool:
        """Take in how many bytes it has read in this session; return False where that cannot be true."""
        if not self.read <= read <= self.sent:
            return False
        self.read = read
        return True
