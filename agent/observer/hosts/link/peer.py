"""The other side of a link: what is known of it, what waits for it, and the difference between its clock and this one.

A pong says the other clock at some moment between ping and pong.  Half-way between both, the error is at most half the
round trip; of the last ones the shortest says most (RFC 5905, section 10: the clock filter of NTP does the same).
This module knows no socket.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ddptop.agent import wire

WINDOW: Final = 4 << 20
"""Bytes at most that are sent and of which the other side has not said that it has read them."""
MOST_BYTES: Final = 8 << 20
"""Bytes of commands and answers that may wait."""
MOST_WAITING: Final = 8_192
PATIENCE_S: Final = 60.0
"""Seconds without any progress after which what waits is dropped."""
SILENT_S: Final = 3.0
"""Seconds without a sign of life after which a host is silent."""
KEPT: Final = 30
"""Round trips from which the shortest is taken."""
_MOST_OPEN: Final = 30
"""Pings without a pong that are remembered."""


class Pings:
    """The pings to one host."""

    def __init__(self) -> None:
        self._open: dict[int, float] = {}
        self._last: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """Round trip and offset, in seconds."""
        self._best: tuple[float, float] | None = None
        """The shortest of them."""

    def ping(self, now: float, at_ns: int) -> int:
        """Return the moment of a ping that is sent now, in nanoseconds of the wall clock: its name in the pong."""
        while at_ns in self._open:
            at_ns += 1
        if len(self._open) >= _MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[at_ns] = now
        return at_ns

    def pong(self, at_ns: int, other_ns: int, now: float) -> bool:
        """Take in the answer to a ping, with the other clock; return False where none was sent at that moment."""
        sent = self._open.pop(at_ns, None)
        if sent is None:
            return False
        rtt = now - sent
        # From the time of the ping: a wall clock that is set while the ping is under way spoils nothing.
        self._last.append((rtt, (other_ns - at_ns) / 1e9 - rtt / 2))
        self._best = min(self._last)
        return True

    def forget(self) -> None:
        """Forget what was sent over a connection that has ended; what was measured stays."""
        self._open.clear()

    @property
    def rtt_s(self) -> float | None:
        """Seconds of the shortest of the last round trips."""
        return None if (best := self._best) is None else best[0]

    @property
    def offset_s(self) -> float | None:
        """Seconds by which the other clock is ahead."""
        return None if (best := self._best) is None else best[1]

    @property
    def offset_error_s(self) -> float | None:
        """The true offset is at most so many seconds from `offset_s`, as long as no clock was set meanwhile."""
        return None if (best := self._best) is None else best[0] / 2


class Peer:
    """One host, from its first hello on; over a new connection it is the same one."""

    def __init__(self, name: bytes, hello: wire.HostHello, now: float, now_ns: int) -> None:
        """Meet it at this moment, by `time.monotonic` and by the wall clock."""
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
        self.heard_at = now
        """Time of its last message, by `time.monotonic`."""
        self.heard_at_ns = now_ns
        """The same by the wall clock."""
        self.since = now
        """Time at which its connection began, or ended where it has none."""
        self.refused = 0
        """Messages of it that were refused."""
        self.dropped = 0
        """Messages to it that were dropped."""
        self.pings = Pings()
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
