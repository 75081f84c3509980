"""Round trips to another host, and from them the difference of two clocks.

A pong says the other clock at some moment between ping and pong.  Half-way between both, the error is at most half the
round trip; of the last ones the shortest says most (RFC 5905, section 10: the clock filter of NTP does the same).
This module knows no socket.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

KEPT: Final = 30
"""Round trips from which the shortest is taken."""
_MOST_OPEN: Final = 30
"""Pings without a pong that are remembered."""


class Pings:
    """The pings to one host."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._wall_ns = wall_ns
        self._open: dict[int, float] = {}
        self._last: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """Round trip and offset, in seconds."""
        self._best: tuple[float, float] | None = None
        """The shortest of them."""

    def ping(self) -> int:
        """Return the moment of a ping that is sent now, in nanoseconds of the wall clock: its name in the pong."""
        at_ns = self._wall_ns()
        while at_ns in self._open:
            at_ns += 1
        if len(self._open) >= _MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[at_ns] = self._clock()
        return at_ns

    def pong(self, at_ns: int, other_ns: int) -> bool:
        """Take in the answer to a ping, with the other clock; return False where none was sent at that moment."""
        sent = self._open.pop(at_ns, None)
        if sent is None:
            return False
        rtt = self._clock() - sent
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
