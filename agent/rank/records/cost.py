"""The cost of the hooks on the training thread, measured by the agent itself in a few steps.

A clock of CPU time is a call of the system, so only one step in many is measured.  The time of the collectives' threads
and of the agent's own is not in it.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ddptop.agent.rank.faults import Faults

FIRST: Final = 4
"""The how-manieth step of a kind, recorded or counted, is measured first, or nearly: those before it are not usual."""
EVERY: Final = 33
"""From a step that is measured to the next of its kind: recorded steps, or steps of any kind up to one that is counted.
Odd, so that of two optimizers that step in turn both are measured."""
MEDIAN_OF: Final = 9
_CALL_NS: Final = 300
"""Nanoseconds from Python to a hook and back, which no clock inside of it sees."""


class Cost:
    """The measured steps of one rank. The training thread writes; any thread may read."""

    # Each object that a hook touches is a miss of the cache: slots are one where a dictionary is three.
    __slots__ = ("_ends", "_found", "_left", "_ns", "_of_recorded", "_overhead_ns", "clock", "next_counted", "sampling")

    def __init__(self, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self.clock = clock
        self.sampling = False
        """True while hooks measure themselves: they add the time from their beginning to their end."""
        self._overhead_ns: int | None = None
        """Nanoseconds that reading the clock adds to a time between two readings."""
        self._of_recorded = False
        self._ends = False
        self._ns = 0
        self._left = FIRST
        """Recorded steps until the next one that is measured."""
        self.next_counted = 0
        """The first step that is measured if it is only counted; 0 before the first one that is counted."""
        self._found: tuple[deque[int], deque[int]] = (deque(maxlen=MEDIAN_OF), deque(maxlen=MEDIAN_OF))
        """Of counted and of recorded steps."""

    @property
    def recorded_ns(self) -> int | None:
        """CPU time of the hooks in a step that is recorded; None until it is known."""
        return _median(self._found[1])

    @property
    def counted_ns(self) -> int | None:
        """The same of a step that is only counted."""
        return _median(self._found[0])

    def turn(self, step: int, *, recording: bool) -> None:
        """Begin the step of this number, at the boundary of the one before it."""
        if self.sampling:
            # The hook that has come to the boundary belongs to the step as well.
            self._ends = True
            return
        if recording:
            self._left -= 1
            if self._left:
                return
            self._left = EVERY
        elif not self.next_counted:
            self.next_counted = step + FIRST - 1
            return
        elif step < self.next_counted:
            return
        else:
            self.next_counted = step + EVERY
        self._of_recorded, self._ns, self.sampling = recording, 0, True

    def end(self, ns: int) -> None:
        """Add the time of the hook that has ended the step, where `turn` was not called."""
        self._ends = True
        self.add(ns)

    def add(self, ns: int) -> None:
        """Add the time of a hook, from clock to clock."""
        if self._overhead_ns is None:
            self._overhead_ns = min(-self.clock() + self.clock() for _ in range(5))
        self._ns += max(0, ns - self._overhead_ns) + _CALL_NS
        if self._ends:
            self._found[self._of_recorded].append(self._ns)
            self.sampling = self._ends = False

    def watched(self, hook: Callable[..., None], faults: Faults) -> Callable[..., None]:
        """Return a function that calls a hook of the training thread: its errors are counted, and its time is added."""
        name, note, clock = str(getattr(hook, "__name__", "a hook")), faults.note, self.clock

        def watched(*args: Any) -> None:
            began = clock() if self.sampling else 0
            try:
                hook(*args)
            except Exception as error:
                note(name, error)
            if began:
                self.add(clock() - began)

        return watched


def _median(found: deque[int]) -> int | None:
    return round(statistics.median(found)) if found else None
